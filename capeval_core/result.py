"""The result of every metric: scores and parts per caption, their mean, intervals, tests and signature."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core import statistics
from capeval_core.errors import counted, warn
from capeval_core.registry import METRICS, current_signature, metric_class, next_longer_reader, tokens_read

if TYPE_CHECKING:
    import pandas as pd

    from capeval_core.metric import CaptionMetric


_WARNED_SHARE = 0.05
"""Share of truncated words above which there is a warning, and advice."""


@dataclass(frozen=True)
class Values:
    """The scores that a metric's formula makes of rows.

    scores: (n,) float64, NaN where a row failed. parts: named components, (n,) each.
    summands: (n, k) what each row adds to the sums that the metric's `formula` takes, if it has one.
    range: what a score can be at the metric's options; None: its `range`.
    rows: (n,) positions of the rows that have a score, of a metric that chooses; None: all have one.
    """

    scores: NDArray[np.float64]
    parts: Mapping[str, Sequence[Any] | NDArray[Any]]
    _: KW_ONLY
    summands: NDArray[np.float64] | None = None
    range: tuple[float, float] | None = None
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Counts:
    """Numbers of captions: all, failed, truncated (itself or a reference), empty."""

    captions: int
    failed: int = 0
    truncated: int = 0
    empty: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Scores of a set of captions, in input order.

    metric: name of the metric, e.g. `pacs`. key: name of its value, e.g. `pac_s`.
    scores: one per caption, NaN where scoring failed; `errors` says why by index.
    parts: every component that the paper names, a value per caption. groups: key of each caption's image.
    signature: everything that the numbers depend on; two results are comparable if it is equal.
    relative: why scores can be compared within this set only, without interval() and compare(); else None.
    summands: of a corpus metric such as BLEU, what each caption adds to the sums of its `formula`.
    range: least and greatest score by the metric's options, which intervals keep within.
    higher_is_better: whether a higher score is a better one, for `best` and `worst`.
    reads: how many tokens of a caption the opened weights read, for `truncation_note`; 0: unknown.
    marked: which captions are truncated or empty, by the name of the count; None: read from a file.
    source: with the evidence, the metric, its samples and rows, which a bundle is made of.
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
    source: Any = field(default=None, repr=False, compare=False)
    relative: str | None = None
    summands: list[list[float]] | None = field(default=None, repr=False)
    formula: statistics.CorpusFormula | None = field(default=None, repr=False)
    range: tuple[float, float] = field(default=statistics.UNBOUNDED, repr=False)
    higher_is_better: bool = field(default=True, repr=False, compare=False)
    reads: int = field(default=0, repr=False, compare=False)
    marked: Mapping[str, frozenset[int]] | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        """Number of captions; of images, where a metric chooses among the captions of each."""
        return len(self.scores)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The values of one caption: `index`, its score under the metric's key, parts, `group` and `error`.

        >>> import capeval_core
        >>> result = capeval_core.load("bleu").score(["a red dog runs"], references=[["a red dog runs off"]])
        >>> result[0]["index"], round(result[0]["bleu_4"], 3), result[-1]["error"]
        (0, 0.779, None)
        """
        number = self._number(index, "result[{}]", -len(self)) % len(self)
        row: dict[str, Any] = {"index": number, self.key: self.scores[number]}
        for name, values in self.parts.items():
            row[name] = values[number]
        row["group"] = self.groups[number]
        row["error"] = self.errors.get(number)
        return row

    def _number(self, index: object, place: str, least: int = 0) -> int:
        """The index of a caption as an int; TypeError or IndexError if it is not one."""
        # A slice would look as if several captions came out; `by` and `to_pandas` are for that.
        if not isinstance(index, (int, np.integer)) or isinstance(index, bool):
            raise TypeError(f"{place.format(repr(index))}: expected the number of a caption")
        if not least <= index < len(self):
            raise IndexError(f"{place.format(index)}: there are {len(self)} captions, counted from 0")
        return int(index)

    def worst(self, n: int = 10) -> list[dict[str, Any]]:
        """The `n` captions with the worst scores, worst first, each as `result[i]`; none that failed."""
        return self._ordered(n, worst_first=True)

    def best(self, n: int = 10) -> list[dict[str, Any]]:
        """The `n` captions with the best scores, best first, each as `result[i]`."""
        return self._ordered(n, worst_first=False)

    def to_pandas(self) -> pd.DataFrame:
        """A row per caption, by its index: the score under the metric's key, parts, `group` and `error`.

        >>> import capeval_core
        >>> result = capeval_core.load("bleu").score(["a dog", "a cat"], references=[["a dog"], ["a cow"]])
        >>> frame = result.to_pandas()
        >>> list(frame.index), float(frame["bleu_4"].max()) == result.best(1)[0]["bleu_4"]
        ([0, 1], True)
        """
        import pandas as pd

        errors = list(map(self.errors.get, range(len(self))))
        columns = {self.key: self.scores, **self.parts, "group": self.groups, "error": errors}
        # A Series each, so that a column of lists stays one column.
        frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
        return frame.rename_axis("index")

    def _ordered(self, n: int, *, worst_first: bool) -> list[dict[str, Any]]:
        scored = np.flatnonzero(np.isfinite(self.scores)).tolist()
        # The worst first are the lowest first, unless lower is better.
        highest_first = self.higher_is_better is not worst_first
        # Stable: of equal scores the earlier caption comes first, either way.
        scored.sort(key=self.scores.__getitem__, reverse=highest_first)
        return [self[index] for index in scored[: max(n, 0)]]

    def _repr_html_(self) -> str:
        from capeval_core.reports.html import notebook

        return notebook(self)

    @staticmethod
    def of(metric: CaptionMetric, values: Values, rows: pa.Table) -> Result:
        """The result of a metric's values and rows."""
        signature = metric.signature(rows)  # of all rows, also where only some have a score
        if values.rows is not None:
            rows = rows.take(pa.array(values.rows, pa.int64()))
        errors: dict[int, str] = {}
        reasons = rows["error"].to_pylist()
        for index, (score, reason) in enumerate(zip(values.scores, reasons, strict=True)):
            if not np.isfinite(score):
                errors[index] = reason or "the score is not a finite number"
        parts = {}
        for name, part in parts_of(values, rows).items():
            parts[name] = part.tolist() if isinstance(part, np.ndarray) else list(part)
        marked = {}
        for name in ("truncated", "empty"):
            indices = np.flatnonzero(rows[name].to_numpy())
            marked[name] = frozenset(indices.tolist())
        reads = 0
        if "coverage" in parts:
            reads = metric.reads or tokens_read(metric.name)
        return Result(
            metric=metric.name,
            key=metric.key,
            scores=[float(score) for score in values.scores],
            parts=parts,
            groups=rows["group"].to_pylist(),
            signature=signature,
            counts=_counts(len(rows), errors, marked),
            errors=errors,
            relative=metric.relative,
            summands=None if values.summands is None else values.summands.tolist(),
            formula=metric.formula,
            range=values.range or metric.range,
            higher_is_better=metric.higher_is_better,
            reads=reads,
            marked=marked,
        )

    def __repr__(self) -> str:
        counts = f"{counted(self.counts.captions, 'caption')}, {self.counts.failed:,} failed"
        return f"Result({self.key}={self.mean:.4f}, {counts}, signature={self.signature!r})"

    @property
    def mean(self) -> float:
        """The number to report: mean of the finite scores, or a corpus metric's formula; NaN without any."""
        return self.numbers[self.key]

    @property
    def numbers(self) -> dict[str, float]:
        """The number to report by its key, and further ones of a corpus metric: BLEU-4, then BLEU-1 to 3."""
        if self.formula is not None:
            return self.formula.values(np.asarray(self.summands, dtype=np.float64))
        return {self.key: _finite_mean(self.scores)}

    @property
    def corpus(self) -> dict[str, float]:
        """`numbers`, and of a metric whose number is a mean also the means of its parts, by their names."""
        if self.formula is not None:
            return self.numbers
        parts: dict[str, float] = {}
        for name, values in self.parts.items():
            # Other parts are texts, or lists of one number per reference or region.
            if all(isinstance(value, (int, float)) for value in values):
                parts[name] = _finite_mean(values)
        return {**parts, **self.numbers}

    def by(self, labels: Sequence[str]) -> dict[str, Result]:
        """The result of each group of captions, such as nocaps' domains, in the order of first labels.

        labels: one per caption. Each result is a part of this one, with the same signature: a corpus metric's
        number is that of the group's own sums, and statistics of a corpus, such as CIDEr's document
        frequencies, stay those of the whole set. Evidence is left out.

        Raises:
            ValueError: not as many labels as captions; a result from a file with truncated or empty captions,
                since it does not say which.

        >>> import capeval_core
        >>> captions, references = ["a dog", "a cat", "a cow"], [["a dog"], ["a cat"], ["two pigs"]]
        >>> result = capeval_core.load("rougel").score(captions, references=references)
        >>> {label: group.mean for label, group in result.by(["in", "out", "out"]).items()}
        {'in': 1.0, 'out': 0.5}
        """
        if len(labels) != len(self):
            raise ValueError(f"len(labels)={len(labels)} but there are {len(self)} captions: give each one")
        # A file holds how many captions are truncated or empty, not which.
        if self.marked is None and self.counts.truncated + self.counts.empty:
            raise ValueError("by(): a file does not say which captions are truncated or empty: score again")
        groups: dict[str, list[int]] = {}
        for index, label in enumerate(labels):
            groups.setdefault(label, []).append(index)
        return {label: self._part(indices) for label, indices in groups.items()}

    def _part(self, indices: Sequence[int]) -> Result:
        """The result of some captions."""
        errors = {}
        for place, index in enumerate(indices):
            if index in self.errors:
                errors[place] = self.errors[index]
        marked = {}
        for name, captions in (self.marked or {}).items():
            marked[name] = frozenset(place for place, index in enumerate(indices) if index in captions)

        def at_indices(column: Sequence[Any]) -> list[Any]:
            return [column[index] for index in indices]

        parts = {}
        for name, values in self.parts.items():
            parts[name] = at_indices(values)
        return replace(
            self,
            scores=at_indices(self.scores),
            parts=parts,
            groups=at_indices(self.groups),
            summands=None if self.summands is None else at_indices(self.summands),
            counts=_counts(len(indices), errors, marked),
            errors=errors,
            marked=marked,
            evidence=None,
            source=None,
        )

    def interval(self, level: float = 0.95) -> statistics.Interval:
        """Confidence interval of the mean over images like these, each with all its captions.

        A skewness-corrected interval of Student's t, made for few images (see `capeval_core.statistics`),
        within the metric's range. Corpus statistics (idf, normalisation) are held fixed.

        Raises:
            ValueError: fewer than five images have a score, all have the same one, scores are relative to
                their set, or BLEU of captions without any four words in a row of a reference.
        """
        return statistics.mean_interval(self._clusters("interval()"), level=level)

    def compare(self, other: Result, level: float = 0.95) -> statistics.Comparison:
        """Paired test of this system minus another one on the same images; see `Comparison.by_image`, too.

        Raises:
            ValueError: the signatures differ, or scores are relative to their set.
            NoTestError: fewer than five common images, or BLEU without four words in a row of a reference.
        """
        if not isinstance(other, Result):
            raise TypeError(f"compare: expected another Result, found a {type(other).__name__}")
        # First: where a metric has no test, whether the results are comparable is of no use.
        self._clusters("compare()")
        # Files of earlier versions state options at their defaults: the same settings, in other words.
        if self.signature != other.signature:
            _check_settings(current_signature(self.signature), current_signature(other.signature))
        return self.compare_within_run(other, level)

    def compare_within_run(self, other: Result, level: float = 0.95) -> statistics.Comparison:
        """`compare` for another system of one run, whose signature may differ in the number of references."""
        first = self._clusters("compare()")
        second = other._clusters("compare()")
        comparison = statistics.paired_comparison(first, second, level=level)
        return replace(comparison, higher_is_better=self.higher_is_better)

    def explain(self, index: int) -> Mapping[str, Any]:
        """The evidence of the score of caption `index`; a ValueError if it was not kept, or an IndexError."""
        number = self._number(index, "explain({})")
        if self.evidence is None:
            raise ValueError(f"explain() needs the evidence: load({self.metric!r}, ..., evidence=True)")
        return self.evidence[number]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the evidence, in JSON's types; NaN and infinities become None."""
        content = {
            "metric": self.metric,
            "key": self.key,
            "mean": self.mean,
            "signature": self.signature,
            "counts": vars(self.counts),
            "scores": self.scores,
            "parts": self.parts,
            "groups": self.groups,
            "errors": {str(index): reason for index, reason in self.errors.items()},
            "relative": self.relative,
            "range": self.range,
            "higher_is_better": self.higher_is_better,
            "reads": self.reads,
        }
        if self.summands is not None:
            content["summands"] = self.summands
        return {name: plain(value) for name, value in content.items()}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Result:
        """A result from what `to_dict` gave, e.g. a file of `capeval score --json`.

        Scores that were NaN or infinite come back as NaN: those captions count as failed. A KeyError,
        TypeError or ValueError if something is missing, or does not fit the rest.
        """
        formula = None
        if saved["metric"] in METRICS or saved.get("summands") is not None:
            # A mean needs nothing of its metric, whose package need not be installed.
            formula = metric_class(saved["metric"]).formula
        # JSON has no NaN: a caption without a score is null there.
        scores = _numbers(saved["scores"])
        if not all(type(score) in (int, float) for score in scores):
            raise TypeError("scores should be numbers, or null")
        columns: dict[str, Any] = {"scores": scores, "groups": list(saved["groups"])}
        if formula is not None:
            columns["summands"] = list(map(_numbers, saved["summands"]))
            if not set(map(len, columns["summands"])) <= {len(formula.sums)}:
                raise ValueError(f"summands should be {len(formula.sums)} numbers per caption")
        parts: dict[str, list[Any]] = {}
        for name, part in dict(saved["parts"]).items():
            parts[name] = _numbers(part)
        lengths = {name: len(column) for name, column in (columns | parts).items()}
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise ValueError(f"it has {listed}, which should have the same length")
        # `type` and not isinstance: True would count as 1.
        counts_are_integers = set(map(type, dict(saved["counts"]).values())) <= {int}
        if not counts_are_integers or not set(map(type, columns["groups"])) <= {str}:
            raise TypeError("groups should be texts, counts whole numbers")
        # Infinity is null in JSON, and earlier files have no range.
        low, high = saved.get("range") or (None, None)
        return Result(
            metric=str(saved["metric"]),
            key=str(saved["key"]),
            signature=str(saved["signature"]),
            **columns,
            parts=parts,
            counts=Counts(**saved["counts"]),
            # JSON's keys are texts.
            errors={int(index): reason for index, reason in dict(saved["errors"]).items()},
            relative=saved.get("relative"),
            formula=formula,
            range=(-math.inf if low is None else float(low), math.inf if high is None else float(high)),
            higher_is_better=bool(saved.get("higher_is_better", True)),
            reads=int(saved.get("reads", tokens_read(saved["metric"]))),
        )

    @property
    def zero_reason(self) -> str | None:
        """Why a corpus number is zero, such as that no caption has four words in a row; None if it is not."""
        return None if self.formula is None else self._clusters("zero_reason").zero_reason

    @property
    def truncated_share(self) -> float:
        """The share of the captions' words that was not read, from 0 to 1."""
        return 1 - float(np.mean(self.parts.get("coverage") or [1.0]))

    @property
    def truncation_note(self) -> str:
        """The share of words that was not read, above 5% with a metric that reads more; "" if all were."""
        share = self.truncated_share
        if share < 0.005:
            return ""
        text = f"{share:.0%} of words were truncated"
        longer = next_longer_reader(self.reads) if self.reads else None
        if share > _WARNED_SHARE and longer is not None:
            name, tokens = longer
            text += f": {name} reads {tokens} tokens"
        return text

    @property
    def visual(self) -> str:
        """The kind of thing that its captions describe: "image" or "video"."""
        return "video" if "media:video" in self.signature.split("|")[:2] else "image"

    def _clusters(self, method: str) -> statistics.Clusters:
        if self.relative is not None:
            raise ValueError(f"{method} is undefined for {self.metric}: {self.relative}")
        summands = None if self.formula is None else np.asarray(self.summands, dtype=np.float64)
        return statistics.Clusters.of(
            self.scores, self.groups, self.formula, summands, self.visual, self.range
        )


def _check_settings(first: str, second: str) -> None:
    """Refuse to compare results of these two signatures, unless they are equal."""
    if first == second:
        return
    fix = "score both systems with the same settings"
    fields = set(first.split("|")) ^ set(second.split("|"))
    if all(field.startswith("statistics:") for field in fields):
        fix = "each was weighed by its own texts: score both in one command, or with equal statistics"
    problem = "these results are not comparable, their signatures differ"
    raise ValueError(f"{problem}:\n    {first}\n    {second}\n{fix}")


def _counts(captions: int, errors: Mapping[int, str], marked: Mapping[str, frozenset[int]]) -> Counts:
    """The numbers of captions, of those that failed, and of those with each mark."""
    truncated = len(marked.get("truncated", ()))
    empty = len(marked.get("empty", ()))
    return Counts(captions, failed=len(errors), truncated=truncated, empty=empty)


def _finite_mean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN without any."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return float(np.mean(finite)) if len(finite) else math.nan


def parts_of(values: Values, rows: pa.Table) -> dict[str, Any]:
    """The parts of scores, and the share of each caption's words that was read, where rows say it."""
    parts = dict(values.parts)
    if "coverage" in rows.column_names:
        parts["coverage"] = rows["coverage"].to_numpy()
    return parts


def warn_of(result: Result) -> None:
    """Warn of captions that are partly unread, and of a number that its formula's constants make."""
    if result.truncated_share > _WARNED_SHARE:
        warn(f"{result.metric}: {result.truncation_note}")
    # Of few captions a zero is nothing odd, and no interval is expected of them.
    if result.zero_reason is not None and len(result) >= statistics.LEAST_IMAGES:
        consequence = f"{result.key}={result.mean:.2g} is effectively 0, so no interval or test is available"
        warn(f"{result.metric}: {result.zero_reason}: {consequence}")


def plain(value: object) -> Any:
    """`value` in JSON's types: numpy's become Python's, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(content: object) -> str:
    """`content` as a file of JSON, without the tokens NaN and Infinity, which strict readers refuse."""
    return json.dumps(plain(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _numbers(saved: Sequence[Any]) -> list[Any]:
    """A component as it was: in a list of numbers, `plain` left None where there was NaN or an infinity."""
    # Other lists stay as they are: None is a value of theirs, such as a caption without a phrase.
    if not set(map(type, saved)) <= {int, float, type(None)}:
        return list(saved)
    numbers = []
    for value in saved:
        is_finite = value is not None and math.isfinite(value)
        numbers.append(value if is_finite else math.nan)
    return numbers
