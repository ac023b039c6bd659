"""A part of a config as a frozen dataclass: names, types and bounds checked, all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from capeval_core.models.architecture import is_number, is_whole, shown
from capeval_core.weights.folder import WeightsError

T = TypeVar("T")

Width = Annotated[int, range(1, (1 << 20) + 1)]
Layers = Annotated[int, range(1, 1_001)]
Side = Annotated[int, range(1, 4_097)]
Count = Annotated[int, range(1, 100_001)]
Few = Annotated[int, range(1_000)]
Places = Annotated[list[int], range(1_001)]
Share = Annotated[float, (0, 1)]
"""Above 0, at most 1; numbers are above the first of their bounds."""


class Closed:
    """A part of a config that holds nothing else."""


def read(kind: type[T], section: Any, where: str = "architecture") -> T:
    """A part of a config; settings that the dataclass does not name are left alone.

    Raises:
        WeightsError: what is missing, of another type or out of bounds, by name.
    """
    problems: list[str] = []
    found: T | None = _read(kind, section, where, problems)
    if found is None:
        raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
    return found


def _read(kind: Any, section: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(section, Mapping):
        problems.append(f"{where} is {shown(section)}, expected an object")
        return None
    hints, values, before = get_type_hints(kind, include_extras=True), dict[str, Any](), len(problems)
    names, inside = {field.name for field in fields(kind)}, f"{where}." if where else ""
    if issubclass(kind, Closed) and (unknown := sorted(section.keys() - names)):
        problems.append(f"{where} has {shown(', '.join(unknown))}, which is not known here")
    for field in fields(kind):
        value, hint, key = section.get(field.name), hints[field.name], f"{inside}{field.name}"
        if is_dataclass(hint):
            values[field.name] = _read(hint, value, key, problems)
            continue
        if value is None:
            problems.append(f"{where} lacks {field.name}")
        elif problem := _problem(value, *get_args(hint)):
            problems.append(f"{key} is {shown(value)}, expected {problem}")
        values[field.name] = value
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append(f"{inside}{error}")
        return None


def _problem(value: Any, type_: Any, bounds: Any, count: int | None = None) -> str:
    """What is expected of a value that does not fit, in words; '' if it fits."""
    several, whole = get_origin(type_) is list, isinstance(bounds, range)
    numbers = value if several and isinstance(value, list) else [None if several else value]
    fit = all(is_whole(each, bounds) if whole else is_number(each, *bounds) for each in numbers)
    if fit and numbers and count in (None, len(numbers)):
        return ""
    kind = ("whole number" if whole else "number") + "s" * several
    low, high = (bounds[0], bounds[-1]) if whole else (round(bounds[0], 6) + 0.0, bounds[1])
    return f"{(count or '') if several else 'a'} {kind} from {low:,} to {high:,}".strip()
