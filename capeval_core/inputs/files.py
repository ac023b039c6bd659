"""Captions and references in the files that the field already uses.

Read by extension:

    .json     {image id: caption}, {image id: [captions]}, {image id: [references]},
              COCO results [{"image_id": ..., "caption": ...}],
              COCO annotations {"images": [...], "annotations": [...]}
    .jsonl    one object a line, with image_id, image or id, and caption, captions or references;
              also .ndjson
    .csv      a header with those names; several rows for one image, or a JSON list in a cell of
              captions or references; for candidates to choose from also one row per image, all its
              captions after its id, under any names
    .parquet  columns with those names

Image ids are strings throughout: the number 42 of COCO is "42", and finds `COCO_val2014_000000000042.jpg`.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from capeval_core.inputs.folder import (
    FileError,
    Names,
    counted,
    find_pictures,
    match_pictures,
    names_in,
)
from capeval_core.inputs.problems import Problems, described

__all__ = [
    "Collection",
    "FileError",
    "find_pictures",
    "read_candidates",
    "read_collection",
    "read_references",
]

Read = TypeVar("Read")

ID_FIELDS = ("image_id", "image", "id", "filename")
CANDIDATE_FIELDS = ("caption", "captions")
REFERENCE_FIELDS = ("references", "captions", "caption")
FORMS = (
    "{image id: caption}, {image id: [captions or references]}, "
    'COCO results [{"image_id": ..., "caption": ...}] and '
    'COCO annotations {"images": [...], "annotations": [...]}'
)


@dataclass(frozen=True)
class Collection:
    """Rows read from files: parallel lists, one entry per caption, fit for `metric.score`."""

    ids: list[str]
    captions: list[str]
    images: list[Path]
    references: list[list[str]] | None


@dataclass
class Texts:
    """The texts of a file by image id, in the file's order, and the file names that it gives to ids."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    file_names: dict[str, str] = field(default_factory=dict)

    def by_id(self) -> dict[str, list[str]]:
        gathered: dict[str, list[str]] = {}
        for image_id, text in self.rows:
            gathered.setdefault(image_id, []).append(text)
        return gathered


def read_candidates(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The captions to be scored, as (image id, caption) in the file's order; an id may come several times.

    Raises FileError with everything that is wrong with the file.
    """
    return read_whole(path, CANDIDATE_FIELDS).rows


def read_references(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The reference captions of every image id. Raises FileError with everything that is wrong."""
    return read_whole(path, REFERENCE_FIELDS).by_id()


def read_collection(
    candidates: str | os.PathLike[str],
    images: str | os.PathLike[str],
    references: str | os.PathLike[str] | None = None,
    *,
    wide: bool = False,
) -> Collection:
    """Join a file of candidates with a folder of images and a file of references.

    Every candidate needs a picture, and references if a file of them is given; pictures and references that
    no candidate asks for are left out. Ids need not be written the same way in all three (see `Names`), and
    the `file_name` of COCO annotations is used where there is one. `wide`: CSV may have one row per image,
    its candidates side by side.

    Raises FileError that lists everything that does not match.
    """
    problems = Problems()
    asked = attempted(lambda: read_texts(candidates, CANDIDATE_FIELDS, problems, wide=wide), problems)
    names = attempted(lambda: Names(names_in(Path(images))), problems)
    known = None
    if references is not None:
        known = attempted(lambda: read_texts(references, REFERENCE_FIELDS, problems), problems)

    asked = asked or Texts()
    ids = list(asked.by_id())
    pictures: dict[str, Path] = {}
    compared: dict[str, list[str]] = {}
    if names is not None:
        given = {**(known.file_names if known else {}), **asked.file_names}
        wanted = {i: [Path(given[i]).name, i] if i in given else [i] for i in ids}
        pictures = match_pictures(Path(images), names, wanted, problems)
    if references is not None and known is not None:
        compared = match_references(Path(references), known.by_id(), ids, problems)
    problems.raise_if_any()
    return Collection(
        ids=[image_id for image_id, _ in asked.rows],
        captions=[caption for _, caption in asked.rows],
        images=[pictures[image_id] for image_id, _ in asked.rows],
        references=None if known is None else [compared[image_id] for image_id, _ in asked.rows],
    )


def attempted(read: Callable[[], Read], problems: Problems) -> Read | None:
    """What `read` returns, or None with its complaint noted, so that the other files are read as well."""
    try:
        return read()
    except FileError as error:
        problems.add(str(error), kind=FileError)
        return None


def match_references(
    path: Path, known: dict[str, list[str]], ids: list[str], problems: Problems
) -> dict[str, list[str]]:
    names = Names(known)
    found: dict[str, list[str]] = {}
    missing: list[str] = []
    for image_id in ids:
        matches = names.find(image_id)
        if len(matches) == 1:
            found[image_id] = known[matches[0]]
        elif matches:
            several = " and ".join(map(repr, matches))
            problems.add(f"{path}: the id {image_id!r} is ambiguous, it can mean {several}", kind=FileError)
        else:
            missing.append(image_id)
    if missing:
        problems.add(f"{path}: {counted(missing, len(ids))} no references", kind=FileError)
    return found


def read_whole(path: str | os.PathLike[str], fields: Sequence[str]) -> Texts:
    problems = Problems()
    texts = read_texts(path, fields, problems)
    problems.raise_if_any()
    return texts


def read_texts(
    path: str | os.PathLike[str], fields: Sequence[str], problems: Problems, *, wide: bool = False
) -> Texts:
    """Read any of the forms; `fields` are the names under which a row's text may stand.

    What is wrong with single rows is noted; a file that cannot be read at all raises FileError.
    """
    path = Path(path)
    readers = {
        ".json": read_json,
        ".jsonl": read_json_lines,
        ".ndjson": read_json_lines,
        ".csv": read_wide_csv if wide else read_csv,
        ".parquet": read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if path.is_dir():
        raise FileError(f"{path}: is a folder, expected a file")
    if reader is None:
        found = f"extension {path.suffix!r}" if path.suffix else "no extension"
        raise FileError(f"{path}: {found}, expected one of {', '.join(readers)}")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise FileError(f"{path}: is empty")
    before = len(problems)
    texts = reader(path, data, fields, problems)
    if not texts.rows and len(problems) == before:
        raise FileError(f"{path}: holds no captions")
    return texts


class Gatherer:
    """Turns the values of a file into Texts and notes what is wrong with them, by place."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self.texts = Texts()
        self._lists: dict[str, list[str]] = {}

    def complain(self, message: str) -> None:
        self.problems.add(f"{self.path}: {message}", kind=FileError)

    def row(self, row: Any, place: str, fields: Sequence[str]) -> None:
        """One object with an id and a text, from JSON, JSON lines, CSV or Parquet."""
        if not isinstance(row, dict):
            self.complain(f"{place} is {described(row)}: expected an object with an id and a caption")
            return
        id_field = next((name for name in ID_FIELDS if row.get(name) is not None), None)
        text_field = next((name for name in fields if name in row), None)
        if id_field is None or text_field is None:
            needed = " or ".join(ID_FIELDS if id_field is None else fields)
            found = ", ".join(map(repr, list(row)[:8])) or "nothing"
            self.complain(f"{place} has no {needed}, only {found}")
            return
        image_id = self.image_id(row[id_field], f"{place}: {id_field}")
        if image_id is not None:
            repeats = text_field == "references"  # rows that carry their image's whole list each
            self.add(image_id, row[text_field], f"{place} (id {image_id!r}): {text_field}", repeats)

    def image_id(self, value: Any, place: str) -> str | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return value
        found = "an empty string" if value == "" else described(value)
        self.complain(f"{place} is {found}: expected a string or a whole number")
        return None

    def add(self, image_id: str, value: Any, place: str, repeats: bool = False) -> None:
        """A caption or a list of them. With `repeats`, the same list may come again and counts once."""
        values = value if isinstance(value, list) else [value]
        if not values:
            self.complain(f"{place} is an empty list")
        for j, text in enumerate(values):
            if not isinstance(text, str):
                item = f"{place}[{j}]" if isinstance(value, list) else place
                found = "null" if text is None else described(text)
                self.complain(f"{item} is {found}: expected a string")
                return
        if repeats and isinstance(value, list) and self._lists.setdefault(image_id, value) is not value:
            if self._lists[image_id] != value:
                self.complain(f"{place} differ from those given for this id before")
            return
        self.texts.rows.extend((image_id, text) for text in values)


def read_json(path: Path, data: bytes, fields: Sequence[str], problems: Problems) -> Texts:
    content = parse_json(path, decoded(path, data))
    gatherer = Gatherer(path, problems)
    if isinstance(content, dict) and is_list_of_objects(content.get("annotations")):
        read_coco_annotations(content, fields, gatherer)
    elif isinstance(content, dict) and all(isinstance(value, (str, list)) for value in content.values()):
        for image_id, value in content.items():
            if image_id:
                gatherer.add(image_id, value, f"id {image_id!r}")
            else:
                gatherer.complain("an image id is the empty string")
    elif isinstance(content, dict) and any(isinstance(value, (str, list)) for value in content.values()):
        for image_id, value in content.items():
            if not isinstance(value, (str, list)):
                found = "null" if value is None else described(value)
                gatherer.complain(f"id {image_id!r} is {found}: expected a caption or a list of them")
    elif is_list_of_objects(content):
        for i, row in enumerate(content):
            gatherer.row(row, f"entry {i}", fields)
    else:
        gatherer.complain(f"unknown form, found {outlined(content)}; read are {FORMS}")
    return gatherer.texts


def is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def read_coco_annotations(content: dict[str, Any], fields: Sequence[str], gatherer: Gatherer) -> None:
    for i, row in enumerate(content["annotations"]):
        gatherer.row(row, f"annotation {i}", fields)
    images = content.get("images", [])
    for i, image in enumerate(images if isinstance(images, list) else []):
        if isinstance(image, dict) and isinstance(image.get("file_name"), str):
            image_id = gatherer.image_id(image.get("id"), f"image {i}: id")
            if image_id is not None:
                gatherer.texts.file_names[image_id] = image["file_name"]


def read_json_lines(path: Path, data: bytes, fields: Sequence[str], problems: Problems) -> Texts:
    gatherer = Gatherer(path, problems)
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(decoded(path, data).split("\n"), start=1):
        if line.strip():
            try:
                row = parse_json(path, line, first_line=number)
            except FileError as error:
                problems.add(str(error), kind=FileError)
            else:
                gatherer.row(row, f"line {number}", fields)
    return gatherer.texts


def read_csv(path: Path, data: bytes, fields: Sequence[str], problems: Problems) -> Texts:
    gatherer = Gatherer(path, problems)
    reader = csv.reader(io.StringIO(decoded(path, data), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not (set(header) & set(ID_FIELDS) and set(header) & set(fields)):
            raise FileError(
                f"{path}: the header has {', '.join(map(repr, header[:8]))}, "
                f"expected {' or '.join(ID_FIELDS)}, and {' or '.join(fields)}"
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                gatherer.complain(
                    f"line {reader.line_num} has {len(cells)} cells, the header has {len(header)}"
                )
                continue
            row: dict[str, Any] = dict(zip(header, cells, strict=True))
            for name in ("captions", "references"):
                if name in row and row[name].lstrip().startswith("["):
                    row[name] = listed(row[name])
            gatherer.row(row, f"line {reader.line_num}", fields)
    except csv.Error as error:
        gatherer.complain(f"line {reader.line_num} is not CSV ({error})")
    return gatherer.texts


def read_wide_csv(path: Path, data: bytes, fields: Sequence[str], problems: Problems) -> Texts:
    """One row per image: its id, then its captions, whose names do not matter; empty cells are none.

    A header that names a column of captions is read as any other file.
    """
    reader = csv.reader(io.StringIO(decoded(path, data), newline=""), strict=True)
    gatherer = Gatherer(path, problems)
    try:
        header = [name.strip() for name in next(reader, [])]
        if set(header) & set(fields) or len(header) < 2:
            return read_csv(path, data, fields, problems)
        seen: set[str] = set()
        for image_id, *cells in filter(None, reader):
            place = f"line {reader.line_num}"
            captions = [cell for cell in cells if cell.strip()]
            if image_id in seen:
                gatherer.complain(f"{place}: the id {image_id!r} comes twice, expected one row per image")
            elif (checked := gatherer.image_id(image_id, f"{place}: {header[0] or 'the id'}")) is not None:
                gatherer.add(checked, captions, f"{place} (id {image_id!r}): its captions")
            seen.add(image_id)
    except csv.Error as error:
        gatherer.complain(f"line {reader.line_num} is not CSV ({error})")
    return gatherer.texts


def listed(cell: str) -> Any:
    """A JSON list in a cell of CSV; a text that merely begins with a bracket stays a text."""
    try:
        value = json.loads(cell)
    except ValueError:
        return cell
    return value if isinstance(value, list) else cell


def read_parquet(path: Path, data: bytes, fields: Sequence[str], problems: Problems) -> Texts:
    import pyarrow as pa
    import pyarrow.parquet as pq

    gatherer = Gatherer(path, problems)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        columns = file.schema_arrow.names
        wanted = [name for name in (*ID_FIELDS, *fields) if name in columns]
        if not (set(wanted) & set(ID_FIELDS) and set(wanted) & set(fields)):
            raise FileError(
                f"{path}: the columns are {', '.join(map(repr, columns[:8]))}, "
                f"expected {' or '.join(ID_FIELDS)}, and {' or '.join(fields)}"
            )
        for i, row in enumerate(parquet_rows(file, list(dict.fromkeys(wanted)))):
            gatherer.row(row, f"row {i}", fields)
    except pa.ArrowException as error:
        gatherer.complain(f"is not Parquet ({' '.join(str(error).split())[:200]})")
    return gatherer.texts


def parquet_rows(file: Any, columns: list[str]) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(columns=columns):
        yield from batch.to_pylist()


def decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: is not UTF-8 (byte {data[error.start]:#04x} at position {error.start}): convert it"
        ) from None


def parse_json(path: Path, text: str, first_line: int = 1) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                repeated.append(key)
            result[key] = value
        return result

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        mend = ""
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            mend = "; if each line is an object, name it .jsonl"
        line = first_line + error.lineno - 1
        raise FileError(f"{path}: not JSON (line {line}, column {error.colno}: {error.msg}){mend}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise FileError(f"{path}: JSON that cannot be read ({error})") from None
    if repeated:
        keys = ", ".join(map(repr, list(dict.fromkeys(repeated))[:5]))
        mend = "for several captions of an image use {image id: [captions]}"
        raise FileError(f"{path}: the key {keys} comes twice; {mend}")
    return content


def outlined(content: Any) -> str:
    """The form of a JSON value in a few words."""
    if isinstance(content, dict):
        if not content:
            return "an empty object"
        key, value = next(iter(content.items()))
        return f"an object with {key!r}: {described(value)}"
    if isinstance(content, list):
        return f"a list with {described(content[0])}" if content else "an empty list"
    return "null" if content is None else described(content)
