"""Box features of a training set on the disk: computed once, then read as they are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import Problem, Problems
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import ImageError
from capeval_core.writing import write_whole

Regions = TypeVar("Regions")
Form = Callable[[Any, Any], Regions]
_INDEX, _FEATURES, _POSITIONS = "index.json", "features.bin", "positions.bin"


class FoundBoxes(Protocol):
    """Box features of an image, or why there are none: what region encoders and stores of features give."""

    @property
    def where(self) -> str:
        """The image, for messages."""

    def load(self) -> BoxFeatures:
        """The features. Raises ImageError or ValueError where there are none."""


class RegionStore(Generic[Regions]):
    """What a network takes of the boxes of n images, features in float16, which is enough to train on.

    Args:
        folder: as `write` made it.
        form: makes what the network takes of features and positions.

    Raises:
        OSError, ValueError: it is not complete.
    """

    def __init__(self, folder: Path, form: Form[Regions]) -> None:
        self.form = form
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        self.starts = np.cumsum([0, *index["boxes"]])
        shape = (int(self.starts[-1]), int(index["region_size"]))
        self.features: NDArray[np.float16] = np.memmap(folder / _FEATURES, np.float16, "r", shape=shape)
        self.positions: NDArray[np.float32] = np.memmap(
            folder / _POSITIONS, np.float32, "r", shape=(shape[0], int(index["position_size"]))
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, image: int) -> Regions:
        """Of image number `image`."""
        rows = self._rows(image)
        return self.form(self.features[rows].astype(np.float32), np.array(self.positions[rows]))

    def _rows(self, image: int) -> slice:
        return slice(self.starts[image], self.starts[image + 1])

    def means(self) -> NDArray[np.float32]:
        """(n, region_size) mean features of the boxes of each image."""
        images = range(len(self))
        return np.stack([self.features[self._rows(i)].astype(np.float32).mean(axis=0) for i in images])

    @classmethod
    def write(
        cls,
        folder: Path,
        boxes: Iterable[FoundBoxes],
        stamp: str,
        region_size: int,
        prepare: Callable[[BoxFeatures], Regions],
        form: Form[Regions],
    ) -> RegionStore[Regions]:
        """The store of these images, in order; one that is there with the same stamp is opened.

        stamp: everything that the features depend on. prepare: what the network takes of boxes, an object
        of two arrays, which `form` makes of them again.

        Raises:
            ValueError: images without usable features; each is named with the reason.
        """
        index = folder / _INDEX
        if index.is_file() and json.loads(index.read_text(encoding="utf-8")).get("stamp") == stamp:
            return cls(folder, form)
        folder.mkdir(parents=True, exist_ok=True)
        counts: list[int] = []
        position_size = 0
        problems = Problems()
        with (folder / _FEATURES).open("wb") as features, (folder / _POSITIONS).open("wb") as positions:
            for found in boxes:
                try:
                    loaded = found.load()
                    loaded.check_width(region_size)
                    own, places = vars(prepare(loaded)).values()
                    halves = _halves(own)
                except ImageError as error:
                    problems.extend(error.problems)
                    continue
                except ValueError as error:
                    problems.add(Problem(found.where, None, str(error), verb="", kind=ImageError))
                    continue
                features.write(halves.tobytes())
                positions.write(places.tobytes())
                counts.append(len(places))
                position_size = places.shape[1]
        problems.raise_if_any()
        sizes = {"region_size": region_size, "position_size": position_size}
        content = {"stamp": stamp, **sizes, "boxes": counts}
        write_whole(index, json.dumps(content))
        return cls(folder, form)


def _halves(features: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = features.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ValueError("a feature exceeds the range of float16, in which features are kept for training")
    return halves
