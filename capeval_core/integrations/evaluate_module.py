"""Metrics as modules of Hugging Face `evaluate`.

`add_batch` checks captions and images and encodes them at once. Only rows of plain numbers are kept, so no
image enters evaluate's Arrow cache; `compute` combines the rows of all batches and all processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import evaluate
import pyarrow as pa
from datasets import Features, Value

from capeval_core.description import describe_metric
from capeval_core.errors import Problems, did_you_mean, naming, warn
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.integrations.opening import has_no_rows, warn_failed, warn_ignored
from capeval_core.metric import CaptionMetric, prepared
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
        config_name: the medium, as in `evaluate.load("metrics/pacs", "video")`; None: the metric's first.
        timeout: seconds that the processes of a distributed evaluation wait for each other.
        **keywords: evaluate's own (`num_process`, `experiment_id`, ...) and the metric's options (`weights`,
            `device`, ...). The weights are opened now.
    """

    metric_name: ClassVar[str]
    """As in `capeval_core.list_metrics()`."""

    def __init__(self, config_name: str | None = None, *, timeout: float = _ONE_DAY, **keywords: Any) -> None:
        own = {name: keywords.pop(name) for name in _OWN_KEYWORDS & keywords.keys()}
        self.metric_type = self.configuration(config_name)
        self.options = self.metric_type.Options.of(self.metric_name, keywords)
        if self.options.evidence:
            raise ValueError("evidence=True: evaluate keeps numbers only, use capeval_core.load(...)")
        self._rows_added = 0
        self._unread: set[str] = set()  # arguments that were warned of
        super().__init__(config_name, timeout=timeout, **own)
        # Opened now: wrong weights must not wait for the end of an epoch of training.
        self.metric = self._prepared = self.metric_type(self.options)

    @classmethod
    def configuration(cls, name: str | None = None) -> type[CaptionMetric]:
        """The class of the metric behind a configuration of this module; ValueError if it has no such."""
        with naming({"media": "config_name"}):
            return metric_class(cls.metric_name, None if name == _DEFAULT else name)

    @property
    def inputs(self) -> dict[str, str]:
        """What a user passes to `compute` and `add_batch`."""
        return dict(describe_metric(self.metric_type).inputs)

    def _info(self) -> evaluate.EvaluationModuleInfo:
        metric, project = self.metric_type, address()
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
        columns = {name: Value("null") for name in _inputs_of(metric)}
        columns["predictions"] = dict(Features.from_arrow_schema(metric.ROW))
        info = evaluate.EvaluationModuleInfo(
            description=f"{about}\n\n{_sections({**inputs, **example})}",
            citation=about.bibtex or metric.paper,
            inputs_description=_sections({**inputs, **usage}),
            features=Features(columns),
            homepage=project or "",
            license=f"{LICENCE}; weights {about.weights}: {about.licence}",
            codebase_urls=[project] if project else [],
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
        batch: dict[str, Any] = {}
        for name, value in given.items():
            plural = name if name in _INPUTS or f"{name}s" not in _INPUTS else f"{name}s"
            if value is not None and plural in batch:
                raise TypeError(f"add: pass {plural[:-1]} or {plural}, not both")
            if value is not None:
                batch[plural] = [value]
        for name in self.features:
            batch.setdefault(name, [None])
        self.add_batch(**batch)

    def add_batch(
        self,
        *,
        predictions: Sequence[str] | Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str] | str] | None = None,
        **others: Any,
    ) -> None:
        """Check and encode captions with their `images` or `videos` (and references) for `compute`.

        Of a batch that is refused nothing is added.
        """
        given = {"predictions": predictions, "references": references, **others}
        self._refuse_unknown("add_batch", given)
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
        """
        given = {"predictions": predictions, "references": references, **others}
        self._refuse_unknown("compute", given, "per_caption")
        if any(given.get(name) is not None for name in self.features):
            self._add(given, whole=self.writer is None and self.num_process == 1)
        self._open_writer()  # a process that never added takes part with no rows
        self.metric.stores.flush()
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
        warn_failed(result, "predictions[{}]", "per_caption=True returns")
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
        unread = {name for name in given if name not in self.features and given[name] is not None}
        warn_ignored(metric, sorted(unread - self._unread))
        self._unread |= unread
        visuals = given.get(argument_of(metric.media) or "")
        references = given.get("references") if metric.needs_references else None
        needed = [name for name in self.features if name != "references" or references is not None]
        if has_no_rows(*map(given.get, needed)):
            self._open_writer()
            return
        with naming({"captions": "predictions"}):
            samples = self.metric.check(given.get("predictions"), visuals, references)
        self._prepared = opened = prepared(self.metric, samples) if whole else self.metric
        opened.options.check_separable(type(opened), scores=False)
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

    def _refuse_unknown(self, method: str, given: Mapping[str, Any], *own: str) -> None:
        """Refuse arguments that this configuration does not have, but not those that other metrics need."""
        known = [*(name for name in _INPUTS if name in self.features or not self.metric_type.media), *own]
        options = [option.name for option in describe_options(type(self.options))]
        problems = Problems()
        for name in given:
            medium = medium_of(name)
            if name in known or name == "references":
                continue
            if name in options:
                fix = f": it is an option of the metric, pass it to evaluate.load(..., {name}=...)"
            elif medium in media_of(self.metric_name) and not did_you_mean(name, known):
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


def _example(metric: type[CaptionMetric]) -> list[str]:
    """Lines that run wherever the package is installed, as a doctest with `ELLIPSIS`."""
    values = {
        "predictions": "[item.good, item.unrelated, *item.references]" if metric.relative else "item.good",
        "images": "item.image",
        "videos": "[item.image, item.image]",
        "references": "item.references",
    }
    of_package = metric.__module__.startswith("capeval_core.")
    opening = "evaluate.load(capeval_core.module_path({!r})" if of_package else "capeval_core.module({!r}"
    options = "" if metric.variant is None else f', "{metric.variant}"'
    options += "" if metric.tiny is None else ', weights="tiny"'
    return [
        ">>> import capeval_core, capeval_core.demo, evaluate",
        ">>> items = capeval_core.demo.demo_set()",
        f">>> metric = {opening.format(metric.name)}{options})".replace("'", '"'),
        ">>> metric.compute(",
        *(f"...     {name}=[{values[name]} for item in items]," for name in _inputs_of(metric)),
        "... )",
        f"{{{metric.key!r}: ...}}",
    ]


def _inputs_of(metric: type[CaptionMetric]) -> list[str]:
    return [name for name in describe_metric(metric).inputs if name in _INPUTS]


def _sections(sections: Mapping[str, Sequence[str]]) -> str:
    texts = ["\n    ".join([title, *lines]) for title, lines in sections.items()]
    return "\n\n".join(texts)
