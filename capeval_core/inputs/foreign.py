"""Kinds of files that hold no captions or cannot be read: what each is, and the line that converts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WRITE_JSON = 'json.dump({image_id: caption, ...}, open("captions.json", "w"))'


@dataclass(frozen=True)
class ForeignKind:
    """A kind of file: how it is recognised by its bytes and its name, and what to do with it."""

    fits: Callable[[bytes, str], bool]
    problem: str
    fix: str


def _begins(*marks: bytes) -> Callable[[bytes, str], bool]:
    return lambda data, name: data.startswith(marks)


def _is_array(data: bytes, name: str) -> bool:
    return data.startswith(b"\x93NUMPY") or (data.startswith(b"PK") and name.endswith(".npz"))


def _is_torch(data: bytes, name: str) -> bool:
    # Since PyTorch 1.6 a zip around a pickle; older ones are bare pickles, recognised below.
    is_named = name.endswith((".pt", ".pth", ".bin"))
    return data.startswith(b"PK") and (is_named or b"data.pkl" in data[:4096])


def _is_pickle(data: bytes, name: str) -> bool:
    return name.endswith((".pkl", ".pickle", ".p")) or re.match(rb"\x80[\x02-\x05]", data) is not None


def _is_tar(data: bytes, name: str) -> bool:
    return data[257:262] == b"ustar"  # POSIX puts its mark behind the fields of the oldest form


def _is_picture(data: bytes, name: str) -> bool:
    # A text may begin with BM; a bitmap has four bytes of zero behind its size.
    is_bitmap = data.startswith(b"BM") and data[6:10] == bytes(4)
    return is_bitmap or data.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a"))


def _is_html(data: bytes, name: str) -> bool:
    return re.match(rb"\s*(<!doctype html|<html)", data[:200], re.IGNORECASE) is not None


# In this order: an .npz and a file of PyTorch are both zips.
FOREIGN: Sequence[ForeignKind] = (
    ForeignKind(_is_array, "is a NumPy array", f"write its captions with {_WRITE_JSON}"),
    ForeignKind(_is_torch, "is a file of PyTorch", f"load it where it is trusted, and write {_WRITE_JSON}"),
    ForeignKind(
        _is_pickle,
        "is a pickle, which would run its code when it is opened",
        f"load it where it is trusted, and write {_WRITE_JSON}",
    ),
    ForeignKind(_begins(b"\xd0\xcf\x11\xe0"), "is an old Excel workbook (.xls)", "save it as CSV (UTF-8)"),
    ForeignKind(_begins(b"\x89HDF"), "is an HDF5 file", f"write its captions with {_WRITE_JSON}"),
    ForeignKind(_begins(b"SQLite format 3"), "is an SQLite database", "export the table as CSV"),
    ForeignKind(_begins(b"%PDF"), "is a PDF", "write JSON, JSON lines, CSV or Parquet"),
    ForeignKind(_begins(b"\x28\xb5\x2f\xfd"), "is compressed with zstd", "unpack it with `zstd -d`"),
    ForeignKind(_begins(b"7z\xbc\xaf", b"Rar!"), "is an archive", "unpack it, and name the file"),
    ForeignKind(
        _is_tar,
        "is a tar archive",
        "unpack it, and name the file; shards of pictures are scored with `capeval shards score`",
    ),
    ForeignKind(_is_picture, "is a picture", "name the file of captions"),
    ForeignKind(
        _begins(b"version https://git-lfs"),
        "is a pointer of git-lfs, not the file",
        "fetch it with `git lfs pull`",
    ),
    ForeignKind(_is_html, "is an HTML page, as a failed download leaves it", "download the file again"),
)


def foreign_kind(data: bytes, name: str) -> ForeignKind | None:
    """The kind of these bytes of a file of this name; None where it is none of these."""
    for kind in FOREIGN:
        if kind.fits(data, name):
            return kind
    return None
