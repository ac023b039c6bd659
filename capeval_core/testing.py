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
from capeval_core.result import Result
from capeval_core.rows import COMMON

__all__ = ["check_metric", "count_forwards"]

CLOSE = 1e-6
"""How far equal scores may be apart where batches differ."""
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
_DOG, _CIRCLES = ["a dog on a lawn", "a brown dog runs", "a dog plays outside"], ["two circles"]
_SQUARE = ["a square", "a triangle", "shapes", "a drawing", "a blue square left of a green triangle"]
_MAN, _BARE = ["a man on a horse", "a horse at the sea"], "a bare string is one reference"
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
    rng, paths = np.random.default_rng(7), []
    for i, (mode, *size) in enumerate(_SHAPES):
        blocks = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        paths.append(folder / f"{i}.{'png' if i else 'jpg'}")
        blocks.resize((size[0], size[1]), Image.Resampling.NEAREST).convert(mode).save(paths[-1])
    return paths


def score(
    metric: CaptionMetric, images: Any, only: Any = range(8), texts: Any = (CAPTIONS, REFERENCES), **more: Any
) -> Result:
    """Score the captions (or only these) on their images; in pools, for a metric that chooses."""
    captions, references = texts
    pools = [[captions[i], *captions[i - 3 : i], *LAWN] for i in only]
    own: Any = pools if isinstance(metric, Reranker) else [captions[i] for i in only]
    given = shown(metric, [images[IMAGE_OF[i]] for i in only])
    given |= {"references": [references[i] for i in only]} if metric.needs_references else {}
    return metric.score(own, **given, **more)


def shown(metric: CaptionMetric, images: Sequence[Any]) -> dict[str, Any]:
    """Images as the metric takes them: as they are, as the first frames of videos, or not at all."""
    argument = argument_of(metric.media)
    videos = [[image, _SECOND] for image in images]
    return {} if argument is None else {argument: videos if argument == "videos" else list(images)}


def samples(metric: CaptionMetric, images: Sequence[Any]) -> Samples:
    """The captions, their images and references, checked."""
    visuals = next(iter(shown(metric, [images[i] for i in IMAGE_OF]).values()), None)
    return metric.check(CAPTIONS, visuals, REFERENCES if metric.needs_references else None)


def values(result: Result, rows: Sequence[int] | None = None) -> dict[str, Any]:
    """Scores, groups and parts that are no lists themselves, of all rows or these."""
    parts = {name: part for name, part in result.parts.items() if not any(isinstance(p, list) for p in part)}
    columns: dict[str, Any] = {"score": result.scores, "group": result.groups, **parts}
    chosen = range(len(result)) if rows is None else rows
    return {name: [column[row] for row in chosen] for name, column in columns.items()}


def close(result: Result, expected: Result, within: float = CLOSE) -> bool:
    """Whether all values are equal but for rounding."""
    return not moved(result, expected, within)


def moved(result: Result, expected: Result, within: float, rows: Sequence[int] | None = None) -> list[str]:
    """Names of values that are not those expected (of these rows); z-scores divide by small deviations."""
    one, other = values(result), values(expected, rows)
    within *= 100 if expected.relative else 1
    both = one.keys() & other.keys()
    unlike = {name for name in both if not _alike(one[name], other[name], within)}
    return sorted(unlike | (one.keys() ^ other.keys()))


def _alike(one: Sequence[Any], other: Sequence[Any], within: float) -> bool:
    if one and isinstance(one[0], str):
        return list(one) == list(other)
    return len(one) == len(other) and np.allclose(one, other, rtol=0, atol=within, equal_nan=True)


class Contract:
    """The checks of a metric with some options, on six images, with a folder for files."""

    def __init__(
        self, metric: type[CaptionMetric], images: Any, folder: Path, within: float = CLOSE, **options: Any
    ) -> None:
        self.metric, self.images, self.folder, self.options = metric, images, folder, options
        self.within, self.together = within, issubclass(metric, Reranker) or metric.relative is not None
        self._kept = self.open()  # an encoder is shared as long as a metric holds it
        if self._kept.options.weighs_together:
            corpus = self._kept.corpus(samples(self._kept, images))
            self.options["statistics"] = self._kept.prepare(corpus)

    def run(self, check: str) -> None:
        """One of `CHECKS`, unless the metric's scores depend on the other captions, which breaks it."""
        if not self.together or check in ("check_facts", "check_batches", "check_pickling"):
            getattr(self, check)()

    def open(self, **options: Any) -> CaptionMetric:
        chosen, taken = {"cache": FeatureCache(), **self.options, **options}, self.metric.Options.describe()
        own = {name: value for name, value in chosen.items() if name in taken or name in self.options}
        return self.metric(self.metric.Options.of(self.metric.name, own))

    def score(self, only: Sequence[int] = range(8), **options: Any) -> Result:
        return score(self.open(**options), self.images, only)

    def rows(self, metric: CaptionMetric, *shares: list[int]) -> pa.Table:
        every = samples(metric, self.images)
        parts = [every.select(share) for share in shares or [range(8)]]
        return pa.concat_tables([table for part in parts for table in metric.encode(part)])

    def check_facts(self) -> None:
        metric = self.metric
        facts = ("title", "key", "summary", "paper", "__doc__")
        wrong = {name: not str(getattr(metric, name) or "").strip() for name in facts}
        wrong |= {"paper (no address)": "http" not in metric.paper, "key": not metric.key.isidentifier()}
        wrong |= {"range": not metric.range[0] < metric.range[1]}
        wrong |= {"tiny": (metric.default_weights is None) is not (metric.tiny is None)}
        wrong |= {"ROW (see row_schema)": list(metric.ROW)[: len(COMMON)] != list(COMMON)}
        wrong |= {f"{one.name} (see column)": b"meaning" not in (one.metadata or {}) for one in metric.ROW}
        assert not any(wrong.values()), ", ".join(name for name in wrong if wrong[name])

    def check_batches(self) -> None:
        usual = self.score()
        ways: Any = {f"batch_size={size}": (range(8), {"batch_size": size}) for size in (1, 3)}
        ways["another order"] = [5, 2, 7, 0, 6, 1, 4, 3], {}
        ways |= {} if self.together else {f"captions[{row}] alone": ([row], {}) for row in range(8)}
        for way, (rows, options) in ways.items():
            result = self.score(rows, **options)
            names = moved(result, usual, self.within, rows)
            assert not names, f"{way} moves {', '.join(names)}"
            if len(rows) == 1:  # whose number is its score, by a formula of sums, too
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
        again, result = pickle.loads(pickled), score(metric, self.images)
        more = len(pickled) - len(pickle.dumps(metric.options))
        assert more < 4096, f"it takes {more:,} bytes more than its options, which are enough"
        assert again.signature() == metric.signature(), f"its signature becomes {again.signature()}"
        assert close(score(again, self.images), result, self.within), "scores differ"
        assert pickle.loads(pickle.dumps(result)) == result, "a result is another one"

    def check_rows(self) -> None:
        metric = self.open()
        empty, rows = metric.combine(metric.ROW.empty_table()), self.rows(metric)
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
        own = score(self.open(), self.images, texts=(CAPTIONS, CAPTIONS))
        outside = [one for one in own.scores + self.score().scores if not low <= one <= high]
        assert not outside, f"{outside} lie outside of {self.metric.range}"

    def check_broken_images(self) -> None:
        if not self.metric.media or "on_error" in self.metric.Options.without:
            return
        broken, pictures = self.folder / "broken.jpg", [*self.images]
        broken.write_bytes(self.images[0].read_bytes()[:300])
        unknown = Image.new("La", (40, 30))  # a mode that Pillow does not convert to RGB
        pictures[2:6] = [broken, unknown, self.folder / "missing.png", broken]
        sound, found = self.score(), score(self.open(on_error="nan"), pictures)
        assert sorted(found.errors) == [2, 3, 4, 6], f"not 2, 3, 4 and 6 fail, but {found.errors}"
        wrong = {row: why for row, why in found.errors.items() if f"[{row}]" not in why}
        assert not wrong, f"errors name other rows: {wrong}"
        for row in (0, 1, 5, 7):
            alike = _alike([found.scores[row]], [sound.scores[row]], self.within)
            assert alike, f"the score of row {row} moves"

    def check_empty_captions(self) -> None:
        if "empty" not in self.metric.Options.without:
            given = ["", "a", " \n"], [["a", ""], ["b"], [""]]
            found = score(self.open(empty="score"), self.images, range(3), given)
            assert all(map(math.isfinite, found.scores)), f"'', 'a' and ' ' score {found.scores}"
            assert found.counts.empty == 2, f"{found.counts.empty} of two are counted"

    def check_options(self) -> None:
        usual, own = self.open(), self.metric.ROW.names[len(COMMON) :]
        result, rows = self.score(), self.rows(usual).select(own)
        for option in self.metric.Options.describe().values():
            now = self.options.get(option.name, option.default)
            others = [choice for choice in option.choices if choice != now]
            if not others and isinstance(now, (bool, int, float)):
                others = [not now if isinstance(now, bool) else 2 * now + 1]
            if option.name in _OF_A_RUN or not others:
                continue
            try:
                other = self.open(**{option.name: others[0]})
                other = prepared(other, samples(other, self.images))
            except ValueError:  # which does not fit the other options
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                moves = not close(score(other, self.images), result, self.within)
            equal = rows.equals(self.rows(other).select(own))
            stamped, signed = other.stamp() != usual.stamp(), other.signature() != usual.signature()
            assert stamped or equal, f"{option.name} changes rows: it needs encodes=True"
            assert signed or not moves, f"{option.name} moves scores: it needs sign=..."


CHECKS = tuple(name for name in vars(Contract) if name.startswith("check_"))
"""The names of all checks."""
