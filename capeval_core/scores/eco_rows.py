"""What a row of ECO holds: a candidate, and what every member makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.inputs.samples import Samples, candidates_of
from capeval_core.rows import canonical, column, row_schema
from capeval_core.scores.eco_members import MATCHER, MEMBER_ROW

ECO_ROW = row_schema(
    column("candidate", pa.int32(), "its place in the pool of its image"),
    column("caption", pa.string(), "its text, for filters and consensus"),
    column("values", pa.list_(pa.float32()), "its cosine with the image, one per member"),
    column("itm", pa.float32(), "BLIP-2's probability that it belongs to the image"),
)


def joined_rows(samples: Samples, tables: Mapping[str, pa.Table], ensemble: Sequence[str]) -> pa.Table:
    """One row per sample, of the rows that its members have, in any order; `ensemble` orders their values."""
    wanted = np.asarray(samples.indices, dtype=np.int64)
    aligned = {name: _aligned(table, wanted) for name, table in tables.items()}
    values = [aligned[name]["value"].to_numpy(zero_copy_only=False).astype(np.float32) for name in ensemble]
    flat = np.stack(values, axis=1)
    offsets = np.arange(len(wanted) + 1, dtype=np.int32) * flat.shape[1]
    first = aligned[MATCHER]
    columns = {spec.name: first[spec.name] for spec in MEMBER_ROW if spec.name not in ("value", "itm")}
    columns["error"] = pa.array(_first_errors([table["error"] for table in aligned.values()]), pa.string())
    cut = [table["truncated"].to_numpy() for table in aligned.values()]
    columns["truncated"] = pa.array(np.max(cut, axis=0), pa.int32())
    own = {
        "candidate": pa.array(candidates_of(samples), pa.int32()),
        "caption": pa.array(samples.captions, pa.string()),
        "values": pa.ListArray.from_arrays(offsets, flat.ravel()),
        "itm": first["itm"],
    }
    return pa.table({**columns, **own}, schema=ECO_ROW)


def _aligned(table: pa.Table, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    """The rows of these indices, in this order."""
    rows = canonical(table)
    return rows.take(pa.array(np.searchsorted(rows["index"].to_numpy(), indices)))


def _first_errors(columns: list[pa.ChunkedArray]) -> list[str | None]:
    found: list[str | None] = columns[0].to_pylist()
    for column_ in columns[1:]:
        if column_.null_count < len(column_):
            found = [one or other for one, other in zip(found, column_.to_pylist(), strict=True)]
    return found
