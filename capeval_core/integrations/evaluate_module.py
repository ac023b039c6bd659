"""Metrics as modules of Hugging Face `evaluate`: an adapter, it holds no formula.

`add_batch` checks captions and images and encodes them at once. Only rows of plain numbers are kept, so no
image enters evaluate's Arrow cache; `compute` combines the rows of all batches and all processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import evaluate
import pyarrow as pa
from datasets import Features, Value

from capeval_core.description import describe_metric
from capeval_core.errors import Problems, did_you_mean, naming, warn
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.metric import CaptionMetric
from capeval_core.options import describe_options
from capeval_core.project import LICENCE, address
from capeval_core.registry import MEDIA_VARIANTS, media_of, metric_class
from capeval_core.result import stands_for_zero

_ONE_DAY = 86_400.0  # evaluate's own 100 seconds are gone while the last shard is encoded
_RANK_STRIDE = 2**40  # rows of process r have the indices from r times this: unique, and sorted by process
_DEFAULT = "default"  # evaluate's name of the configuration that nobody names
_INPUTS = ("predictions", *ARGUMENTS, "references")
_OWN_KEYWORDS = inspect.signature(evaluate.EvaluationModule.__init__).parameters.keys()


class MetricModule(evaluate.EvaluationModule):  # type: ignore[misc]
    """A caption metric as `evaluate.load` gives it; a module file subclasses it and names its metric.

    Args:
        config_name: the medium, for metrics that exist for several: `evaluate.load("metrics/pacs", "video")`;
            None or "default": the metric's first.
        timeout: seconds that the processes of a distributed evaluation wait for each other.
        **keywords: evaluate's own (`num_process`, `experiment_id`, ...) and the metric's options (`weights`,
            `device`, ...). The weights are opened now.

    Raises:
        TypeError, ValueError: an unknown configuration or keyword, or a wrong value of an option.
    """

    metric_name: ClassVar[str]
    """As in `capeval_core.list_metrics()`."""

    def __init__(self, config_name: str | None = None, *, timeout: float = _ONE_DAY, **keywords: Any) -> None:
        own = {name: keywords.pop(name) for name in _OWN_KEYWORDS & keywords.keys()}
        self.metric_type = self.configuration(config_name)
        self.options = self.metric_type.Options.of(self.metric_name, keywords)
        if self.options.evidence:
            raise ValueError("evidence=True: evaluate keeps numbers only, use capeval_core.load(...)")
        self._warned: set[str] = set()
        self._rows_added = 0
        super().__init__(config_name, timeout=timeout, **own)
        # Opened now: wrong weights must not wait for the end of an epoch of training.
        self._prepared = self.metric

    @classmethod
    def configuration(cls, name: str | None = None) -> type[CaptionMetric]:
        """The class of the metric behind a configuration of this module; ValueError if it has no such."""
        if name in (None, _DEFAULT):
            return metric_class(cls.metric_name)
        variants = [medium for metric, medium in MEDIA_VARIANTS if metric == cls.metric_name]
        if name in variants:
            return metric_class(cls.metric_name, name)
        hint = did_you_mean(str(name), variants) or f"; did you mean weights={name!r}?"
        known = ", ".join([_DEFAULT, *variants])
        found = f"config_name={name!r}: {cls.metric_name} has no such configuration"
        raise ValueError(f"{found}{hint} (known: {known})")

    @cached_property
    def metric(self) -> CaptionMetric:
        """The metric behind this module."""
        return self.metric_type(self.options)

    @property
    def inputs(self) -> dict[str, str]:
        """What a user passes to `compute` and `add_batch`; `features` are the rows that evaluate keeps."""
        return dict(describe_metric(self.metric_type).inputs)

    def _info(self) -> evaluate.EvaluationModuleInfo:
        metric = self.metric_type
        about = describe_metric(metric)
        inputs = {"Inputs:": [f"{name}: {meaning}" for name, meaning in about.inputs.items()]}
        example = {"Example:": _example(metric)}
        result = [
            f"{metric.key}: mean over all {about.mean}.",
            "with per_caption=True also per_caption, signature, and counts: captions, failed, truncated "
            "(longer than the text encoder reads, references too), empty.",
        ]
        options = [
            f"{option.name} ({option.type}, default {option.default!r}): {option.help}"
            for option in describe_options(metric.Options)
            if option.name != "evidence"
        ]
        usage = {"Result:": result, **example, "Options, keywords of `evaluate.load`:": options}
        # evaluate wants a column for each input by its name: the metric's row under the first, nulls else.
        columns = {name: Value("null") for name in about.inputs if name in _INPUTS}
        columns["predictions"] = dict(Features.from_arrow_schema(metric.ROW))
        info = evaluate.EvaluationModuleInfo(
            description=f"{about}\n\n{_sections({**inputs, **example})}",
            citation=about.bibtex or metric.paper,
            inputs_description=_sections({**inputs, **usage}),
            features=Features(columns),
            homepage=address() or "",
            license=f"{LICENCE}; weights {about.weights}: {about.licence}",
            codebase_urls=list(filter(None, [address()])),
            reference_urls=[about.address],
        )
        # Set afterwards: evaluate allows a format for flat features only, which matters for numpy, not here.
        info.format = "arrow"
        return info

    def add(
        self,
        *,
        prediction: str | Sequence[str] | None = None,
        reference: Sequence[str] | str | None = None,
        **others: Any,
    ) -> None:
        """Add one caption (or list of candidates) with its `image` or `video`, also under plural names.

        Many captions are faster in one `add_batch`.
        """
        given = {"prediction": prediction, "reference": reference, **others}
        singular = {name: name[:-1] for name in _INPUTS}
        for name, one in singular.items():
            if given.get(one) is not None and given.get(name) is not None:
                raise TypeError(f"add: pass {one} or {name}, not both")
        known = [one for name, one in singular.items() if name in self._taken]
        self._refuse_unknown("add", given, known, [*known, *self._taken, "reference"])
        batch: dict[str, Any] = {}
        for name, one in singular.items():
            value = given.get(name) if given.get(one) is None else given[one]
            if name in self.features or value is not None:
                batch[name] = [value]
        self.add_batch(**batch)

    def add_batch(
        self,
        *,
        predictions: Sequence[str] | Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str] | str] | None = None,
        **others: Any,
    ) -> None:
        """Check and encode captions with their `images` or `videos` (and references) for `compute`.

        Raises:
            ValueError, TypeError: everything that is wrong with the batch, of which nothing is added then; or
                the metric needs statistics of the whole corpus: pass `evaluate.load(..., statistics=...)`.
        """
        given = {"predictions": predictions, "references": references, **others}
        self._refuse_unknown("add_batch", given, self._taken, self._taken)
        self._add(given)

    def compute(
        self,
        *,
        predictions: Sequence[str] | Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str] | str] | None = None,
        per_caption: bool = False,
        **others: Any,
    ) -> dict[str, Any] | None:
        """Score what is passed here (`images` or `videos`, too) with all that was added before; start anew.

        Returns:
            The metric's own key and the mean. With `per_caption=True` also `per_caption`, lists with one
            entry per caption in the order of adding (process by process with `num_process`): the score,
            its parts, and `errors` (None, or why a caption has no score); `signature` and `counts`.
            None on processes other than the first.

        Raises:
            ValueError, TypeError: everything that is wrong with the input; or there is nothing to score.
        """
        given = {"predictions": predictions, "references": references, **others}
        known = [*self._taken, "per_caption"]
        self._refuse_unknown("compute", given, known, known)
        if any(given.get(name) is not None for name in self.features):
            self._add(given, whole=self.writer is None and self.num_process == 1)
        self._open_writer()  # a process that never added takes part with no rows
        self.metric.flush()
        try:
            output: dict[str, Any] | None = super().compute(per_caption=per_caption)
        except pa.ArrowInvalid as error:
            if self.num_process == 1:
                raise
            found = f"the rows of another process cannot be read ({error})"
            raise ValueError(f"{found}: it ended before its compute()") from error
        if output == {}:
            raise ValueError("predictions is empty: there is nothing to score")
        return output

    def _compute(self, *, predictions: pa.ChunkedArray, per_caption: bool, **_: Any) -> dict[str, Any]:
        """Combine the rows of all processes, which evaluate hands over under the name of the first input."""
        if not len(predictions):
            return {}  # complained about once evaluate has cleaned up
        result = self._prepared.combine(pa.Table.from_struct_array(predictions))
        if result.counts.failed:
            first, reason = next(iter(result.errors.items()))
            warn(
                f"{result.metric}: {result.counts.failed:,} of {result.counts.captions:,} captions have no "
                f"score and are left out of the mean; the first is predictions[{first}] ({reason}), "
                "per_caption=True returns all"
            )
        if message := stands_for_zero(result):
            warn(message)
        output: dict[str, Any] = dict(result.numbers)
        if per_caption:
            errors = [result.errors.get(i) for i in range(len(result.scores))]
            output["per_caption"] = {result.key: result.scores, **result.parts, "errors": errors}
            output |= {"signature": result.signature, "counts": dict(vars(result.counts))}
        return output

    def _add(self, given: Mapping[str, Any], *, whole: bool = False) -> None:
        """Check, encode and store rows; `whole`: they are all that `compute` combines."""
        metric = self.metric_type
        for name, value in given.items():
            if name not in self.features and value is not None and name not in self._warned:
                self._warned.add(name)
                why = "needs no references: they" if name == "references" else f"compares texts alone: {name}"
                warn(f"{metric.name} {why} are ignored")
        visuals = given.get(argument_of(metric.media) or "")
        references = given.get("references") if metric.needs_references else None
        needed = [name for name in self.features if name != "references" or references is not None]
        if all(_has_no_rows(given.get(name)) for name in needed):
            self._open_writer()
            return
        with naming({"captions": "predictions"}):
            samples = self.metric.check(given.get("predictions"), visuals, references)
        self._prepared = opened = self.metric.prepared(samples) if whole else self.metric
        opened.check_separable(opened.options, scores=False)
        self._open_writer()  # here the processes meet, and encoding, which takes its time, comes after
        rows = opened.encode_all(self._numbered(samples))
        columns = {name: pa.nulls(len(rows)) for name in self.features}
        table = pa.table({**columns, "predictions": rows.to_struct_array()})
        # Single rows are gathered by the writer: one record batch each would be larger than its numbers.
        (self.writer.write_row if len(rows) == 1 else self.writer.write_table)(table)

    def _open_writer(self) -> None:
        if self.writer is None:
            self.selected_feature_format = self.features
            self._init_writer()
            self._rows_added = 0

    def _numbered(self, samples: Samples) -> Samples:
        """The batch with its numbers among all that was added, for rows and late messages."""
        start = len(self)
        of_process = f" of process {self.process_id}" if self.process_id else ""
        numbers = [self._rows_added + i for i in samples.places]
        self._rows_added = numbers[-1] + 1
        argument = argument_of(self.metric_type.media) or "references"
        named = zip(numbers, samples.images, strict=True)
        return replace(
            samples,
            indices=[self.process_id * _RANK_STRIDE + start + i for i in samples.indices],
            images=[visual.at(f"{argument}[{number}]{of_process}") for number, visual in named],
        )

    @property
    def _taken(self) -> list[str]:
        """The inputs of this configuration, and images for texts alone, which stand beside other metrics."""
        return [name for name in _INPUTS if name in self.features or not self.metric_type.media]

    def _refuse_unknown(
        self, method: str, given: Mapping[str, Any], known: Sequence[str], accepted: Sequence[str]
    ) -> None:
        """Refuse arguments that this configuration does not have; references that it does not need pass."""
        problems = Problems()
        options = [described.name for described in describe_options(type(self.options))]
        for name in given:
            medium = medium_of(name)
            if name in accepted or name == "references":
                continue
            if name in options:
                fix = f": it is an option of the metric, pass it to evaluate.load(..., {name}=...)"
            elif medium in media_of(self.metric_name):
                configuration = medium if (self.metric_name, medium) in MEDIA_VARIANTS else _DEFAULT
                fix = f": {medium}s are scored by evaluate.load(..., {configuration!r})"
            else:
                fix = f"{did_you_mean(name, known)} (arguments: {', '.join(known)})"
            problems.add(f"{self.metric_name}.{method} has no argument {name!r}{fix}", kind=TypeError)
        problems.raise_if_any()


def module(name: str, config_name: str | None = None, **keywords: Any) -> MetricModule:
    """The `evaluate` module of any metric, of another package's too; arguments are `MetricModule`'s.

    >>> from capeval_core.demo import demo_set
    >>> item = demo_set()[0]
    >>> pacs = module("pacs", weights="tiny")
    >>> pacs.compute(predictions=[item.good], images=[item.image])
    {'pac_s': ...}
    """
    metric_class(name)
    return type(name, (MetricModule,), {"metric_name": name})(config_name, **keywords)  # type: ignore[no-any-return]


def _has_no_rows(value: Any) -> bool:
    if isinstance(value, (str, bytes, Mapping)):
        return False
    try:
        return len(value) == 0
    except TypeError:  # no length at all, as a generator, None or a 0-d array
        return False


def _example(metric: type[CaptionMetric]) -> list[str]:
    """Lines that run wherever the package is installed, as a doctest with `ELLIPSIS`."""
    values = {
        "predictions": "[item.good, item.unrelated, *item.references]" if metric.relative else "item.good",
        "images": "item.image",
        "videos": "[item.image, item.image]",
        "references": "item.references",
    }
    of_package = metric.__module__.startswith("capeval_core.")
    path = f'evaluate.load(capeval_core.module_path("{metric.name}")'
    path = path if of_package else f'capeval_core.module("{metric.name}"'
    configuration = "" if metric.variant is None else f', "{metric.variant}"'
    weights = "" if metric.tiny is None else ', weights="tiny"'
    inputs = [name for name in describe_metric(metric).inputs if name in values]
    return [
        ">>> import capeval_core, capeval_core.demo, evaluate",
        ">>> items = capeval_core.demo.demo_set()",
        f">>> metric = {path}{configuration}{weights})",
        ">>> metric.compute(",
        *(f"...     {name}=[{values[name]} for item in items]," for name in inputs),
        "... )",
        f"{{{metric.key!r}: ...}}",
    ]


def _sections(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n\n".join(
        "\n".join([title, *(f"    {line}" for line in lines)]) for title, lines in sections.items()
    )
