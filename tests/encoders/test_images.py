"""Images in any number: in order, equal ones once, broken ones alone, read ahead but not too far."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders import images as module
from capeval_core.encoders.stream import ImageFeatures, encode_distinct
from capeval_core.inputs.visual import InputImage

Floats = NDArray[np.float32]


def grey(value: int) -> NDArray[np.uint8]:
    """An image that is known by its value, 0 to 65535."""
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = value % 256, value // 256
    return pixels


class Model:
    """The value that an image is known by is its feature; counts what it sees."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.prepared = 0
        self._lock = threading.Lock()

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        with self._lock:
            self.prepared += 1
        return np.asarray(image.convert("RGB").resize((1, 1)))[0, 0]

    def forward(self, pixels: NDArray[np.uint8]) -> Iterator[tuple[slice, Floats]]:
        self.batches.append(len(pixels))
        for start in range(0, len(pixels), 5):
            part = slice(start, min(start + 5, len(pixels)))
            values = pixels[part].astype(np.float32)
            yield part, (values[:, :1] + 256 * values[:, 1:2])

    def run(
        self, images: Iterator[InputImage] | list[InputImage], cache: FeatureCache | None = None
    ) -> Iterator[ImageFeatures]:
        return encode_distinct(
            images,
            prepare=self.prepare,
            forward=self.forward,
            dimension=1,
            ahead=16,
            cache=FeatureCache(0) if cache is None else cache,
            cache_key=str,
        )


def flat(parts: Iterator[ImageFeatures]) -> tuple[list[float], list[str], list[str | None]]:
    values: list[float] = []
    keys: list[str] = []
    errors: list[str | None] = []
    for part in parts:
        assert len(part.features) == len(part.keys) == len(part.errors) > 0
        values += part.features[:, 0].tolist()
        keys += part.keys
        errors += part.errors
    return values, keys, errors


def test_thousands_of_images_keep_their_order() -> None:
    values = np.random.default_rng(1).permutation(5000) % 3100  # some twice, near and far
    model = Model()
    cache = FeatureCache()
    found, keys, errors = flat(
        model.run([InputImage.of(grey(v), f"images[{i}]") for i, v in enumerate(values)], cache)
    )
    assert found == values.tolist()
    assert errors == [None] * 5000
    assert sum(model.batches) == model.prepared == 3100  # each distinct image once, far ones by the cache
    assert max(model.batches) <= 16
    assert len(set(keys)) == 3100


def test_equal_images_run_once_even_without_a_cache() -> None:
    model = Model()
    found, _, _ = flat(model.run([InputImage.of(grey(i % 7)) for i in range(500)]))
    assert found == [i % 7 for i in range(500)] and model.prepared == 7


def test_broken_images_in_between_cost_only_their_own_rows(tmp_path: Path) -> None:
    Image.fromarray(grey(9)).resize((40, 40)).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    given: list[InputImage] = []
    for i in range(2200):
        broken = {0: whole[:60], 1: str(tmp_path / f"{i}.png"), 2: b"text"}.get(i % 10)
        given.append(InputImage.of(grey(i) if broken is None else broken, f"images[{i}]"))
    found, keys, errors = flat(Model().run(given))
    for i, (value, key, error) in enumerate(zip(found, keys, errors, strict=True)):
        if i % 10 <= 2:
            assert np.isnan(value)
            assert error is not None and error.startswith(f"images[{i}]")
        else:
            assert value == i and error is None and key
    with_bytes = [i for i in range(2200) if i % 10 == 0]
    assert len({keys[i] for i in with_bytes}) == 1 and keys[0]  # broken bytes have a content, and so a key
    assert {keys[i] for i in range(2200) if i % 10 == 1} == {""}


def test_all_broken() -> None:
    model = Model()
    found, _, errors = flat(model.run([InputImage.of(b"text", f"images[{i}]") for i in range(20)]))
    assert np.isnan(found).all() and all(errors) and model.batches == []


def test_none_at_all() -> None:
    assert list(Model().run([])) == []


def test_a_file_that_vanishes_after_it_was_keyed(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(grey(3)).save(path)
    image = InputImage.of(path, "images[0]")
    assert image.key
    path.unlink()
    _, keys, errors = flat(Model().run([image, InputImage.of(grey(1), "images[1]")]))
    assert keys[0] and errors[0] is not None and "x.png" in errors[0] and errors[1] is None


@pytest.mark.parametrize("processors", [None, 1, 2, 64])
def test_files_that_break_after_they_were_keyed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processors: int | None
) -> None:
    """At any place, with any number of threads: those rows fail, under their own index."""
    monkeypatch.setattr(module.os, "cpu_count", lambda: processors)
    given = [InputImage.of(grey(i), f"images[{i}]") for i in range(1200)]
    late = {0: b"text", 17: b"", 1100: None, 1199: b"\x89PNG"}
    for i, content in late.items():
        path = tmp_path / f"{i}.png"
        Image.fromarray(grey(i)).save(path)
        given[i] = InputImage.of(path, f"images[{i}]")
        assert given[i].key
        path.unlink() if content is None else path.write_bytes(content)
    found, _, errors = flat(Model().run(given))
    assert {i: error for i, error in enumerate(errors) if error}.keys() == late.keys()
    assert all(str(errors[i]).startswith(f"images[{i}]: ") and np.isnan(found[i]) for i in late)
    assert [found[i] for i in range(1200) if i not in late] == [i for i in range(1200) if i not in late]


def test_images_are_taken_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 32)
    taken = 0

    def endless() -> Iterator[InputImage]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield InputImage.of(grey(i % 60_000), f"images[{i}]")

    running = Model().run(endless())
    found: list[float] = []
    while len(found) < 100:
        found += next(running).features[:, 0].tolist()
        assert taken <= len(found) + 3 * 32
    assert found[:100] == list(range(100))
    running.close()  # type: ignore[attr-defined]
    assert not any("capeval-images" in thread.name for thread in threading.enumerate())


def test_an_error_of_the_model_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()

    def forward(pixels: NDArray[np.uint8]) -> Iterator[tuple[slice, Floats]]:
        raise RuntimeError("device-side assert")
        yield

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(RuntimeError, match="device-side assert"):
        list(model.run([InputImage.of(grey(i)) for i in range(50)]))
    assert not any("capeval-images" in thread.name for thread in threading.enumerate())


def test_cached_images_are_not_decoded_again() -> None:
    cache = FeatureCache()
    flat(Model().run([InputImage.of(grey(i)) for i in range(40)], cache))
    again = Model()
    found, _, _ = flat(again.run([InputImage.of(grey(i)) for i in range(50)], cache))
    assert found == list(range(50)) and again.prepared == 10
