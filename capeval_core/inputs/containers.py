"""Compressed files and zip archives: the bytes of the file in them, within the limit of memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from capeval_core.errors import file_error
from capeval_core.inputs.files import some_of
from capeval_core.inputs.records import TextSource
from capeval_core.limits import LIMITS

_MOST_LAYERS = 5  # a zip may hold itself
_DECOMPRESSORS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def limited(file: IO[bytes], path: Path) -> bytes:
    """All bytes of a stream. Raises FileError where there are more than the limit."""
    # One byte more than allowed: a stream does not say its length, and what gzip says of it may be wrong.
    data = file.read(LIMITS.file_bytes + 1)
    if len(data) > LIMITS.file_bytes:
        raise file_error(path, f"is longer than {LIMITS.file_bytes >> 30} GiB", "give it in parts")
    return data


def unpacked(
    source: TextSource, data: bytes, name: str, *, is_format: Callable[[bytes, str], bool]
) -> tuple[bytes, str]:
    """The bytes and the name of the innermost file.

    is_format: whether a zip is no container but a format of its own, as Excel's. Raises FileError.
    """
    for _ in range(_MOST_LAYERS):
        # By the first bytes, not the name: browsers decompress a download and keep its `.gz`.
        magics = [magic for magic in _DECOMPRESSORS if data.startswith(magic)]
        if magics:
            data = _decompressed(source, data, magics[0])
            name = re.sub(r"\.(gz|bz2|xz)$", "", name)
        elif data.startswith(_ZIP) and not is_format(data, name):
            data, name = _member(source, data)
        else:
            return data, name
    raise source.error("is compressed several times", "unpack it")


def _decompressed(source: TextSource, data: bytes, magic: bytes) -> bytes:
    try:
        with _DECOMPRESSORS[magic](io.BytesIO(data)) as file:
            return limited(file, source.path)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise source.error(f"is damaged ({error})", "compress it again") from None


def _member(source: TextSource, data: bytes) -> tuple[bytes, str]:
    """The bytes and the name of the only file of a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [member for member in archive.infolist() if _is_content(member)]
            if len(members) != 1:
                listed = some_of(member.filename for member in members) or "nothing"
                problem = f"is a zip archive of several files ({listed})"
                raise source.error(problem, "unzip it, and name one of them")
            with archive.open(members[0]) as file:
                return limited(file, source.path), members[0].filename.lower()
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
        problem = f"is a zip archive that cannot be read ({error})"
        raise source.error(problem, "unzip it, and name the file") from None


def _is_content(member: zipfile.ZipInfo) -> bool:
    """Whether a member of an archive is a file of the user; macOS adds its own."""
    name = member.filename.rpartition("/")[2]
    return not member.is_dir() and not name.startswith(".") and not member.filename.startswith("__MACOSX/")
