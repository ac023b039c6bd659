"""Files of judged sets: JSON, JSON lines and CSV whose rows are checked as they are read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, Problems, did_you_mean, file_problem
from capeval_core.inputs.text_files import contents, decoded, load_json
from capeval_core.values import described

Kinds = Mapping[str, type | tuple[type, ...]]
_KINDS = {str: "a text", list: "a list", int: "a whole number"}
_FORMS = (".json", ".jsonl", ".ndjson", ".csv")


def read_rows(path: Path, fields: Kinds | None = None) -> list[dict[str, Any]]:
    """The rows of a file, each a dictionary whose `fields` are there and of these types."""
    rows, problems = [], Problems()
    for name, row in named_rows(path):
        if not isinstance(row, dict):
            fix = f"expected an object with {', '.join(fields or ['a rating'])}"
            problems.add(file_problem(path, described(row, none="null"), fix, index=name, verb="is"))
            continue
        for field, kind in (fields or {}).items():
            if field not in row:
                hint = did_you_mean(field, row)
                problems.add(file_problem(path, f"no {field!r}{hint}", index=name, verb="has"))
            elif not isinstance(row[field], kind) or isinstance(row[field], bool):
                found = f"{field}: {described(row[field], none='null')}"
                kinds = kind if isinstance(kind, tuple) else (kind,)
                fix = f"expected {' or '.join(_KINDS[one] for one in kinds)}"
                problems.add(file_problem(path, found, fix, index=name))
        rows.append(row)
    problems.raise_if_any()
    if not rows:
        raise FileError(file_problem(path, "holds no rows"))
    return rows


class Dropped:
    """Rows that are left out, counted by reason."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, reason: str, count: int = 1) -> None:
        if count:
            self.counts[reason] = self.counts.get(reason, 0) + count

    def rating(self, value: Any, name: str) -> float:
        """A rating as a number; one that is missing or no finite number is counted, and NaN."""
        if value is None or value == "":
            self.add(f"{name} missing")
            return math.nan
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self.add(f"{name} not a number")
            return math.nan
        return number


def read_lists(path: Path) -> dict[str, list[str]]:
    """A JSON object of lists of texts, e.g. {image: [references]}."""
    content = load_json(path)
    if not isinstance(content, dict) or not content:
        found = f"{described(content, none='null')}, expected {{image: [references]}}"
        raise FileError(file_problem(path, found))
    problems = Problems()
    for name, value in content.items():
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            found = f"{described(value, none='null')}, expected a list of texts"
            problems.add(file_problem(path, found, index=f"key {name!r}"))
    problems.raise_if_any()
    return content


def read_references(path: Path, images: Sequence[str]) -> list[list[str]]:
    """The references of each image, of a file {image: references}."""
    return references_of(path, read_lists(path), images)


def references_of(
    path: Path, references: Mapping[str, Sequence[str]], images: Sequence[str]
) -> list[list[str]]:
    """The references of each image of a list; `path` is the file that `references` came from."""
    missing = sorted({image for image in images if image not in references})
    if missing:
        found = f"{len(missing):,} of {len(set(images)):,} images ({', '.join(map(repr, missing[:3]))})"
        raise FileError(file_problem(path, f"{found} have no references"))
    return [list(references[image]) for image in images]


def named_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file of CSV, JSON (a list) or JSON lines, each with its name in messages."""
    kind = path.suffix.lower()
    if kind not in _FORMS:
        found = f"extension {path.suffix!r}, expected one of {', '.join(_FORMS)}"
        raise FileError(file_problem(path, found))
    text = decoded(path, contents(path))
    try:
        if kind == ".csv":
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            header = Counter(filter(None, reader.fieldnames or []))
            if twice := [name for name, count in header.items() if count > 1]:
                found = f"the column {twice[0]!r} comes twice"
                raise FileError(file_problem(path, found, "name each column once"))
            yield from ((f"row {number}", row) for number, row in enumerate(reader, start=1))
        elif kind == ".json":
            content = json.loads(text)
            if not isinstance(content, list):
                found = f"{described(content, none='null')}, expected a list of objects"
                raise FileError(file_problem(path, found))
            yield from ((f"entry {index}", row) for index, row in enumerate(content))
        else:
            for number, line in enumerate(text.split("\n"), start=1):  # a text may hold other ends of lines
                if line.strip():
                    yield f"line {number}", json.loads(line)
    except FileError:
        raise
    except (csv.Error, ValueError, RecursionError) as error:  # ValueError: also an integer of too many digits
        raise FileError(file_problem(path, f"is not {kind[1:]} ({error})")) from error
