"""Results as files of JSON: the values that are written, and checks of those that come back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capeval_core.statistics import CorpusFormula


def plain(value: Any) -> Any:
    """`value` in JSON's types: numpy's become Python's, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(content: Any) -> str:
    """`content` as a file of JSON, without the tokens NaN and Infinity, which strict readers refuse."""
    return json.dumps(plain(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def fields_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a result but its counts, from what `Result.to_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: something is missing, or does not fit the rest.
    """
    _check_types(saved)
    columns = {"scores": saved["scores"], "groups": saved["groups"], **saved["parts"]}
    summands, formula = saved.get("summands"), _formula_of(saved)
    if summands is not None:
        columns["summands"] = summands
    if len({len(column) for column in columns.values()}) != 1:
        lengths = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise ValueError(f"it has {lengths}, which should be equally many")
    return {
        "metric": saved["metric"],
        "key": saved["key"],
        "scores": _numbers(saved["scores"]),
        "parts": {name: _numbers(part) for name, part in saved["parts"].items()},
        "groups": list(saved["groups"]),
        "signature": saved["signature"],
        "errors": {int(index): reason for index, reason in saved["errors"].items()},
        "relative": saved.get("relative"),
        "summands": None if summands is None else [_numbers(row) for row in summands],
        "formula": formula,
        "range": _range_of(*saved.get("range") or (None, None)),
    }


def _range_of(low: float | None, high: float | None) -> tuple[float, float]:
    return (-math.inf if low is None else float(low), math.inf if high is None else float(high))


def _formula_of(saved: Mapping[str, Any]) -> CorpusFormula | None:
    """The formula of a corpus metric, by which the sums in a file are read; None for any other metric."""
    from capeval_core.registry import METRICS, metric_class

    metric, summands = saved["metric"], saved.get("summands")
    if summands is None and metric not in METRICS:  # of a package that need not be installed to read it
        return None
    formula = metric_class(metric).formula
    if formula is None and summands is not None:
        raise ValueError(f"it has summands, and {metric} has no formula of sums")
    if formula is not None and summands is None:
        raise ValueError(f"it has no summands, which the number of {metric} is made of")
    if formula is not None and summands and len(summands[0]) != len(formula.sums):
        raise ValueError(
            f"its summands have {len(summands[0])} numbers, those of {metric} {len(formula.sums)}"
        )
    return formula


def _check_types(saved: Mapping[str, Any]) -> None:
    """Refuse a value that is no result before anything is computed with it."""
    if not isinstance(saved, Mapping):
        raise TypeError(f"expected an object, found {_shown(saved)}")
    fields = {"metric": str, "key": str, "signature": str, "scores": list, "groups": list}
    fields |= {"parts": Mapping, "counts": Mapping, "errors": Mapping}
    for name, kind in fields.items():
        if not isinstance(saved[name], kind):
            expected = {str: "a text", list: "a list"}.get(kind, "an object")
            raise TypeError(f"{name} should be {expected}, found {_shown(saved[name])}")
    for i, score in enumerate(saved["scores"]):
        if score is not None and not _is_number(score):
            raise ValueError(
                f"scores[{i}] is {_shown(score)}, not a number: scores are numbers, or null where scoring "
                "failed; write the file again with `capeval score --json`"
            )
    for i, group in enumerate(saved["groups"]):
        if not isinstance(group, str):
            raise TypeError(f"groups[{i}] should be a text, the key of an image, found {_shown(group)}")
    for name, part in saved["parts"].items():
        if not isinstance(part, list):
            raise TypeError(f"parts[{name!r}] should be a list, found {_shown(part)}")
    summands = saved.get("summands")
    if summands is not None and not (isinstance(summands, list) and _are_rows(summands)):
        raise TypeError("summands should be lists of equally many numbers, one list per caption")
    if not isinstance(saved.get("relative"), (str, type(None))):
        raise TypeError(f"relative should be a text or null, found {_shown(saved['relative'])}")
    for name, count in saved["counts"].items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"counts[{name!r}] should be a whole number, found {_shown(count)}")


def _is_number(value: Any) -> bool:
    """A number that float64 holds: `true` is none, nor is one of 400 digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _are_rows(values: Sequence[Any]) -> bool:
    """Whether these are lists of numbers or null, of one length."""
    rows = [row for row in values if isinstance(row, list)]
    return (
        len(rows) == len(values)
        and len(set(map(len, rows))) <= 1
        and all(value is None or (_is_number(value) and value >= 0) for row in rows for value in row)
    )


def _shown(value: Any) -> str:
    if isinstance(value, (bool, type(None))):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (int, float)):
        return repr(value) if _is_number(value) else "a number beyond the range of float64"
    return f"{value[:30]!r}" if isinstance(value, str) else f"a {type(value).__name__}"


def _numbers(saved: Sequence[Any]) -> list[Any]:
    """A component as it was: in a list of numbers, `plain` left None where there was NaN or an infinity."""
    if not all(value is None or _is_number(value) for value in saved):
        return list(saved)
    return [value if value is not None and math.isfinite(value) else math.nan for value in saved]
