"""What comes out of every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capeval_core.statistics import Clusters, Comparison, Interval, bootstrap_interval, paired_comparison

RESAMPLES = 2000


@dataclass(frozen=True)
class Counts:
    """How many captions there are, and how many of them are special.

    captions: all. failed: without a finite score (see `Result.errors`). truncated: longer than the text
    encoder reads, counting a caption's references. empty: scored although they are empty.
    """

    captions: int
    failed: int = 0
    truncated: int = 0
    empty: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Scores of a set of captions.

    metric: name of the metric, e.g. `pacs`. key: name of its value, e.g. `pac_s`.
    scores: one per caption, in input order; NaN where scoring failed.
    parts: every component that the paper names, each one value per caption.
    groups: content key of each caption's picture.
    signature: everything that the numbers depend on; two results are comparable if it is equal.
    counts: failures, truncated and empty captions.
    errors: index of each failed caption and why.
    relative: why a score has a meaning within this very set only, so that there is no interval and no
        comparison; None for metrics whose scores stand by themselves.
    """

    metric: str
    key: str
    scores: list[float]
    parts: dict[str, list[Any]]
    groups: list[str]
    signature: str
    counts: Counts
    errors: dict[int, str]
    evidence: Mapping[int, Mapping[str, Any]] | None = field(default=None, repr=False)
    relative: str | None = None

    def __repr__(self) -> str:
        found = (
            f"{self.key}={self.mean:.4f}, {self.counts.captions:,} captions, {self.counts.failed:,} failed"
        )
        return f"Result({found}, signature={self.signature!r})"

    @property
    def mean(self) -> float:
        """The number to report: mean of the finite scores, NaN if there are none."""
        finite = [score for score in self.scores if np.isfinite(score)]
        return float(np.mean(finite)) if finite else float("nan")

    def interval(self, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
        """Bootstrap interval of the mean: pictures are resampled with all their captions.

        Corpus statistics (idf, normalisation), where a metric has them, are held fixed.

        Raises:
            ValueError: fewer than two pictures, or scores that are relative to their set.
        """
        self._refuse_relative("interval()")
        return bootstrap_interval(self._clusters(), level=level, resamples=resamples, seed=seed)

    def compare(
        self, other: Result, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> Comparison:
        """Paired test of this system against another one on the same pictures.

        Raises:
            ValueError: the signatures differ (the numbers are not comparable), scores that are relative to
                their set, or no common pictures.
        """
        if not isinstance(other, Result):
            raise TypeError(f"compare: expected another Result, found a {type(other).__name__}")
        self._refuse_relative("compare()")
        if self.signature != other.signature:
            raise ValueError(
                "these results are not comparable, their signatures differ:\n"
                f"    {self.signature}\n    {other.signature}\nscore both systems with the same settings"
            )
        return paired_comparison(
            self._clusters(), other._clusters(), level=level, resamples=resamples, seed=seed
        )

    def explain(self, index: int) -> Mapping[str, Any]:
        """Where caption `index`'s score comes from.

        Raises:
            ValueError: the evidence was not kept. IndexError: no such caption.
        """
        if not isinstance(index, int):
            raise TypeError(f"explain({index!r}): expected the number of a caption")
        if not 0 <= index < len(self.scores):
            raise IndexError(f"explain({index}): there are {len(self.scores)} captions, counted from 0")
        if self.evidence is None:
            raise ValueError(f"explain() needs the evidence: load({self.metric!r}, ..., evidence=True)")
        return self.evidence[index]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the evidence, in JSON's types; NaN becomes None."""
        return {
            "metric": self.metric,
            "key": self.key,
            "mean": plain(self.mean),
            "signature": self.signature,
            "counts": dict(vars(self.counts)),
            "scores": plain(self.scores),
            "parts": plain(self.parts),
            "groups": list(self.groups),
            "errors": {str(index): reason for index, reason in self.errors.items()},
            "relative": self.relative,
        }

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Result:
        """A result from what `to_dict` gave, e.g. a file of `capeval score --json`.

        Raises:
            KeyError, TypeError, ValueError: something is missing, or does not fit the rest.
        """
        columns = {"scores": saved["scores"], "groups": saved["groups"], **saved["parts"]}
        if len({len(column) for column in columns.values()}) != 1:
            lengths = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
            raise ValueError(f"it has {lengths}, which should be equally many")
        if not all(score is None or isinstance(score, (int, float)) for score in saved["scores"]):
            raise ValueError("some score is not a number")
        return Result(
            metric=saved["metric"],
            key=saved["key"],
            scores=_numbers(saved["scores"]),
            parts={name: _numbers(part) for name, part in saved["parts"].items()},
            groups=list(saved["groups"]),
            signature=saved["signature"],
            counts=Counts(**saved["counts"]),
            errors={int(index): reason for index, reason in saved["errors"].items()},
            relative=saved.get("relative"),
        )

    def _refuse_relative(self, asked: str) -> None:
        if self.relative is not None:
            raise ValueError(f"{asked} says nothing of {self.metric}: {self.relative}")

    def _clusters(self) -> Clusters:
        return Clusters.of(self.scores, self.groups)


def plain(value: Any) -> Any:
    """`value` in JSON's types: NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _numbers(saved: Sequence[Any]) -> list[Any]:
    """A component as it was: in a list of numbers, `plain` left None where there was NaN."""
    numbers = all(isinstance(value, (int, float, type(None))) for value in saved)
    return [float("nan") if numbers and value is None else value for value in saved]
