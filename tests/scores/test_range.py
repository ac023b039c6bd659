"""The stated range of each metric of cosines is reached, not only kept."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import capeval_core
from capeval_core.registry import metric_class
from capeval_core.rows import COMMON


@pytest.mark.parametrize("name", ["pacs", "refpacs", "clips", "refclips", "hices", "refhices"])
def test_cosines_of_minus_one_and_one_reach_both_ends(name: str) -> None:
    metric = capeval_core.load(name, weights="tiny", device="cpu")

    def value_of(type_: pa.DataType, cosine: float) -> Any:
        if pa.types.is_list(type_):
            return [value_of(type_.value_type, cosine)]
        return cosine if pa.types.is_floating(type_) else 0

    rows = []
    for index, cosine in enumerate([-1.0, 1.0]):
        row = {"index": index, "group": str(index), "error": None, "truncated": 0, "empty": False}
        row["references"] = int(metric.needs_references)
        rows.append(row | {c.name: value_of(c.type, cosine) for c in list(metric.ROW)[len(COMMON) :]})
    scores = metric.combine(pa.Table.from_pylist(rows, schema=metric.ROW)).scores
    assert tuple(scores) == metric_class(name).range
