"""The pages of an LMDB, checked before it is opened: LMDB itself follows addresses behind the file's end.

Reading there kills the process. A file that is cut off or damaged is refused instead. Layout: `lmdb.h` and
`mdb.c` of https://git.openldap.org/openldap/openldap, little-endian, addresses of eight bytes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from capeval_core.errors import FileError, file_problem

MAGIC = 0xBEEFC0DE
HEADER = 16
"""Bytes of a page's header, behind which the first two pages have the magic number."""
_META = struct.Struct("<IIQQI44x40xQQQ")
"""Behind the header of the first two pages: magic number, version, address and size of the map, size of a
page, the root of the table, the last page, and the number of the commit as of which all that is."""
_PAGE = struct.Struct("<QHHHH")
"""Number, padding, flags, end of the table of nodes, begin of the nodes."""
_NODE = struct.Struct("<HHHH")
"""Of a branch the page below, of a leaf the size of its data and flags; the size of the key."""
_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF = 1, 2
_OUTSIDE = 1
"""Flag of a node whose data has pages of its own."""
_NO_PAGE = (1 << 64) - 1


class Meta(NamedTuple):
    """What a database says of itself, as of a commit. page: bytes of a page. root, last: numbers of pages."""

    page: int
    root: int
    last: int
    commit: int


def check_pages(data: Path) -> None:
    """Refuse a data file that is cut off, or whose tree leads out of it.

    Raises:
        FileError: it is, or it is no LMDB. OSError: it cannot be read.
    """
    size, start = data.stat().st_size, HEADER + _META.size
    with data.open("rb") as file:
        first = _meta(file.read(start))
        file.seek(first.page if first else 0)
        metas = [found for found in (first, _meta(file.read(start))) if found]
        if not metas:
            raise FileError(file_problem(data, "is not an LMDB", "write or download it again"))
        meta = max(metas, key=lambda found: found.commit)
        if size < (meta.last + 1) * meta.page:
            found = f"has {size:,} of {(meta.last + 1) * meta.page:,} bytes"
            raise FileError(file_problem(data, found, "it is cut off: write or download it again"))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            if not _is_tree(pages, meta):
                found = "has pages that lead out of the file, or to each other"
                raise FileError(file_problem(data, found, "it is damaged: write or download it again"))


def _meta(page: bytes) -> Meta | None:
    if len(page) < HEADER + _META.size:
        return None
    magic, _, _, _, size, root, last, commit = _META.unpack_from(page, HEADER)
    return Meta(size, root, last, commit) if magic == MAGIC and 512 <= size <= 1 << 16 else None


def _is_tree(pages: mmap.mmap, meta: Meta) -> bool:
    """Whether all pages below the root, and the data that nodes name, lie in the file."""
    waiting, steps = [] if meta.root == _NO_PAGE else [meta.root], 0
    while waiting:
        number, steps = waiting.pop(), steps + 1
        if not 2 <= number <= meta.last or steps > meta.last:
            return False
        start = number * meta.page
        own, _, flags, lower, upper = _PAGE.unpack_from(pages, start)
        count, kind = (lower - HEADER) // 2, flags & (_BRANCH | _LEAF)
        fits = HEADER <= lower <= upper <= meta.page and kind in (_BRANCH, _LEAF)
        if own != number or not fits or (kind == _BRANCH and count < 2):
            return False
        for at in struct.unpack_from(f"<{count}H", pages, start + HEADER):
            if not upper <= at <= meta.page - _NODE.size:
                return False
            low, high, flags, key = _NODE.unpack_from(pages, start + at)
            behind, length = at + _NODE.size + key, low | high << 16
            if kind == _BRANCH:
                waiting.append(length | flags << 32)
                stored = 0
            else:
                stored = _NUMBER.size if flags & _OUTSIDE else length
            if behind + stored > meta.page:
                return False
            if kind == _LEAF and flags & _OUTSIDE:
                (first,) = _NUMBER.unpack_from(pages, start + behind)
                if first < 2 or first + (HEADER + length - 1) // meta.page > meta.last:
                    return False
    return True
