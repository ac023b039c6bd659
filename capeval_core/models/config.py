"""A part of a config as a frozen dataclass: names, types and bounds checked, all problems told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from capeval_core.models.architecture import is_whole, shown
from capeval_core.weights.folder import WeightsError

T = TypeVar("T")

Width = Annotated[int, range(1, (1 << 20) + 1)]
Layers = Annotated[int, range(1, 1_001)]
Side = Annotated[int, range(1, 4_097)]
Few = Annotated[int, range(1_000)]
Places = Annotated[list[int], range(1_001)]


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
    for field in fields(kind):
        value, hint = section.get(field.name), hints[field.name]
        if value is None and field.default is not MISSING:
            continue
        if value is None:
            problems.append(f"{where} lacks {field.name}")
        elif is_dataclass(hint):
            values[field.name] = _read(hint, value, f"{where}.{field.name}", problems)
        else:
            type_, bounds = get_args(hint)
            several = get_origin(type_) is list
            numbers = value if several and isinstance(value, list) and value else [None if several else value]
            if not all(is_whole(number, bounds) for number in numbers):
                kinds = "whole numbers" if several else "a whole number"
                expected = f"expected {kinds} from {bounds[0]} to {bounds[-1]:,}"
                problems.append(f"{where}.{field.name} is {shown(value)}, {expected}")
            values[field.name] = value
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return None
