"""Image ids and the entries that they mean.

The field writes the same image as `42`, `000000000042`, `COCO_val2014_000000000042`, with or without `.jpg`.
An id means, in this order: the entry of exactly that name, the entry of that name but for an image's
extension, the entry of the same COCO number. Two entries at one step are an ambiguity, never a silent choice.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from capeval_core.inputs.problems import FileError, Problems

EXTENSIONS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
}
COCO_NUMBER = re.compile(r"(?:COCO_[A-Za-z0-9]+_)?([0-9]{1,18})")
NAMED = 5


class Names:
    """Entries that can be found under the several ways to write an image id.

    >>> names = Names(["COCO_val2014_000000000042.jpg", "a.b.jpg", "c.jpg", "c.png"])
    >>> names.find("42"), names.find("a.b"), names.find("c.png"), names.find("c"), names.find("d")
    (['COCO_val2014_000000000042.jpg'], ['a.b.jpg'], ['c.png'], ['c.jpg', 'c.png'], [])
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = sorted(entries)
        self._exact = set(self.entries)
        self._bare: defaultdict[str, list[str]] = defaultdict(list)
        self._number: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            self._bare[bare(entry)].append(entry)
            number = coco_number(entry)
            if number is not None:
                self._number[number].append(entry)

    def find(self, image_id: str) -> list[str]:
        """The entries that the id can mean: one is a match, none a miss, several an ambiguity."""
        if image_id in self._exact:
            return [image_id]
        for stem in (image_id, bare(image_id)):
            if stem in self._bare:
                return self._bare[stem]
        number = coco_number(image_id)
        return [] if number is None else self._number.get(number, [])


def bare(name: str) -> str:
    """The name without an image's extension; other dots belong to the name."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    return stem if extension.lower() in EXTENSIONS else name


def coco_number(name: str) -> int | None:
    match = COCO_NUMBER.fullmatch(bare(name))
    return int(match[1]) if match else None


def only_matches(
    place: Path, matches: dict[str, list[str]], lacking: str, problems: Problems
) -> dict[str, str]:
    """The one entry that each id means, of those that it can mean; note ids that mean several, or none.

    place: the file or folder of the entries. lacking: what ids without one have, e.g. `no image`.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for image_id, entries in matches.items():
        if len(entries) == 1:
            found[image_id] = entries[0]
        elif entries:
            several = " and ".join(map(repr, entries))
            problems.add(f"{place}: the id {image_id!r} is ambiguous, it can mean {several}", kind=FileError)
        else:
            missing.append(image_id)
    if missing:
        problems.add(f"{place}: {_counted(missing, len(matches))} {lacking}", kind=FileError)
    return found


def _counted(ids: list[str], total: int) -> str:
    """`2 of 9 ids ('a', 'b') have`"""
    more = ", ..." if len(ids) > NAMED else ""
    have = "has" if len(ids) == 1 else "have"
    return f"{len(ids):,} of {total:,} ids ({', '.join(map(repr, ids[:NAMED]))}{more}) {have}"
