from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from capeval_core.encoders.uniter import RegionInput, region_input
from capeval_core.encoders.vilbert import LocatedBoxes, located
from capeval_core.errors import Problem
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.visual import ImageError
from capeval_core.training.region_store import FoundBoxes, RegionStore


@dataclass(frozen=True)
class Found:
    where: str
    boxes: BoxFeatures | None

    def load(self) -> BoxFeatures:
        if self.boxes is None:
            raise ImageError(Problem(self.where, None, "broken"))
        return self.boxes


def found(count: int, width: int = 4, size: tuple[int, int] | None = (50, 40)) -> Found:
    rng = np.random.default_rng(count)
    corners = np.sort(rng.random((count, 2, 2)) * 40, axis=1).reshape(count, 4)
    boxes = BoxFeatures(corners.astype(np.float32), rng.random((count, width)).astype(np.float32), size)
    return Found(f"image {count}", boxes)


def write(folder: Path, boxes: Iterable[FoundBoxes], stamp: str) -> RegionStore[RegionInput]:
    """As UNITER takes them, of features of 4 numbers."""
    return RegionStore.write(folder, boxes, stamp, 4, region_input, RegionInput)


def test_features_come_back_as_the_network_takes_them(tmp_path: Path) -> None:
    images = [found(3), found(1), found(7)]
    store = write(tmp_path / "store", images, "stamp")
    assert len(store) == 3
    for index, image in enumerate(images):
        assert image.boxes is not None
        expected = region_input(image.boxes)
        np.testing.assert_array_equal(store[index].features, expected.features)
        np.testing.assert_array_equal(store[index].positions, expected.positions)
        np.testing.assert_allclose(
            store.means()[index], expected.features.astype(np.float32).mean(axis=0), rtol=1e-6
        )


def test_vilbert_gets_its_whole_image_and_locations(tmp_path: Path) -> None:
    images = [found(3), found(7)]
    store = RegionStore.write(tmp_path, images, "stamp", 4, located, LocatedBoxes)
    for index, image in enumerate(images):
        assert image.boxes is not None
        expected = located(image.boxes)
        np.testing.assert_array_equal(store[index].locations, expected.locations)
        np.testing.assert_allclose(store[index].features, expected.features, atol=1e-3)
        np.testing.assert_allclose(store.means()[index], expected.features.mean(axis=0), atol=1e-3)


def test_a_feature_beyond_float16_is_named(tmp_path: Path) -> None:
    huge = BoxFeatures(np.float32([[0, 0, 9, 9]]), np.full((1, 4), 1e6, np.float32), (50, 40))
    with pytest.raises(ValueError, match="image 0: a feature exceeds the range of float16"):
        RegionStore.write(tmp_path, [Found("image 0", huge)], "stamp", 4, located, LocatedBoxes)


def test_features_are_computed_once(tmp_path: Path) -> None:
    write(tmp_path, [found(2)], "stamp")

    def unread() -> Iterator[FoundBoxes]:
        raise AssertionError("they are there")
        yield

    assert len(write(tmp_path, unread(), "stamp")) == 1
    assert len(write(tmp_path, [found(2), found(5)], "another stamp")) == 2


def test_an_interrupted_store_is_made_anew(tmp_path: Path) -> None:
    def broken() -> Iterator[FoundBoxes]:
        yield found(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, broken(), "stamp")
    assert len(write(tmp_path, [found(3), found(5)], "stamp")) == 2


def test_all_images_without_usable_features_are_named(tmp_path: Path) -> None:
    images = [found(2), Found("image of 'x'", None), found(3, width=5), found(4, size=None)]
    with pytest.raises(ValueError, match="3 problems") as caught:
        write(tmp_path, images, "stamp")
    message = str(caught.value)
    assert "image of 'x' is broken" in message
    assert "image 3: its features have 5 numbers each, but the network takes 4" in message
    assert "image 4: the size of the image is missing" in message
