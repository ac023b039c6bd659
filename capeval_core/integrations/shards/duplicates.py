"""Rows whose picture an earlier row has, by content keys, over all shards of a folder.

The order of rows is that of the shards' names, and within a shard its own. It is applied when outputs are
read, so that marks depend neither on workers nor on which shard was scored first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.integrations.shards.outputs import BATCH_ROWS, IMAGE_KEY, opened, read_batches
from capeval_core.integrations.shards.places import Place

_BYTES = 16
"""Bytes of a digest at the end of a content key."""
_SORTED = 1 << 22  # keys that are sorted together, which bounds memory


def have_keys(outputs: Sequence[Place]) -> bool:
    """Whether all outputs were made with the content keys of their images."""
    # Of some shards alone a mark would be wrong: the earlier row might be in another one.
    for output in outputs:
        with opened(output) as parquet:
            if IMAGE_KEY not in parquet.schema_arrow.names:
                return False
    return bool(outputs)


@contextmanager
def duplicates_on_disk(outputs: Sequence[Place]) -> Iterator[NDArray[np.bool_]]:
    """Whether each row of all outputs has the picture of an earlier row, in a temporary file.

    A row without a key has no picture.
    """
    with (
        tempfile.TemporaryFile(prefix="capeval-") as keys,
        tempfile.TemporaryFile(prefix="capeval-") as marks,
    ):
        for output in outputs:
            for batch in read_batches(output, [IMAGE_KEY]):
                keys.write(_digests(batch[IMAGE_KEY].to_pylist()))
        keys.flush()
        rows = keys.tell() // _BYTES
        marks.write(bytes(rows))
        marks.flush()
        if not rows:
            yield np.empty(0, np.bool_)
            return
        # On disk: 17 bytes for each of a billion rows.
        digests = np.memmap(keys, f"V{_BYTES}", "r")
        is_duplicate = np.memmap(marks, np.bool_, "r+")
        _mark(digests, is_duplicate)
        yield is_duplicate


def _digests(keys: Sequence[str | None]) -> bytes:
    """The digests of content keys, one after the other; zeros of rows without one."""
    digests = []
    for key in keys:
        if key is None:
            digests.append(bytes(_BYTES))
        else:
            # The words before the digest, such as `upright-file:`, are equal within one signature, but for
            # those of arrays and files, whose digests never meet.
            digests.append(bytes.fromhex(key[-2 * _BYTES :]))
    return b"".join(digests)


def _mark(digests: NDArray[Any], is_duplicate: NDArray[np.bool_]) -> None:
    """Mark all but the first of equal digests, some of all values at a time."""
    passes = -(-len(digests) // _SORTED)
    # Equal digests fall into one pass, whatever their rows, so that no pass has to know of another one.
    for number in range(passes):
        rows_of_pass = []
        for start in range(0, len(digests), BATCH_ROWS):
            words = np.asarray(digests[start : start + BATCH_ROWS]).view(np.uint64).reshape(-1, 2)
            # Zeros, of rows without a key, are in no pass, and equal nothing.
            is_in_pass = words.any(axis=1) & (words[:, 1] % np.uint64(passes) == number)
            rows_of_pass.append(np.flatnonzero(is_in_pass) + start)
        rows = np.concatenate(rows_of_pass)
        words = np.asarray(digests[rows]).view(np.uint64).reshape(-1, 2)
        order = np.lexsort((words[:, 1], words[:, 0]))  # stable: equal ones stay in the order of rows
        in_order = words[order]
        equals_previous = (in_order[1:] == in_order[:-1]).all(axis=1)
        is_duplicate[rows[order[1:]][equals_previous]] = True
