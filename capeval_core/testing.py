"""Checks that a class of metrics keeps the contract of all: `check_metric(MyMetric)`."""

from __future__ import annotations

import math
import pickle
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.inputs.samples import Samples, argument_of
from capeval_core.metric import CaptionMetric, Reranker, prepared
from capeval_core.models.batching import count_forwards
from capeval_core.options import OptionDescription
from capeval_core.result import Result
from capeval_core.rows import COMMON

__all__ = ["check_metric", "count_forwards"]

CLOSE = 1e-6
"""Tolerance of equal scores where batches differ."""
CAPTIONS = [
    "a dog runs on grass",
    "two red circles",
    "A man is riding a horse on the beach , and a woman is looking at the sea .",
    "dog",
    "a blue square left of a green triangle",
    "two red circles",
    "¡Hola! 犬 😺",
    "a dog runs on the grass",
]
_DOG = ["a dog on a lawn", "a brown dog runs", "a dog plays outside"]
_CIRCLES = ["two circles"]
_SQUARE = ["a square", "a triangle", "shapes", "a drawing", "a blue square left of a green triangle"]
_MAN = ["a man on a horse", "a horse at the sea"]
_BARE = "a bare string is one reference"
REFERENCES = [_DOG, _CIRCLES, _MAN, _BARE, _SQUARE, _CIRCLES, ["hello", "a cat"], _DOG]
IMAGE_OF = [0, 1, 2, 3, 4, 1, 5, 0]
"""The image of each caption."""
LAWN = ["a dog and a cat on a wide lawn", "a dog and a bird on a lawn", "a cat on a wide green lawn", "grass"]
_SECOND = Image.new("RGB", (64, 48), "teal")
_SHAPES = (("RGB", 90, 60), ("L", 50, 80), ("RGBA", 70, 70), ("P", 64, 48), ("RGB", 200, 31), ("RGB", 33, 99))
_OF_A_RUN = ("device", "batch_size", "cache", "rows", "on_error", "empty", "evidence", "weights")


def check_metric(metric: type[CaptionMetric], *, within: float = CLOSE, **options: Any) -> None:
    """Check a class of metrics against the contract of all, on small drawn images.

    Args:
        metric: the class. One whose encoding needs statistics of a corpus takes those of the texts here.
        within: how far apart equal scores may be where the other captions of a batch differ.
        **options: of the metric, as for `load`; `weights="tiny"` for one with weights.

    Raises:
        AssertionError: every promise that it breaks, by name, and how.

    >>> from capeval_core.registry import metric_class
    >>> check_metric(metric_class("rougel"))
    """
    broken = []
    with tempfile.TemporaryDirectory() as folder:
        contract = Contract(metric, write_images(Path(folder)), Path(folder), within, **options)
        for check in CHECKS:
            try:
                contract.run(check)
            except AssertionError as error:
                broken.append(f"{check}: {error}")
    assert not broken, f"{metric.name} breaks {len(broken)} promises:\n  " + "\n  ".join(broken)


def write_images(folder: Path) -> list[Path]:
    """Six different images of several sizes, modes and formats."""
    rng = np.random.default_rng(7)
    paths = []
    for i, (mode, width, height) in enumerate(_SHAPES):
        blocks = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        image = blocks.resize((width, height), Image.Resampling.NEAREST).convert(mode)
        path = folder / (f"{i}.png" if i else f"{i}.jpg")
        image.save(path)
        paths.append(path)
    return paths


def score(
    metric: CaptionMetric,
    images: Sequence[Any],
    only: Sequence[int] = range(8),
    texts: tuple[list[str], list[Any]] = (CAPTIONS, REFERENCES),
    **settings: Any,
) -> Result:
    """Score the captions (or only these) on their images; in pools, for a metric that chooses."""
    captions, references = texts
    if isinstance(metric, Reranker):
        inputs: Any = [[captions[i], *captions[i - 3 : i], *LAWN] for i in only]
    else:
        inputs = [captions[i] for i in only]
    arguments = visuals_of(metric, [images[IMAGE_OF[i]] for i in only])
    if metric.needs_references:
        arguments["references"] = [references[i] for i in only]
    return metric.score(inputs, **arguments, **settings)


def visuals_of(metric: CaptionMetric, images: Sequence[Any]) -> dict[str, Any]:
    """Images as the metric takes them: as they are, as the first frames of videos, or not at all."""
    argument = argument_of(metric.media)
    if argument is None:
        return {}
    if argument == "videos":
        return {argument: [[image, _SECOND] for image in images]}
    return {argument: list(images)}


def samples(metric: CaptionMetric, images: Sequence[Any]) -> Samples:
    """The captions, their images and references, checked."""
    arguments = visuals_of(metric, [images[i] for i in IMAGE_OF])
    visuals = next(iter(arguments.values()), None)
    return metric.check(CAPTIONS, visuals, REFERENCES if metric.needs_references else None)


def values(result: Result, rows: Sequence[int] | None = None) -> dict[str, Any]:
    """Scores, groups and parts that are numbers or texts, of all rows or these."""
    columns: dict[str, Any] = {"score": result.scores, "group": result.groups}
    for name, part in result.parts.items():
        if not any(isinstance(value, list) for value in part):
            columns[name] = part
    if rows is None:
        rows = range(len(result))
    return {name: list(map(column.__getitem__, rows)) for name, column in columns.items()}


def close(result: Result, expected: Result, within: float = CLOSE) -> bool:
    """Return whether all values are equal but for rounding."""
    return not moved(result, expected, within)


def moved(result: Result, expected: Result, within: float, rows: Sequence[int] | None = None) -> list[str]:
    """Names of values that are not those expected (of these rows); z-scores divide by small deviations."""
    columns = values(result)
    expected_columns = values(expected, rows)
    if expected.relative:
        within *= 100
    names = columns.keys() ^ expected_columns.keys()  # that only one of them has
    for name in columns.keys() & expected_columns.keys():
        if not _alike(columns[name], expected_columns[name], within):
            names.add(name)
    return sorted(names)


def _alike(first: Sequence[Any], second: Sequence[Any], within: float) -> bool:
    """Return whether texts are equal, or numbers but for rounding."""
    if first and isinstance(first[0], str):
        return list(first) == list(second)
    return len(first) == len(second) and np.allclose(first, second, rtol=0, atol=within, equal_nan=True)


class Contract:
    """The checks of a metric with some options, on six images, with a folder for files."""

    def __init__(
        self, metric: type[CaptionMetric], images: Any, folder: Path, within: float = CLOSE, **options: Any
    ) -> None:
        self.metric = metric
        self.images = images
        self.folder = folder
        self.options = options
        self.within = within
        self.together = issubclass(metric, Reranker) or metric.relative is not None
        self._opened = self.open()  # an encoder is shared as long as a metric holds it
        if self._opened.options.weighs_together:
            corpus = self._opened.corpus(samples(self._opened, images))
            self.options["statistics"] = self._opened.prepare(corpus)

    def run(self, check: str) -> None:
        """One of `CHECKS`, unless the metric's scores depend on the other captions, which breaks it."""
        if not self.together or check in ("check_facts", "check_batches", "check_pickling"):
            getattr(self, check)()

    def open(self, **options: Any) -> CaptionMetric:
        """The metric with these options and those of the contract."""
        merged = {**self.options, **options}
        if "cache" in self.metric.Options.describe():
            merged.setdefault("cache", FeatureCache())
        for name in options:
            if name not in self.metric.Options.describe() and name not in self.options:
                del merged[name]  # such as `batch_size`, of a metric without a network
        return self.metric(self.metric.Options.of(self.metric.name, merged))

    def score(self, only: Sequence[int] = range(8), **options: Any) -> Result:
        return score(self.open(**options), self.images, only)

    def rows(self, metric: CaptionMetric, *shares: list[int]) -> pa.Table:
        """The rows of all captions, or of shares of them, one share after the other."""
        captions = samples(metric, self.images)
        tables: list[pa.Table] = []
        for share in shares or [range(8)]:
            tables.extend(metric.encode(captions.select(share)))
        return pa.concat_tables(tables)

    def check_facts(self) -> None:
        metric = self.metric
        problems = []
        for name in ("title", "key", "summary", "paper", "__doc__"):
            if not str(getattr(metric, name) or "").strip():
                problems.append(name)
        if "http" not in metric.paper:
            problems.append("paper (no address)")
        if not metric.key.isidentifier():
            problems.append("key")
        if not metric.range[0] < metric.range[1]:
            problems.append("range")
        if (metric.default_weights is None) is not (metric.tiny is None):
            problems.append("tiny")
        if list(metric.ROW)[: len(COMMON)] != list(COMMON):
            problems.append("ROW (see row_schema)")
        for column in metric.ROW:
            if b"meaning" not in (column.metadata or {}):
                problems.append(f"{column.name} (see column)")
        assert not problems, ", ".join(dict.fromkeys(problems))

    def check_batches(self) -> None:
        expected = self.score()

        def check(way: str, rows: Sequence[int], **options: Any) -> Result:
            result = self.score(rows, **options)
            names = moved(result, expected, self.within, rows)
            assert not names, f"{way} moves {', '.join(names)}"
            return result

        for size in (1, 3):
            check(f"batch_size={size}", range(8), batch_size=size)
        check("another order", [5, 2, 7, 0, 6, 1, 4, 3])
        if self.together:
            return
        for row in range(8):
            way = f"captions[{row}] alone"
            result = check(way, [row])
            # The number of one caption is its score, also by a formula of sums.
            alike = _alike([result.mean], result.scores, self.within)
            assert alike, f"{way} has the number {result.mean} and the score {result.scores[0]}"

    def check_repeats(self) -> None:
        with count_forwards() as once:
            self.score([0, 1, 2])
        with count_forwards() as forwards:
            result = self.score([0, 1, 0, 2, 0, 1])
        for name, part in values(result).items():
            equal = part[0] == part[2] == part[4] and part[1] == part[5]
            assert equal, f"{name} of equal rows differs: {part}"
        assert len(set(result.groups)) == 3, f"groups of three images are {result.groups}"
        assert forwards.items == once.items, f"{forwards.items} items run, {once.items} without repeats"

    def check_pickling(self) -> None:
        metric = self.open(cache=None)
        pickled = pickle.dumps(metric)
        again = pickle.loads(pickled)
        result = score(metric, self.images)
        extra = len(pickled) - len(pickle.dumps(metric.options))
        assert extra < 4096, f"it takes {extra:,} bytes more than its options, which are enough"
        assert again.signature() == metric.signature(), f"its signature becomes {again.signature()}"
        assert close(score(again, self.images), result, self.within), "scores differ"
        assert pickle.loads(pickle.dumps(result)) == result, "a result is another one"

    def check_rows(self) -> None:
        metric = self.open()
        empty = metric.combine(metric.ROW.empty_table())
        rows = self.rows(metric)
        assert math.isnan(empty.mean) and empty.scores == [], "no rows give a score"
        expected = metric.combine(rows)
        assert rows.schema.equals(metric.ROW), "encode gives other columns than ROW"
        assert rows["index"].to_pylist() == [*range(8)], "encode gives rows in another order"
        mixed = metric.combine(rows.take([7, 3, 5, 1, 0, 2, 6, 4, 5]))
        assert mixed == expected, "scores depend on the order of rows"
        shares = metric.combine(self.rows(metric, [7, 5, 3, 1], [0, 2, 4, 6, 0, 1]))
        assert close(shares, expected, self.within), "rows of two processes give other scores"

    def check_range(self) -> None:
        low, high = self.metric.range  # a caption that is its own reference has a cosine of one
        of_itself = score(self.open(), self.images, texts=(CAPTIONS, CAPTIONS))
        scores = of_itself.scores + self.score().scores
        outside = [value for value in scores if not low <= value <= high]
        assert not outside, f"{outside} lie outside of {self.metric.range}"

    def check_broken_images(self) -> None:
        if not self.metric.media or "on_error" in self.metric.Options.without:
            return
        broken = self.folder / "broken.jpg"
        pictures = [*self.images]
        broken.write_bytes(self.images[0].read_bytes()[:300])
        unknown = Image.new("La", (40, 30))  # a mode that Pillow does not convert to RGB
        pictures[2:6] = [broken, unknown, self.folder / "missing.png", broken]
        expected = self.score()
        result = score(self.open(on_error="nan"), pictures)
        assert sorted(result.errors) == [2, 3, 4, 6], f"not 2, 3, 4 and 6 fail, but {result.errors}"
        misnamed = {row: reason for row, reason in result.errors.items() if f"[{row}]" not in reason}
        assert not misnamed, f"errors name other rows: {misnamed}"
        for row in (0, 1, 5, 7):
            alike = _alike([result.scores[row]], [expected.scores[row]], self.within)
            assert alike, f"the score of row {row} moves"

    def check_empty_captions(self) -> None:
        if "empty" in self.metric.Options.without:
            return
        captions = ["", "a", " \n"]
        references = [["a", ""], ["b"], [""]]
        result = score(self.open(empty="score"), self.images, range(3), (captions, references))
        assert all(map(math.isfinite, result.scores)), f"'', 'a' and ' ' score {result.scores}"
        assert result.counts.empty == 2, f"{result.counts.empty} of two are counted"

    def check_options(self) -> None:
        metric = self.open()
        columns = self.metric.ROW.names[len(COMMON) :]
        result = self.score()
        rows = self.rows(metric).select(columns)
        for option in self.metric.Options.describe().values():
            alternative = _alternative(option, self.options.get(option.name, option.default))
            if option.name in _OF_A_RUN or alternative is None:
                continue
            try:
                changed = self.open(**{option.name: alternative})
                changed = prepared(changed, samples(changed, self.images))
            except ValueError:  # the value does not fit the other options
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                moves = not close(score(changed, self.images), result, self.within)
            equal = rows.equals(self.rows(changed).select(columns))
            stamped = changed.stamp() != metric.stamp()
            signed = changed.signature() != metric.signature()
            assert stamped or equal, f"{option.name} changes rows: it needs encodes=True"
            assert signed or not moves, f"{option.name} moves scores: it needs sign=..."


def _alternative(option: OptionDescription, value: Any) -> Any:
    """Another value of an option than this one; None where none is known."""
    for choice in option.choices:
        if choice != value:
            return choice
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return 2 * value + 1
    return None


CHECKS = tuple(name for name in vars(Contract) if name.startswith("check_"))
"""The names of all checks."""
