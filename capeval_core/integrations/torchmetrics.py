"""A caption metric as a `torchmetrics.Metric`: for Lightning, `MetricCollection` and your own loops."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from capeval_core.inputs.samples import argument_of
from capeval_core.integrations.metric_specs import MetricSpec, combine_tables, open_one
from capeval_core.integrations.rewards import Visuals, in_memory
from capeval_core.project import needs
from capeval_core.result import Result
from capeval_core.store import STAMP, stamp_difference

with needs("torchmetrics", "torchmetrics"):
    import torchmetrics


class CaptionScore(torchmetrics.Metric):
    """A caption metric that is updated batch by batch and gathered over processes by rows.

        score = CaptionScore("pacs").to(device)
        score.update(captions, images)
        score.compute()

    Its state is rows of plain numbers, as bytes: no image is kept. The number is `CaptionMetric.score`'s over
    all captions; `result` has the scores, the signature and the interval.

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        sync: keywords of `torchmetrics.Metric`, such as `{"dist_sync_on_step": True}`.
        **options: of a metric given by name: `weights`, `device`, ..., `media="video"`; `empty` is "score"
            by default. Without `device` the network follows `.to(device)`.

    >>> score = CaptionScore("rougel")
    >>> score.update(["a red circle"], references=[["a red disc", "a circle"]])
    >>> round(float(score.compute()), 4)
    0.8299
    """

    is_differentiable = False
    full_state_update = False
    rows: list[torch.Tensor]

    def __init__(self, metric: MetricSpec, *, sync: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**(sync or {}))
        self.metric = open_one(metric, options, "CaptionScore")
        self.result: Result | None = None
        """The result of the last `compute`."""
        self._follows = "device" not in options and isinstance(metric, str)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """True where a larger number is better."""
        return self.metric.higher_is_better

    def update(
        self,
        captions: Sequence[str],
        images: Visuals = None,
        references: Sequence[Sequence[str] | str] | None = None,
        *,
        videos: Visuals = None,
    ) -> None:
        """Check and encode captions; arguments are those of `CaptionMetric.score`, tensors of any device too.

        What the metric does not need is ignored; a wrong batch, or an empty one, adds nothing.
        """
        argument = argument_of(self.metric.media) or ""
        visuals = {"images": images, "videos": videos}.get(argument)
        columns = (captions, () if visuals is None else visuals)
        if all(isinstance(column, Sized) and not len(column) for column in columns):
            return
        needed = references if self.metric.needs_references else None
        samples = self.metric.check(captions, in_memory(visuals, argument), needed)
        rows = self.metric.encode_all(samples).replace_schema_metadata({STAMP: self._stamp()})
        # torchmetrics gathers tensors alone: a table becomes the bytes of an Arrow stream.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        packed = bytearray(
            sink.getvalue().to_pybytes()
        )  # a copy that can be written, as torch warns otherwise
        self.rows.append(torch.frombuffer(packed, dtype=torch.uint8).to(self.device))

    def compute(self) -> torch.Tensor:
        """The number of all captions of all processes, a scalar.

        ValueError: there are none, or some were merged or loaded that have other weights or settings.
        """
        # Gathered over processes, the list has become one tensor.
        parts = [self.rows] if isinstance(self.rows, torch.Tensor) else self.rows
        tables: list[pa.Table] = []
        for part in parts:
            source = pa.BufferReader(part.cpu().numpy().tobytes())
            while source.tell() < source.size():  # streams of several processes follow each other
                tables.append(pa.ipc.open_stream(source).read_all())
        if not tables:
            raise ValueError("captions is empty: there is nothing to score, call update first")
        for table in tables:
            stamp = (table.schema.metadata or {}).get(STAMP, b"{}")
            difference = stamp_difference(json.loads(stamp), json.loads(self._stamp()))
            if difference:
                problem = f"rows that were merged or loaded have other settings ({difference})"
                raise ValueError(f"{problem}: merge and load states of metrics with equal settings only")
        self.result = combine_tables(self.metric, tables)
        return torch.tensor(self.result.mean, device=self.device)

    def _stamp(self) -> str:
        """Everything that rows depend on, as their streams state it."""
        return json.dumps(self.metric.stamp())

    def extra_repr(self) -> str:
        return repr(self.metric)

    def _sync_dist(self, *arguments: Any, **keywords: Any) -> None:
        # A process without captions takes part with no bytes: torchmetrics would send floats for it.
        self.rows = self.rows or [torch.empty(0, dtype=torch.uint8, device=self.device)]
        super()._sync_dist(*arguments, **keywords)

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], *arguments: Any) -> CaptionScore:
        before = self.device
        super()._apply(function, *arguments)
        # Opened anew: a network stays on its device, which other metrics of the process may share.
        if self._follows and self.device != before and self.metric.default_weights is not None:
            self.metric = type(self.metric)(replace(self.metric.options, device=str(self.device)))
        return self
