"""Runs the cases of a metric through public doors, and makes plain values of what comes out."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import capeval_core
from capeval_core import Result
from tests.behaviour import inputs

Case = dict[str, Any]
"""Quantity -> plain value."""
OPTIONS = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
"""Metrics and options. `@half`: statistics of half of the input; another `@`: of `inputs`, or a folder."""
TEXTS = ("bleu", "rougel", "cider", "ciderd", "chair")
PLACE = re.compile(r"\b[a-z]\w*(?:\[['\"\w-]+\])+|\bexplain\(\w+\)")
ARGUMENT = r"\b(?:captions|images|videos|references|rows|explain|result|level|compare{})\b"


def cases(metric: str, folder: Path, most: int | None = None) -> Iterator[tuple[str, Case]]:
    """Title and quantities of a metric's cases, or of the first of them, and what it refuses."""
    folder.mkdir()
    sets = [own for names, own in OPTIONS.items() if metric in names.split()]
    for number, options in enumerate(
        [*OPTIONS["every metric"], *(one for own in sets for one in own)][:most]
    ):
        if metric in TEXTS and options.keys() & {"dtype", "compat", "batch_size"}:
            continue
        title = " ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
        yield f"{metric}[{title}]", _scored(metric, options, folder, folder / f"rows{number}")
    yield f"{metric}[refused]", _refused(metric, folder)


def _scored(metric: str, options: Mapping[str, Any], folder: Path, kept: Path) -> Case:
    name, _, media = metric.partition(":")
    by_id = name in ("umic", "vilbertscore") and "regions" in options
    medium = "ids" if by_id else media or options.get("media", "image")
    flags = {"empty": options.get("empty") == "score", "broken": options.get("on_error") == "nan"}
    given = inputs.rows(medium, folder, **flags)
    opened = _opened(metric, options, folder, given)
    result = opened.score(**_arguments(opened, metric, given), rows=kept)
    captions = [caption for caption, *_ in [*given[1:], given[0]]]
    other = [(caption, *rest) for caption, (_, *rest) in zip(captions, given, strict=True)]
    second = opened.score(**_arguments(opened, metric, other))
    return {
        **_of_rows(kept),
        **_of_result(result),
        "interval": attempt(result.interval),
        "interval(0.5)": attempt(lambda: result.interval(0.5)),
        "compare": attempt(lambda: _paired(result.compare(second))),
        "compare(0.8)": attempt(lambda: _paired(second.compare(result, 0.8))),
    }


def _paired(comparison: Any) -> dict[str, Any]:
    """The numbers of a paired test; the same by image has a test of its own, and so has the direction."""
    others = ("by_image", "higher_is_better")
    return {name: value for name, value in vars(comparison).items() if name not in others}


def _opened(metric: str, options: Mapping[str, Any], folder: Path, given: list[Any]) -> Any:
    name, _, media = metric.partition(":")
    common = {"cache": folder / "cache", "device": "cpu"} | ({"media": media} if media else {})
    common |= {} if name in TEXTS else {"weights": "tiny"}
    made: dict[str, Any] = {}
    for option, value in options.items():
        if value == "@half":
            made[option] = capeval_core.load(name, **common).prepare(inputs.every_text(given[::2]))
        elif str(value).startswith("@"):
            make = getattr(inputs, value[1:], None)
            made[option] = make(given) if make else folder / value[1:]
    return capeval_core.load(name, **{**common, **options, **made})


def _arguments(opened: Any, metric: str, given: list[Any]) -> dict[str, Any]:
    captions, visuals, references = map(list, zip(*given, strict=True))
    arguments = {"captions": inputs.pools(captions) if metric == "eco" else captions}
    if metric not in TEXTS:
        arguments["videos" if metric.endswith(":video") else "images"] = visuals
    return arguments | ({"references": references} if opened.needs_references else {})


def _of_rows(folder: Path) -> Case:
    """The columns of all tables of rows in a folder, without content keys and sentences."""
    tables: dict[str, list[pa.Table]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        tables.setdefault(file.parent.relative_to(folder).as_posix(), []).append(pq.read_table(file))
    found = {}
    for place, parts in tables.items():
        columns = pa.concat_tables(parts).sort_by("index").to_pydict()
        columns |= {"group": _pattern(columns["group"]), "error": [where(text) for text in columns["error"]]}
        for name in columns.keys() - {"content"}:
            found[f"rows/{place}/{name}".replace("/./", "/")] = plain(columns[name])
    return dict(sorted(found.items()))


def _of_result(result: Result) -> Case:
    saved, index = result.to_dict(), min(result.errors, default=len(result) - 1)
    row = result[index - len(result)]
    same = [name for name in saved if saved[name] == plain(getattr(result, name), 17)]
    found = {
        "signature": re.sub(r"\|v:[^|]*$", "", result.signature),
        "counts": vars(result.counts),
        "numbers": result.numbers,
        "scores": result.scores,
        **{f"parts/{name}": part for name, part in result.parts.items()},
        "summands": result.summands,
        "groups": _pattern(result.groups),
        "relative": result.relative is not None,
        "errors": {index: where(reason) for index, reason in result.errors.items()},
        "worst": [row["index"] for row in result.worst(3)],
        "best": [row["index"] for row in result.best(3)],
        "one row": [sorted(row), row["index"], row[result.key], where(row["error"])],
        "to_dict": {name: "as the result" if name in same else type(saved[name]).__name__ for name in saved},
        "from_dict": Result.from_dict(saved).to_dict() == saved,
    }
    for index in [*range(0, len(result), 5), *result.errors][:6] if result.evidence else []:
        explained = result.explain(index)
        note = {**explained, "image": None, "error": where(explained.get("error"))}
        if "boxes" in note:  # of an image of four pixels they tie, but for rounding
            note["boxes"] = sorted(note["boxes"], key=lambda own: own["box"])
        found[f"explain({index})"] = note
    return {name: plain(value) for name, value in found.items()}


def _refused(metric: str, folder: Path) -> Case:
    found = {}
    for name, values in OPTIONS["wrong options"].items():
        for value in values:
            attempted = attempt(lambda: _opened(metric, {name: value}, folder, []) and None, name)  # noqa: B023
            found[f"{name}={value!r:.12}"] = attempted
    given = inputs.rows(metric.partition(":")[2] or "image", folder, empty=False, broken=False)[:4]
    opened = _opened(metric, {}, folder, given)
    for title, (argument, index, *value) in OPTIONS["wrong input"].items():
        arguments = _arguments(opened, metric, given)
        if index is None:
            arguments[argument] = value[0]
        elif argument not in arguments:
            continue
        else:
            arguments[argument][index : index + 1 or None] = value
        found[title] = attempt(lambda: opened.score(**arguments) and None)  # noqa: B023
    result = opened.score(**_arguments(opened, metric, given))
    for method, values in OPTIONS["wrong calls"].items():
        found |= {f"{method}({value!r})": attempt(lambda: getattr(result, method)(value)) for value in values}  # noqa: B023
    return found


def attempt(run: Callable[[], Any], *options: str) -> Any:
    """What it gives as plain values, or the builtin type of its error and the places that the error names."""
    try:
        return plain(run())
    except Exception as error:
        kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins")
        return [kind, *where(str(error), *options)]


def where(message: str | None, *options: str) -> list[str]:
    """The places that a message names: in each line those with an index, else the first argument."""
    first = re.compile(ARGUMENT.format("".join(f"|{option}" for option in options)))
    found = [PLACE.findall(line) or first.findall(line)[:1] for line in (message or "").splitlines()]
    return sorted({place for places in found for place in places})


def _pattern(keys: list[str]) -> list[int]:
    """Which keys are equal: of each one its first index, -1 of an empty one."""
    return [keys.index(key) if key else -1 for key in keys]


def plain(value: Any, digits: int = 9) -> Any:
    """A value in JSON's types; floats have 9 significant digits, and are None where they are not finite."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one, digits) for name, one in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)):
        return [plain(one, digits) for one in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def unlike(old: Any, new: Any) -> float:
    """The largest difference of numbers, of those above 1 in shares; infinite where anything else differs."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(map(unlike, old, new), default=0.0)
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return max((unlike(old[name], new[name]) for name in old), default=0.0)
    if type(old) in (int, float) and type(new) in (int, float):
        return float(abs(old - new) / max(1.0, abs(old)))
    return 0.0 if old == new and type(old) is type(new) else math.inf
