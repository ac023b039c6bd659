"""`CaptionScorer` on batches of every format that Ray and `datasets` pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from capeval_core.integrations.ray import CaptionScorer
from tests.integrations.shard_files import picture

ROWS: dict[str, list[Any]] = {
    "uid": ["x", "y", "z"],
    "image": [picture(1), picture(2), b"<html>404</html>"],
    "caption": ["a dog", None, "a cat"],
}


@pytest.mark.parametrize("form", ["table", "chunks", "batch", "pandas"])
def test_a_batch_comes_back_in_its_format(form: str, weights: str) -> None:
    scorer = CaptionScorer("pacs", weights=weights)
    batch: Any = pa.table(ROWS)
    if form == "chunks":
        batch = pa.concat_tables([batch.slice(0, 1), batch.slice(1)])
    elif form == "batch":
        batch = batch.to_batches()[0]
    elif form == "pandas":
        batch = batch.to_pandas()
    found = scorer(batch)
    rows: Any = found.to_dict("list") if form == "pandas" else found.to_pydict()
    expected = scorer({name: np.array(values, dtype=object) for name, values in ROWS.items()})
    assert list(rows) == [*ROWS, "score", "truncated", "error", "parts"] == list(expected)
    assert rows["uid"] == ROWS["uid"] and rows["image"] == ROWS["image"]
    assert np.allclose(rows["score"], expected["score"], equal_nan=True, rtol=0, atol=1e-6)
    assert np.isfinite(rows["score"]).tolist() == [True, False, False]
    assert rows["error"] == list(expected["error"]) and rows["error"][1] == "caption is missing"
    assert rows["parts"][0].keys() == expected["parts"][0].keys()
    if form != "pandas":
        again = scorer(found)  # columns are replaced
        assert again.column_names == found.column_names
