"""Names of columns by what they hold (`columns.toml`), and values that are ids."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from capeval_core.errors import valid_unicode

_TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text(encoding="utf-8")
)
# `caption_2`, `caption 2`, `caption2`; numbers of four digits are years.
_NUMBERED = re.compile(r"(.*?[^\d])[ _-]?(\d{1,3})")
_LETTERED = re.compile(r"(.{2,}?)[ _-]([A-Za-z])")


@cache
def plain(name: str) -> str:
    """A name in the form in which names are compared: `Image Name` and `image_name` are `imagename`."""
    return re.sub(r"[\W_]", "", name).lower()


def listed(section: str, key: str = "names") -> list[str]:
    """A list of the table, as it is written there."""
    return list(_TABLE[section][key])


ID_FIELDS: Sequence[str] = tuple(listed("id"))
"""Names of ids, best first."""


def written_levels(role: str) -> list[list[str]]:
    """The lists of names of a role, as they are written in the table."""
    # Files of objects are written as those of references, or say what they hold.
    if role == "objects":
        return [["objects"], *written_levels("references")]
    lists: list[Any] = _TABLE[role]["names"]
    return [lists] if isinstance(lists[0], str) else lists


@cache
def levels(role: str) -> Sequence[Sequence[str]]:
    """The names of a role, plain; a later list counts only where no name of an earlier one is present."""
    return [list(map(plain, names)) for names in written_levels(role)]


@cache
def is_name(name: str, role: str) -> bool:
    """Whether a column of this name may have a role, a table of `columns.toml` with names."""
    listed_names = set(chain.from_iterable(levels(role)))
    return plain(name) in listed_names or plain(base_of(name)) in listed_names


@cache
def base_of(name: str) -> str:
    """The name of a numbered column without its number: `caption` of `caption_2`."""
    match = _NUMBERED.fullmatch(name)
    return match[1].rstrip(" _-") if match else name


@cache
def number_of(name: str) -> int:
    """The number of a numbered column; that of the first one, which may have none, is 0."""
    match = _NUMBERED.fullmatch(name)
    return int(match[2]) if match else 0


@cache
def annotators_of(name: str) -> str | None:
    """The family of columns of annotators that a name belongs to: `rater` of `rater_1`, `Rater A`."""
    match = _NUMBERED.fullmatch(name) or _LETTERED.fullmatch(name)
    family = plain(match[1]) if match else ""
    return family if family in map(plain, listed("rating", "annotators")) else None


def is_rating(name: str) -> bool:
    """Whether a column of this name may hold ratings, of everybody or of an annotator."""
    return is_name(name, "rating") or annotators_of(name) is not None


@cache
def rank(name: str, role: str) -> int:
    """The place of a name in the list of its role: a lower one is the better guess."""
    order = list(chain.from_iterable(levels(role)))
    return order.index(plain(name)) if plain(name) in order else len(order)


@cache
def is_split(key: str) -> bool:
    """Whether a key of an object is the name of a part, such as `train`."""
    return re.sub(r"[_-]?(19|20)\d\d$", "", key.lower()) in _TABLE["split"]["keys"]  # COCO's train2014


def as_id(value: object) -> str | None:
    """The id in a value: a text, a whole number, a picture's path, a list of one of them; else None."""
    if isinstance(value, str):
        return value if value and valid_unicode(value) else None
    if isinstance(value, bool):  # which is an int to Python
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of whole numbers with gaps becomes floats in pandas
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return as_id(value.get("path"))
    if isinstance(value, list) and len(value) == 1:
        return as_id(value[0])
    return None
