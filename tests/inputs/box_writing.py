"""Box features, and the forms that others store them in, written as their programs do."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import msgpack
import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
SIZE = (64, 48)


def detected(seed: int, n: int = 12, width: int = 5) -> dict[str, NDArray[Any]]:
    """What a detector finds in an image of `SIZE`: float32, best first; scores fall from 0.9 to 0.05."""
    drawn = np.random.default_rng(seed)
    corners = np.sort(drawn.uniform(0, 1, (n, 2, 2)), axis=1).reshape(n, 4) * [*SIZE, *SIZE]
    return {
        "boxes": corners.astype("float32"),
        "features": drawn.normal(size=(n, width)).astype("float32"),
        "size": np.array(SIZE),
        "scores": np.linspace(0.9, 0.05, n, dtype="float32"),
    }


def released(found: Arrays) -> dict[str, NDArray[Any]]:
    """The same as in UNITER's files of an image, in float16."""
    boxes = found["boxes"] / np.array([*SIZE, *SIZE])
    arrays = {
        "norm_bb": np.concatenate([boxes, boxes[:, 2:] - boxes[:, :2]], axis=1),
        "features": found["features"],
        "conf": found["scores"],
        "soft_labels": np.ones((len(boxes), 3)),
    }
    return {name: array.astype("float16") for name, array in arrays.items()}


def packed(array: Any) -> dict[bytes, Any]:
    """An array as msgpack-numpy packs it."""
    array = np.asarray(array)
    return {
        b"nd": True,
        b"type": array.dtype.str,
        b"kind": b"",
        b"shape": array.shape,
        b"data": array.tobytes(),
    }


def msgpack_of(arrays: Arrays) -> bytes:
    data: bytes = msgpack.packb({name: packed(array) for name, array in arrays.items()}, use_bin_type=True)
    return data


def npz_of(arrays: Arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays, allow_pickle=np.array(True))  # an entry, in older versions of numpy
    return file.getvalue()


def lz4_of(arrays: Arrays) -> bytes:
    data: bytes = lz4.frame.compress(msgpack_of(arrays))
    return data


def write_lmdb(folder: Path, entries: Mapping[str, bytes], keys: bool = True) -> Path:
    """A database in a folder, which has the list of its keys as UNITER's has."""
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 22) as database, database.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key.encode(), value)
        if keys:
            transaction.put(b"__keys__", json.dumps(list(entries)).encode())
    return folder


def text_of(array: Any, dtype: str = "<f4") -> str:
    return base64.b64encode(np.asarray(array).astype(dtype).tobytes()).decode()


def bottom_up_line(image_id: str, found: Arrays) -> str:
    """A line of a `.tsv` of bottom-up attention."""
    values = [image_id, *map(str, SIZE), str(len(found["boxes"]))]
    return "\t".join([*values, text_of(found["boxes"]), text_of(found["features"])]) + "\n"


def lxmert_line(image_id: str, found: Arrays) -> str:
    """A line of a `.tsv` of LXMERT: the height comes first, and classes are numbers."""
    n = len(found["boxes"])
    labels = [text_of(np.arange(n), "<i8"), text_of(found["scores"])] * 2
    values = [image_id, str(SIZE[1]), str(SIZE[0]), *labels, str(n)]
    return "\t".join([*values, text_of(found["boxes"]), text_of(found["features"])]) + "\n"
