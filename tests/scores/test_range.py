"""The stated range of each metric of cosines is reached, not only kept."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import capeval_core
from capeval_core.registry import metric_class
from capeval_core.rows import COMMON


@pytest.mark.parametrize("w", [None, 0.7, 3.0])
@pytest.mark.parametrize("name", ["pacs", "refpacs", "clips", "refclips", "hices", "refhices"])
def test_cosines_of_minus_one_and_one_reach_both_ends(name: str, w: float | None) -> None:
    options = {} if w is None else {"w": w}
    metric = capeval_core.load(name, weights="tiny", device="cpu", **options)

    def value_of(type_: pa.DataType, cosine: float) -> Any:
        if pa.types.is_list(type_):
            return [value_of(type_.value_type, cosine)]
        return cosine if pa.types.is_floating(type_) else 0

    rows = []
    for index, cosine in enumerate([-1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0]):
        row = {"index": index, "group": str(index), "error": None, "truncated": 0, "empty": False}
        row["references"] = int(metric.needs_references)
        rows.append(row | {c.name: value_of(c.type, cosine) for c in list(metric.ROW)[len(COMMON) :]})
    table = pa.Table.from_pylist(rows, schema=metric.ROW)
    result = metric.combine(table)
    assert tuple(result.scores[:2]) == pytest.approx(result.range, abs=1e-12)
    assert (result.range == metric_class(name).range) == (w is None)
    low, high = result.range
    for few in (table.take([0, 0, 0, 0, 2]), table.slice(2, 5)):
        few = few.set_column(0, metric.ROW.field(0), pa.array(range(5), pa.int64()))
        few = few.set_column(1, metric.ROW.field(1), pa.array(map(str, range(5))))
        interval = metric.combine(few).interval()
        assert low <= interval.low < interval.high <= high
    assert interval.high == high  # cut there
