"""Evidence of single captions, made when it is asked for: a run of a million keeps no explanation of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from capeval_core.inputs.samples import Samples
from capeval_core.result import Result
from capeval_core.rows import canonical

if TYPE_CHECKING:
    from capeval_core.metric import CaptionMetric


class Evidence(Mapping[int, Mapping[str, Any]]):
    """Where scores come from, by the index of a caption: what `Result.explain` gives with `evidence=True`.

    It is made anew whenever it is asked for. A metric chooses among pools by all of them, so their evidence
    is made at once.

    Args:
        metric: with which the rows were encoded.
        samples, rows: all that were scored, and their rows.
        result: what `metric.combine(rows)` gave.

    >>> import capeval_core
    >>> from capeval_core.demo import demo_set
    >>> metric, item = capeval_core.load("pacs", weights="tiny"), demo_set()[0]
    >>> samples = metric.check([item.good, item.unrelated], [item.image, item.image])
    >>> rows = metric.encode_all(samples)
    >>> evidence = Evidence(metric, samples, rows, metric.combine(rows))
    >>> evidence[1]["caption"] == item.unrelated, sorted(evidence[1])
    (True, ['caption', 'cosine', 'image'])
    """

    def __init__(self, metric: CaptionMetric, samples: Samples, rows: pa.Table, result: Result) -> None:
        options: Any = metric.options
        if getattr(options, "statistics", ...) is None:  # those of all captions, not of the ones explained
            metric = metric.with_statistics(metric.prepare(metric.corpus(samples)))
        self._metric, self._samples, self._rows, self._result = metric, samples, canonical(rows), result
        self._pools: Mapping[int, Mapping[str, Any]] | None = None

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        from capeval_core.reranking import Reranker

        if not 0 <= index < len(self):
            raise KeyError(index)
        if isinstance(self._metric, Reranker):
            if self._pools is None:
                self._pools = self._metric.evidence_of(self._samples, self._rows, self._result.parts)
            return self._pools[index]
        parts = {name: [values[index]] for name, values in self._result.parts.items()}
        found: Mapping[int, Mapping[str, Any]] = self._metric.evidence_of(
            self._samples.select([index]), self._rows.slice(index, 1), parts
        )
        return found[0]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._result.scores)
