"""Metrics as modules of Hugging Face `evaluate`.

`add_batch` checks captions and images and encodes them at once. Only rows of plain numbers are kept, so no
image enters evaluate's Arrow cache; `compute` combines the rows of all batches and all processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, ClassVar

import evaluate
import pyarrow as pa
from datasets import Features, Value

from capeval_core.errors import Problem, Problems, did_you_mean, naming
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of
from capeval_core.integrations.metric_specs import warn_failed, warn_ignored
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.metric_text import MetricDescription
from capeval_core.project import LICENCE, address
from capeval_core.registry import metric_class
from capeval_core.result import warn_of

_ONE_DAY = 86_400.0  # evaluate's own 100 seconds are gone while the last shard is encoded
_RANK_STRIDE = 2**40  # rows of process r have the indices from r times this: unique, and sorted by process
_INPUTS = ("predictions", *ARGUMENTS, "references")
_Row = str | Sequence[str] | None
_Rows = Sequence[str | Sequence[str]] | None
_OF_EVALUATE = inspect.signature(evaluate.EvaluationModule.__init__).parameters.keys()


class MetricModule(evaluate.EvaluationModule):  # type: ignore[misc]
    """A caption metric as `evaluate.load` gives it; a module file subclasses it and names its metric.

    Args:
        config_name: the medium, as in `evaluate.load("capeval/pacs", "video")`; None: the metric's first.
        timeout: seconds that the processes of a distributed evaluation wait for each other.
        **keywords: evaluate's own (`num_process`, `experiment_id`, ...) and the metric's options (`weights`,
            `device`, ...). The weights are opened now.
    """

    metric_name: ClassVar[str]
    """As in `capeval_core.list_metrics()`."""

    def __init__(self, config_name: str | None = None, *, timeout: float = _ONE_DAY, **keywords: Any) -> None:
        # evaluate drops keywords that it does not know: what is not its own is checked as our option.
        of_evaluate = {}
        for name in _OF_EVALUATE & keywords.keys():
            of_evaluate[name] = keywords.pop(name)
        with naming({"media": "config_name"}):
            medium = None if config_name == "default" else config_name  # evaluate's, where nobody names one
            self.metric_type: type[CaptionMetric] = metric_class(self.metric_name, medium)
        options = self.metric_type.Options.of(self.metric_name, keywords)
        if options.evidence:
            raise ValueError("evidence=True: evaluate keeps numbers only, use capeval_core.load(...)")
        self._images_added = 0
        self._unread: set[str] = set()  # arguments that were warned of
        self._notes = Notes([self.metric_type])
        super().__init__(config_name, timeout=timeout, **of_evaluate)
        # Opened now: wrong weights must not wait for the end of an epoch of training.
        self.metric = self._prepared = self.metric_type(options)

    @property
    def inputs(self) -> dict[str, str]:
        """The arguments of `compute` and `add_batch`, with their meaning."""
        return MetricDescription(self.metric_type).inputs

    def _info(self) -> evaluate.EvaluationModuleInfo:
        metric = self.metric_type
        project = address()
        about = MetricDescription(metric)
        # evaluate wants a column for each input by its name: the metric's row under the first, nulls else.
        #
        #     predictions                                    images   references
        #     {index: 0, group: ..., cosine: 0.71, ...}      null     null
        columns: dict[str, Any] = {}
        for name in about.inputs:
            if name in _INPUTS:
                columns[name] = Value("null")
        columns["predictions"] = dict(Features.from_arrow_schema(metric.ROW))
        usage = ["Inputs:"]
        for name, meaning in about.inputs.items():
            usage.append(f"    {name}: {meaning}")
        usage += [
            f"\nExample: metric.compute({', '.join(f'{name}=[...]' for name in columns)})",
            f"\nResult: {metric.key}, the mean over all {about.mean}; with per_caption=True per_caption, "
            "signature and counts: captions, failed, truncated (longer than the text encoder reads), empty.",
            "\nOptions, keywords of `evaluate.load`:",
        ]
        for option in metric.Options.describe().values():
            if option.name != "evidence":
                usage.append(f"    {option.name} ({option.type}, default {option.default!r}): {option.help}")
        info = evaluate.EvaluationModuleInfo(
            description=str(about),
            citation=metric.bibtex or metric.paper,
            inputs_description="\n".join(usage),
            features=Features(columns),
            homepage=project or "",
            license=f"{LICENCE}; weights {about.weights}: {about.licence}",
            codebase_urls=[project] if project else [],
            reference_urls=[about.address],
        )
        # Set afterwards: evaluate allows a format for flat features only, which matters for numpy, not here.
        info.format = "arrow"
        return info

    def add(self, *, prediction: _Row = None, reference: _Row = None, **others: Any) -> None:
        """Add one caption (or list of candidates) with its `image` or `video`, also under plural names.

        Many captions are faster in one `add_batch`.
        """
        plural = {name.removesuffix("s"): name for name in _INPUTS}
        # A missing one as None, so that the check says which it is, and not evaluate that a column is.
        batch: dict[str, Any] = {name: [None] for name in self.features}
        for name, value in {"prediction": prediction, "reference": reference, **others}.items():
            if value is not None:
                batch[plural.get(name, name)] = [value]
        self.add_batch(**batch)

    def add_batch(self, *, predictions: _Rows = None, references: _Rows = None, **others: Any) -> None:
        """Check and encode captions with their `images` or `videos` (and references) for `compute`.

        Of a batch that is refused nothing is added.
        """
        inputs = {"predictions": predictions, "references": references, **others}
        self._refuse_unknown("add_batch", inputs)
        self._add(inputs)

    def compute(
        self, *, predictions: _Rows = None, references: _Rows = None, per_caption: bool = False, **others: Any
    ) -> dict[str, Any] | None:
        """Score what is passed here (`images` or `videos`, too) with all that was added before; start anew.

        Returns:
            The metric's own key and the mean. With `per_caption=True` also `per_caption`, lists with one
            entry per caption in the order of adding (process by process with `num_process`): the score,
            its parts, and `errors` (None, or why a caption has no score); `signature` and `counts`.
            None on processes other than the first.
        """
        inputs = {"predictions": predictions, "references": references, **others}
        self._refuse_unknown("compute", inputs)
        if any(inputs.get(name) is not None for name in self.features):
            # Alone they are the whole corpus, so that statistics can be made of them.
            self._add(inputs, is_all=self.writer is None and self.num_process == 1)
        self._open_writer()  # a process that never added takes part with no rows
        self.metric.stores.flush()
        output: dict[str, Any] | None = super().compute(per_caption=per_caption)
        # Raised here and not in `_compute`: evaluate would leave its files and locks behind.
        if output == {}:
            raise ValueError("predictions is empty: there is nothing to score")
        return output

    def _compute(self, *, predictions: pa.ChunkedArray, per_caption: bool, **_: Any) -> dict[str, Any]:
        """Combine the rows of all processes, which evaluate hands over under the name of the first input."""
        if not len(predictions):
            return {}
        result = self._prepared.combine(pa.Table.from_struct_array(predictions))
        warn_failed(result, "predictions[{}]", "per_caption=True returns")
        warn_of(result)
        self._notes.tell()
        output: dict[str, Any] = dict(result.numbers)
        if per_caption:
            errors = list(map(result.errors.get, range(len(result.scores))))
            output["per_caption"] = {result.key: result.scores, **result.parts, "errors": errors}
            output |= {"signature": result.signature, "counts": dict(vars(result.counts))}
        return output

    def _add(self, inputs: Mapping[str, Any], *, is_all: bool = False) -> None:
        """Check, encode and store rows; `is_all`: there are no others that `compute` combines."""
        metric = self.metric_type
        unread = set()
        for name, column in inputs.items():
            if name not in self.features and column is not None:
                unread.add(name)
        # Warned of once, not with every batch.
        warn_ignored(metric, sorted(unread - self._unread))
        self._unread |= unread
        visuals = inputs.get(argument_of(metric.media) or "")
        references = inputs.get("references") if metric.needs_references else None
        columns_read = []
        for name in self.features:
            if name != "references" or references is not None:
                columns_read.append(inputs.get(name))
        # The empty batch of a process that got no share: it must meet the others, or they wait for it.
        if all(isinstance(column, Sized) and not len(column) for column in columns_read):
            self._open_writer()
            return
        with naming({"captions": "predictions"}):
            samples = self.metric.check(inputs.get("predictions"), visuals, references)
        self._prepared = opened = prepared(self.metric, samples) if is_all else self.metric
        opened.check_separable(opened.options, scores=False)
        self._open_writer()  # here the processes meet, and encoding, which takes its time, comes after
        rows = opened.encode_all(self._numbered(samples))
        self._notes.add(samples)
        columns = dict.fromkeys(self.features, pa.nulls(len(rows)))
        table = pa.table({**columns, "predictions": rows.to_struct_array()})
        # Single rows are gathered by the writer: one record batch each would be larger than its numbers.
        if len(rows) == 1:
            self.writer.write_row(table)
        else:
            self.writer.write_table(table)

    def _open_writer(self) -> None:
        """Begin evaluate's file of rows, and count from 0, unless that was done since the last `compute`."""
        if self.writer is None:
            self.selected_feature_format = self.features
            self._images_added = 0
            self._notes = Notes([self.metric_type])
            self._init_writer()

    def _numbered(self, samples: Samples) -> Samples:
        """The batch with its numbers among all that was added, for rows and late messages."""
        first_index = self.process_id * _RANK_STRIDE + len(self)
        of_process = f" of process {self.process_id}" if self.process_id else ""
        argument = argument_of(self.metric_type.media) or "references"
        images = []
        # A broken image is found when it is read, behind the check: its message needs the number of all.
        for place, visual in zip(samples.places, samples.images, strict=True):
            number = self._images_added + place
            images.append(visual.at(f"{argument}[{number}]{of_process}"))
        self._images_added += samples.places[-1] + 1
        indices = [first_index + index for index in samples.indices]
        return replace(samples, indices=indices, images=images)

    def _refuse_unknown(self, method: str, inputs: Mapping[str, Any]) -> None:
        """Refuse arguments that this configuration does not have, but not those that other metrics need."""
        names = [*self.inputs] if self.metric_type.media else [*_INPUTS, "per_caption"]
        fix = f"arguments: {', '.join(names)}; options and the medium are given to evaluate.load"
        problems = Problems()
        for name in inputs:
            if name not in (*names, "references"):
                problem = f"has no argument {name!r}{did_you_mean(name, names)}"
                problems.add(Problem(f"{self.metric_name}.{method}", problem, fix, TypeError))
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
