"""A part of a config as a frozen dataclass: names, types and bounds checked, all problems at once.

A field says by its type what its value may be:

    Annotated[int, range(1, 101)]           a whole number of this range
    Annotated[float, (0, 1)]                a number above 0, at most 1
    Annotated[list[int], range(9)]          a list of such numbers, also of numbers by (low, high)
    Annotated[list[int], range(9), 4]       exactly four of them
    Annotated[int | list[int], range(9), 4] one number, or four
    Annotated[str, "a text"]                a value of this type, told by these words if it is not
    Literal["pre", "post"]                  one of these values
    Part, another dataclass                 an object, read by the same rules
    X | None                                may be missing; so may a field with a default

A subclass of `Closed` has no other keys; other dataclasses ignore what they do not name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from capeval_core.weights.folder import WeightsError

T = TypeVar("T")

Width = Annotated[int, range(1, (1 << 20) + 1)]
Layers = Annotated[int, range(1, 1_001)]
Side = Annotated[int, range(1, 4_097)]
Count = Annotated[int, range(1, 100_001)]
Few = Annotated[int, range(1_000)]
Places = Annotated[list[int], range(1_001)]
Share = Annotated[float, (0, 1)]  # above 0, at most 1; numbers are above the first of their bounds
Means = Annotated[Sequence[float], (-1e3, 1e3), 3]
Deviations = Annotated[Sequence[float], (1e-4, 1e3), 3]
Switch = Annotated[bool, "true or false"]
Text = Annotated[str, "a text"]
Words = Annotated[list[str] | dict[str, str], "words, or file and sha256"]


class Closed:
    """A part of a config that holds nothing else, but for nulls."""


def read(kind: type[T], section: object, where: str = "architecture") -> T:
    """A part of a config, or a WeightsError that names what is missing, of another type or out of bounds."""
    problems: list[str] = []
    section_values: T | None = _read(kind, section, where, problems)
    if section_values is None:
        raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
    return section_values


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    # Python compiles every annotation again each time, which took longer than to read the file.
    return get_type_hints(kind, include_extras=True)


def _read(kind: type[Any], section: object, where: str, problems: list[str]) -> Any:
    if not isinstance(section, Mapping):
        problems.append(f"{where} is {section!r:.60}, expected an object")
        return None
    hints = _types_of(kind)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    values = dict[str, Any]()
    before = len(problems)
    names = {field.name for field in fields(kind)}
    inside = f"{where}." if where else ""
    # A null says nothing: transformers writes one for each setting that a model does not have.
    unknown = sorted(name for name, value in section.items() if value is not None and name not in names)
    if unknown and issubclass(kind, Closed):
        problems.append(f"{where} has {', '.join(unknown)!r:.60}, which is not known here")
    for field in fields(kind):
        value = section.get(field.name)
        hint = hints[field.name]
        key = f"{inside}{field.name}"
        if optional := type(None) in get_args(hint):
            hint = get_args(hint)[0]
        if value is None and field.default is not MISSING:
            value = field.default
        elif value is None and not optional:
            problems.append(f"{key} is missing")
        elif value is not None and isinstance(hint, type) and is_dataclass(hint):
            value = _read(hint, value, key, problems)
        elif value is not None and (problem := _problem(value, hint)):
            problems.append(f"{key} is {value!r:.60}, expected {problem}")
        values[field.name] = value
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append(f"{inside}{error}")
        return None


def _problem(value: object, hint: object) -> str:
    """The expectation that a value does not meet, in words; '' if it fits."""
    if get_origin(hint) is Literal:
        return "" if value in get_args(hint) else " or ".join(map(repr, get_args(hint)))
    type_, bounds, count = (*get_args(hint), None)[:3]
    if isinstance(bounds, str):
        kinds = tuple(get_origin(each) for each in get_args(type_)) or type_
        return "" if isinstance(value, kinds) else bounds
    several = get_origin(type_) in (list, Sequence)
    is_integer = isinstance(bounds, range)
    if get_origin(type_) is UnionType:
        several = isinstance(value, list)
    numbers = value if several and isinstance(value, (list, tuple)) else [None if several else value]
    usable = (int,) if is_integer else (int, float)
    fit = bool(numbers)
    for number in numbers:
        # JSON's true is an int to Python. NaN and infinity are in no bounds.
        if not isinstance(number, usable) or isinstance(number, bool):
            fit = False
        elif is_integer:
            fit = fit and number in bounds
        else:
            fit = fit and bounds[0] < number <= bounds[1]
    if fit and (not several or count in (None, len(numbers))):
        return ""
    kind = "whole number" if is_integer else "number"
    if several:
        kind += "s"
    low, high = (bounds[0], bounds[-1]) if is_integer else (round(bounds[0], 6) + 0.0, bounds[1])
    return f"{(count or '') if several else 'a'} {kind} from {low:,} to {high:,}".strip()
