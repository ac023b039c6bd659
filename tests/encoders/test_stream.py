"""The streaming engine: in order, equal items once, broken ones alone, read ahead but not too far."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders import engine as module
from capeval_core.encoders.engine import Encoding, ImageFeatures, Item, Units, encode_stream
from capeval_core.encoders.pairs import Pairs
from capeval_core.encoders.tokenizers import Ids, Tokens
from capeval_core.errors import Problem
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.models.batching import BatchSize, count_forwards
from tests.support.seams import LIMITS

Floats = NDArray[np.float32]


def grey(value: int) -> NDArray[np.uint8]:
    """An image that stands for a value, 0 to 65535."""
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = value % 256, value // 256
    return pixels


class Model:
    """The value that an image stands for is its feature; counts what it runs."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.prepared = 0
        self._lock = threading.Lock()

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        with self._lock:
            self.prepared += 1
        return np.asarray(image.convert("RGB").resize((1, 1)))[0, 0]

    def forward(self, pixels: list[NDArray[np.uint8]]) -> Floats:
        self.batches.append(len(pixels))
        values = np.stack(pixels).astype(np.float32)
        return values[:, :1] + 256 * values[:, 1:2]

    def run(
        self, images: Iterator[InputImage] | list[InputImage], cache: FeatureCache | None = None
    ) -> Iterator[ImageFeatures]:
        encoding = Encoding(
            size=BatchSize(16, automatic=True),
            keys=lambda content, _: (content,),
            prepare=self.prepare,
            forward=self.forward,
        )
        items = ((image, None) for image in images)
        for part in encode_stream(items, encoding, FeatureCache(0) if cache is None else cache):
            yield ImageFeatures.of(part, shape=(1,))


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
    monkeypatch.setattr(LIMITS, "items", 32)
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
    assert not any("capeval-read" in thread.name for thread in threading.enumerate())


def test_an_error_of_the_model_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()

    def forward(pixels: list[NDArray[np.uint8]]) -> Floats:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(RuntimeError, match="device-side assert"):
        list(model.run([InputImage.of(grey(i)) for i in range(50)]))
    assert not any("capeval-read" in thread.name for thread in threading.enumerate())


def test_cached_images_are_not_decoded_again() -> None:
    cache = FeatureCache()
    flat(Model().run([InputImage.of(grey(i)) for i in range(40)], cache))
    again = Model()
    found, _, _ = flat(again.run([InputImage.of(grey(i)) for i in range(50)], cache))
    assert found == list(range(50)) and again.prepared == 10


class Lengths:
    """An item of n units becomes their labels, doubled: many units, made as they are needed."""

    def __init__(self, size: int) -> None:
        self.batches: list[int] = []
        self.made = 0
        self.encoding = Encoding(
            size=BatchSize(size, automatic=True),
            keys=lambda content, count: (f"{content} {count}",),
            prepare=lambda loaded: None,
            forward=lambda units: self.forward(units),
            units=self.units,
            arrays=self.arrays,
        )

    def units(self, item: Item, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
        if item[1] < 0:
            raise ImageError(Problem(item[0].where, None, "fewer than no units", verb=""))

        def groups() -> Iterator[list[tuple[int, Any]]]:
            for label in range(item[1]):
                self.made += 1
                yield [(label, label)]

        return Units(groups())

    def forward(self, units: list[Any]) -> list[int]:
        self.batches.append(len(units))
        return [2 * unit for unit in units]

    def arrays(self, keys: Sequence[str], units: Units, values: Mapping[int, Any]) -> dict[str, Floats]:
        return {keys[0]: np.array([values[label] for label in sorted(values)], dtype=np.float32)}


def test_units_of_many_items_fill_batches_together() -> None:
    lengths = Lengths(4)
    counts = [1, 0, 3, 9, -1, 2, 9, 0, 5]
    items = [(InputImage.of(grey(i), f"images[{i}]"), n) for i, n in enumerate(counts)]
    items[6] = (InputImage.of(grey(3), "images[6]"), 9)  # equal to images[3] and its nine units
    found = [each for part in encode_stream(items, lengths.encoding, FeatureCache(0)) for each in part]
    assert lengths.batches == [4, 4, 4, 4, 4] and lengths.made == 20
    for i, (n, each) in enumerate(zip(counts, found, strict=True)):
        if n < 0:
            assert each.arrays is None and each.error == f"images[{i}]: fewer than no units"
        else:
            assert each.arrays is not None and each.error is None and each.extra == n
            assert each.arrays[each.keys[0]].tolist() == [2 * label for label in range(n)]


@pytest.mark.parametrize("kind", [ValueError, KeyError, TypeError, ZeroDivisionError, OSError])
def test_what_a_users_own_source_raises_costs_its_row(kind: type[Exception]) -> None:
    lengths = Lengths(4)
    units = lengths.units

    def failing(item: Item, *more: Any) -> Units:
        if item[1] == 13:
            raise kind("of the source")
        return units(item, *more)

    items = [(InputImage.of(grey(i), f"images[{i}]"), n) for i, n in enumerate([2, 13, 1])]
    encoding = replace(lengths.encoding, units=failing)
    first, failed, last = (each for part in encode_stream(items, encoding, FeatureCache(0)) for each in part)
    assert first.arrays is not None and last.arrays is not None and failed.arrays is None
    assert failed.error is not None and failed.error.startswith("images[1]: what belongs to it could not be")
    assert kind.__name__ in failed.error and "of the source" in failed.error


def test_an_error_about_something_else_keeps_its_subject() -> None:
    """A user's own text, and a problem with another file, are not written as the image's."""
    lengths = Lengths(4)

    def refused(item: Item, *more: Any) -> Units:
        raise ImageError("no masks") if item[1] else ImageError(Problem("masks.json", "line 3", "no list"))

    encoding = replace(lengths.encoding, units=refused)
    items = [(InputImage.of(grey(1), f"images[{i}]"), i % 2) for i in range(4)]  # equal in pairs
    found = [each.error for part in encode_stream(items, encoding, FeatureCache(0)) for each in part]
    assert found == ["masks.json: line 3 is no list", "no masks"] * 2


def test_an_item_with_more_units_than_a_batch_is_never_whole_in_memory() -> None:
    lengths = Lengths(8)
    ahead: list[int] = []
    forward = lengths.forward
    lengths.forward = lambda units: ahead.append(lengths.made) or forward(units)  # type: ignore
    items = [(InputImage.of(grey(0)), 1000)]
    ((found,),) = encode_stream(items, lengths.encoding, FeatureCache(0))
    assert found.arrays is not None and len(found.arrays[found.keys[0]]) == 1000
    assert ahead == [8 * (batch + 1) for batch in range(125)]


def test_what_waits_for_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that never fills does not hold back cached items for ever."""
    monkeypatch.setattr(LIMITS, "items", 8)
    monkeypatch.setattr(LIMITS, "items_waiting", 40)
    model, cache, taken = Model(), FeatureCache(), 0
    flat(model.run([InputImage.of(grey(1))], cache))

    def mostly_cached() -> Iterator[InputImage]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield InputImage.of(grey(1 if i else 2), f"images[{i}]")

    running = model.run(mostly_cached(), cache)
    assert next(running).features[0, 0] == 2 and taken <= 40 + 3 * 8


@pytest.mark.parametrize("error", [ValueError, OSError, MemoryError])
def test_a_visual_that_cannot_be_prepared_costs_its_row(error: type[Exception]) -> None:
    class Picky(Model):
        def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
            pixels = super().prepare(image)
            if pixels[0] == 5:
                raise error("too much")
            return pixels

    found, keys, errors = flat(Picky().run([InputImage.of(grey(i), f"images[{i}]") for i in range(9)]))
    assert [i for i, reason in enumerate(errors) if reason] == [5] and np.isnan(found[5]) and all(keys)
    assert str(errors[5]).startswith("images[5]: cannot prepare") and str(errors[5]).endswith("too much")


def test_what_was_given_out_is_not_kept() -> None:
    """Neither items nor arrays stay in memory: an endless input runs in bounded memory."""
    lengths, made = Lengths(4), []
    arrays = lengths.arrays

    def noted(keys: Sequence[str], units: Units, values: Mapping[int, Any]) -> dict[str, Floats]:
        found = arrays(keys, units, values)
        made.append(weakref.ref(found[keys[0]]))
        return found

    items = ((InputImage.of(grey(i), f"images[{i}]"), 1) for i in range(600))
    for _ in encode_stream(items, replace(lengths.encoding, arrays=noted), FeatureCache(0)):
        assert sum(ref() is not None for ref in made) <= 200
    assert len(made) == 600


def test_cached_items_come_out_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "items", 8)
    model, cache, taken = Model(), FeatureCache(), 0
    flat(model.run([InputImage.of(grey(i)) for i in range(100)], cache))

    def cached() -> Iterator[InputImage]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield InputImage.of(grey(i), f"images[{i}]")

    assert next(model.run(cached(), cache)).features[:, 0].tolist() == list(range(8)) and taken <= 3 * 8


class Sums:
    """An image by its value, and with a text by the value plus the sum of its ids."""

    def __init__(self) -> None:
        self.images: list[int] = []
        self.pairs: list[list[int]] = []

    def image_key(self, content: str) -> str:
        return f"image {content}"

    def pair_key(self, content: str, ids: Ids) -> str:
        return f"pair {content} {ids}"

    def prepare_visual(self, loaded: Image.Image) -> NDArray[np.uint8]:
        return np.asarray(loaded.convert("RGB").resize((1, 1)))[0, 0]

    def states(self, prepared: Sequence[NDArray[np.uint8]]) -> Floats:
        self.images.append(len(prepared))
        return np.stack(prepared)[:, 0].astype(np.float32)

    def image_features(self, states: Floats) -> Floats:
        return states[:, None]

    def run_pairs(self, states: Floats, pairs: Sequence[tuple[int, Ids, str]]) -> Floats:
        self.pairs.append([len(ids) for _, ids, _ in pairs])
        return np.float32([[states[position] + sum(ids)] for position, ids, _ in pairs])

    def pairs_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        return BatchSize(12, automatic=True), length


def test_an_image_runs_once_and_its_texts_packed_by_length() -> None:
    encoder, cache = Sums(), FeatureCache()
    texts: list[list[Ids]] = [[(1, 2, 3), (1,), (1, 2, 3)], [], [(7,), (8, 9)], [(1,)]]
    images = [InputImage.of(grey(i), f"images[{i}]") for i in (10, 11, 12)] + [
        InputImage.of(b"text", "images[3]")
    ]

    def run(texts: list[list[Ids]]) -> list[list[float] | None]:
        items = [(image, Tokens(own, [0] * len(own))) for image, own in zip(images, texts, strict=True)]
        found = encode_stream(items, Pairs(encoder, BatchSize(2, automatic=True), None).encoding(), cache)
        return [
            None
            if each.arrays is None
            else [float(each.arrays[encoder.pair_key(each.content, ids)][0]) for ids in each.extra.ids]
            for part in found
            for each in part
        ]

    expected = [[16, 11, 16], [], [19, 29], None]
    assert run(texts) == expected
    assert encoder.images == [2]  # an image without texts does not run
    assert encoder.pairs == [[1, 3, 1, 2]]  # those of an image together, short ones first; equal ones once
    encoder.pairs.clear()
    assert run(texts) == expected and encoder.images == [2] and not encoder.pairs
    texts[2].append((5, 5, 5))
    expected[2] = [19, 29, 27]
    assert run(texts) == expected and encoder.images == [2, 1] and encoder.pairs == [[3]]


def test_pairs_of_a_pass_cost_as_much_as_the_longest_text() -> None:
    """Twelve tokens fit: with texts of up to three, four pairs."""
    encoder = Sums()
    texts: list[Ids] = [(1,), (2,), (3, 3), *((n, n, n) for n in range(6))]
    items = [(InputImage.of(grey(10)), Tokens(texts, [0] * len(texts)))]
    pairs = Pairs(encoder, BatchSize(2, automatic=True), None)
    ((found,),) = encode_stream(items, pairs.encoding(), FeatureCache(0))
    assert encoder.pairs == [[1, 1, 2, 3], [3, 3, 3, 3], [3]]
    assert found.arrays is not None
    assert [found.arrays[encoder.pair_key(found.content, ids)][0] for ids in texts] == [
        10 + sum(ids) for ids in texts
    ]


def test_equal_images_with_other_texts_share_their_pairs() -> None:
    encoder = Sums()
    texts: list[list[Ids]] = [[(1,), (2, 3)], [(4,)], [(2, 3), (5,)], [(5,), (1,)]]
    images = [InputImage.of(grey(i), f"images[{n}]") for n, i in enumerate((10, 11, 10, 10))]
    items = [(image, Tokens(own, [0] * len(own))) for image, own in zip(images, texts, strict=True)]
    parts = encode_stream(
        items, Pairs(encoder, BatchSize(2, automatic=True), None).encoding(), FeatureCache(0)
    )
    found = [each for part in parts for each in part]
    for value, own, each in zip((10, 11, 10, 10), texts, found, strict=True):
        assert each.arrays is not None
        sums = [each.arrays[encoder.pair_key(each.content, ids)][0] for ids in own]
        assert sums == [value + sum(ids) for ids in own]
    assert sorted(length for lengths in encoder.pairs for length in lengths) == [1, 1, 1, 2]
    assert encoder.images == [2, 1]  # the third has a text that the first has not; the fourth has none


def test_pairs_that_are_there_already_do_not_cut_a_batch_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third item shares arrays with the second, which the cache has: nothing is waited for."""
    monkeypatch.setattr(LIMITS, "items", 2)
    encoder, cache = Sums(), FeatureCache()

    def run(*given: tuple[int, list[Ids]]) -> None:
        items = [(InputImage.of(grey(i)), Tokens(own, [0] * len(own))) for i, own in given]
        list(encode_stream(items, Pairs(encoder, BatchSize(4, automatic=True), None).encoding(), cache))

    run((10, [(1,)]))
    run((11, [(1,)]), (10, [(1,)]), (10, [(1,), (2,)]))
    assert encoder.images == [1, 2]


def test_forwards_are_counted() -> None:
    with count_forwards() as outer:
        flat(Model().run([InputImage.of(grey(i % 20)) for i in range(30)]))
        with count_forwards() as inner:
            flat(Model().run([InputImage.of(grey(i)) for i in range(3)]))
    flat(Model().run([InputImage.of(grey(9))]))
    assert (outer.items, outer.batches, inner.items, inner.batches) == (23, 3, 3, 1)
