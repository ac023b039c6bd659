"""Arrays of box features in the bytes of an `.npz` file: bounds, names, and nothing is unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.inputs.decoding import Refused, within

EXTENSION = ".npz"
MOST_BOXES = 1_000
WIDEST = 16_384
"""Numbers of a feature."""
MOST_BYTES = 8 * MOST_BOXES * WIDEST
"""Of one array, unpacked: a small file may hold zeros without end."""
REQUIRED, OPTIONAL = ("boxes", "features"), ("size", "scores", "relative_boxes", "selection")
RELEASED = {"norm_bb": "relative_boxes", "conf": "scores"}
"""Names in the files of UNITER and UMIC -> ours."""
NAMES = (*REQUIRED, *OPTIONAL, *RELEASED)
PER_BOX = (*REQUIRED, "scores", "relative_boxes", *RELEASED)
"""Arrays with a row per box."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz_arrays(data: bytes, name: str, members: Collection[str] = NAMES) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` of these names, as far as they are there.

    name: what messages call the file. members: by default all arrays of boxes.

    Raises:
        Refused: it is no such file, or is damaged, or holds more than numbers.

    >>> file = BytesIO()
    >>> np.savez(file, boxes=np.zeros((2, 4)), labels=np.array(["a", "b"]))
    >>> list(npz_arrays(file.getvalue(), "'a.npz'"))
    ['boxes']
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as file:
            found = {entry.removesuffix(".npy") for entry in file.namelist()}
            return {member: npz_array(file, member) for member in members if member in found}
    except Refused:
        raise
    except Exception as error:  # zipfile and numpy raise whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"{name} is not an .npz file, or damaged ({reason})", "write it again") from None


def npz_array(file: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an `.npz` whose header is checked before there is memory for it, or Refused."""
    with within(name):
        entry = file.getinfo(f"{name}.npy")
        if entry.compress_type not in _COMPRESSIONS:  # zipfile unpacks others whole, whatever size they state
            raise Refused(
                "the array is packed by another compression", "write it with numpy.savez_compressed"
            )
        if entry.file_size > MOST_BYTES:
            raise Refused(f"the array has {entry.file_size:,} bytes", f"expected at most {MOST_BYTES:,}")
        data = BytesIO(file.read(entry))
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(data)](data)
        if int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size - data.tell():
            found = f"the header says shape {shape} of {dtype}, which the array does not have"
            raise Refused(found, "write plain numbers with numpy.savez")
        data.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(data, allow_pickle=False)
        return array
