"""JSON: which parsed content becomes which records. `FORMS` are tried in their order, the first fit counts.

Nothing here knows which name means a caption, except where that tells two forms apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from capeval_core.errors import described, noting
from capeval_core.inputs import files, names
from capeval_core.inputs.files import some_of
from capeval_core.inputs.records import FILE_NAME, KEY, LOOKED_AT, VALUE, Record, Records, TextSource
from capeval_core.inputs.segments import by_segment

_DEEPEST = 4  # objects around the records
_CONTAINERS = ("results", "data", "annotations", "items", "samples")
"""Names of lists and objects that hold records, besides those of captions and references."""


def open_json(source: TextSource, data: bytes, name: str) -> Records:
    """The records of JSON, or of JSON lines under a name that ends with .json."""
    text = files.decoded(source.path, data)
    first_line, _, further_lines = text.lstrip().partition("\n")
    if first_line.rstrip().endswith("}") and further_lines.lstrip().startswith("{"):
        return open_json_lines(source, data, name)
    return by_segment(records_of(source, files.parsed(source.path, text)))


def open_json_lines(source: TextSource, data: bytes, name: str) -> Records:
    """The objects of JSON lines; note lines that are not one."""
    rows: list[Record] = []
    numbers: list[int] = []
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(files.decoded(source.path, data).split("\n"), start=1):
        if not line.strip():
            continue
        with noting(source.problems):
            content = files.parsed(source.path, line, first_line=number)
            if isinstance(content, dict):
                rows.append(content)
                numbers.append(number)
            else:
                fix = "expected an object with an id and a caption"
                source.note_problem(f"line {number}", f"is {described(content, none='null')}", fix)
    if _are_pairs(source, rows):
        return Records(source.path, "JSON lines of one id each", _keyed_pairs(rows))
    return by_segment(Records(source.path, "JSON lines", rows, "line", numbers))


def records_of(source: TextSource, content: object, depth: int = 0) -> Records:
    """The records of parsed JSON: those of the first form that fits. Raises FileError where none does.

    depth: how many objects around the records were opened.
    """
    for form in FORMS:
        records = form(source, content, depth)
        if records is not None:
            return records
    if isinstance(content, dict) and not content:
        raise source.error("holds no captions")
    if isinstance(content, dict) and all(isinstance(value, dict) for value in content.values()):
        first: dict[str, Any] = next(iter(content.values()))
        if len(content) <= len(first) and all(map(_is_text, first.values())):
            fix = "write one of them into a file of its own"
            raise source.error(f"holds records under {some_of(content)}", fix)
        # Which of their values is the text shows when columns are chosen.
        return Records(source.path, "objects by image id", _keyed_rows(content))
    fix = "expected {image id: caption or captions}, or a list of objects with an id and a caption each"
    raise source.error(f"unknown form, found {described(content, none='null')}", fix)


# ---- the forms


def _coco(source: TextSource, content: object, depth: int) -> Records | None:
    """`annotations` of `images` (COCO, VizWiz, nocaps), or `sentences` of `videos` (MSR-VTT)."""
    if not isinstance(content, dict):
        return None
    for name in names.listed("containers", "texts"):
        annotations = content.get(name)
        if not _are_objects(annotations):
            continue
        visuals: dict[str, Record] = {}
        medium = "images"
        for key in names.listed("containers", "visuals"):
            medium = key if content.get(key) else medium
            for index, visual in enumerate(content.get(key) or []):
                _add_visual(source, visuals, visual, f"{key.removesuffix('s')} {index}")
        rows = [_with_visual(row, visuals) for row in annotations] if visuals else list(annotations)
        unit = name.removesuffix("s")
        names_files = any(FILE_NAME in visual for visual in visuals.values())
        return Records(
            source.path, f"{unit}s of {medium}", rows, unit, range(len(rows)), names_files=names_files
        )
    return None


def _add_visual(source: TextSource, visuals: dict[str, Record], visual: object, place: str) -> None:
    """Note an image or video of annotations under its ids, with its fields."""
    problem = f"is {described(visual, none='null')}, expected an object with id and file_name"
    if not isinstance(visual, dict):
        source.note_problem(place, problem)
        return
    file_name = visual.get(FILE_NAME)
    if file_name is not None and not isinstance(file_name, str):
        source.note_problem(place, problem)
        return
    fields = {name: value for name, value in visual.items() if isinstance(value, (str, int, float))}
    for key in ("id", "video_id", "image_id"):
        visual_id = names.as_id(visual.get(key))
        if visual_id is None:
            continue
        first = visuals.setdefault(visual_id, fields)
        if first.get(FILE_NAME) != fields.get(FILE_NAME):
            source.note_problem(place, f"the id {visual_id!r} is also that of {first.get(FILE_NAME)!r}")
    if file_name and names.as_id(visual.get("id")) is None:
        source.note_problem(place, problem)


def _with_visual(row: Record, visuals: Mapping[str, Record]) -> Record:
    """An annotation with the fields of its image; `id` stays that of the annotation."""
    for key in ("image_id", "video_id"):
        visual_id = names.as_id(row.get(key))
        visual = visuals.get(visual_id) if visual_id is not None else None
        if visual is not None:
            fields = {name: value for name, value in visual.items() if name not in ("id", "caption")}
            return {**fields, **row}
    return row


def _karpathy(source: TextSource, content: object, depth: int) -> Records | None:
    """Karpathy's `images`, each with its `sentences`."""
    images = content.get("images") if isinstance(content, dict) else None
    if not _are_objects(images) or not any("sentences" in image for image in images):
        return None
    rows = []
    for image in images:
        folder = image.get("filepath")
        name = image.get("filename")
        if isinstance(folder, str) and isinstance(name, str):
            image = {**image, FILE_NAME: f"{folder}/{name}"}
        rows.append(image)
    names_files = any(FILE_NAME in row for row in rows)
    return Records(source.path, "Karpathy's images", rows, "image", range(len(rows)), names_files=names_files)


def _pandas(source: TextSource, content: object, depth: int) -> Records | None:
    """Rows under their columns, as `DataFrame.to_json` writes them with orient="split"."""
    if not isinstance(content, dict) or not {"columns", "data"} <= content.keys():
        return None
    if not content.keys() <= {"columns", "data", "index"}:
        return None
    columns = content["columns"]
    data = content["data"]
    if not isinstance(columns, list) or not isinstance(data, list):
        return None
    if not all(isinstance(row, list) and len(row) == len(columns) for row in data):
        raise source.error(f"has rows that are not of {len(columns)} columns each", "write a list of objects")
    rows = _rows_of_cells([str(column) for column in columns], data)
    return Records(source.path, "a table by rows", rows, "row", range(len(rows)))


def _parallel(source: TextSource, content: object, depth: int) -> Records | None:
    """Lists by column, `{"image_id": [...], "caption": [...]}`, also as `DataFrame.to_json` writes them."""
    if not isinstance(content, dict) or not source.has_text(content):
        return None
    columns = {name: value for name, value in content.items() if isinstance(value, list)}
    by_row = {name: value for name, value in content.items() if isinstance(value, dict)}
    if by_row and columns:
        return None
    fields = [*columns, *by_row]
    has_id = source.has_name(fields, "id")
    has_both_texts = source.has_name(fields, "caption") and source.has_name(fields, "references")
    if not source.has_text(fields):
        return None
    if not has_id and not (has_both_texts and columns) and source.role != "rating":
        return None
    if by_row:
        if len({tuple(value) for value in by_row.values()}) > 1:
            raise source.error(
                f"has columns of different rows ({some_of(by_row)})", "write a list of objects"
            )
        columns = {name: list(value.values()) for name, value in by_row.items()}
    if any(_holds_a_record(source, column) for column in columns.values()):
        return None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} of {length:,}" for name, length in lengths.items())
        problem = f"has lists by column of different lengths ({listed})"
        raise source.error(problem, "write a list of objects")
    rows = _rows_of_cells(columns, zip(*columns.values(), strict=True))
    return Records(source.path, "lists by column", rows, "row", range(len(rows)), has_ids=has_id)


def _container(source: TextSource, content: object, depth: int) -> Records | None:
    """An object around the records: `{"predictions": [...]}`, `{"train": [...], "test": [...]}`."""
    if not isinstance(content, dict) or depth > _DEEPEST:
        return None
    inside = _values_with_records(source, content)
    if not inside:
        return None
    if all(map(names.is_split, inside)):
        rows: list[Record] = []
        for split, value in inside.items():
            rows += [{"split": split, **row} for row in records_of(source, value, depth + 1).rows]
        return Records(source.path, f"parts {some_of(inside)}", rows, "entry", range(len(rows)))
    key = _key_of_role(source, inside)
    _refuse_unclear_key(source, content, key)
    records = records_of(source, inside[key], depth + 1)
    records.form = f"{records.form} under {key!r}"
    part = content.get("split")
    if isinstance(part, str) and "split" not in records.fields:
        for row in records.rows:
            row["split"] = part
        del records.fields  # which are remembered
    return records


def _single(source: TextSource, content: object, depth: int) -> Records | None:
    """One record alone."""
    if not isinstance(content, dict) or not source.is_record(content):
        return None
    plain_values: tuple[type, ...] = (str, list, type(None))
    if source.role == "rating":
        plain_values = (*plain_values, int, float)
    has_id = False
    for name, value in content.items():
        if names.is_name(name, "id"):
            has_id = has_id or bool(names.as_id(value))
        elif source.has_text([name]) and (
            not isinstance(value, plain_values) or _holds_a_record(source, value)
        ):
            return None
    return Records(source.path, "one record", [content], "entry", range(1)) if has_id else None


def _list(source: TextSource, content: object, depth: int) -> Records | None:
    """A list of objects, also `{image id: caption}`, of pairs, or of texts in the order of another file."""
    if not isinstance(content, list) or not content:
        return None
    if any(isinstance(row, dict) for row in content):
        return _list_of_objects(source, content)
    if all(isinstance(row, list) and len(row) == 2 for row in content):
        ids = [names.as_id(image_id) for image_id, _ in content]
        if not any(image_id is None or re.search(r"\s", image_id) for image_id in ids):
            rows = [{KEY: image_id, VALUE: pair[1]} for image_id, pair in zip(ids, content, strict=True)]
            return Records(source.path, "pairs of id and caption", rows, "entry", range(len(rows)))
    if source.role == "rating" and all(map(_may_be_rating, content)):
        form = "a list of numbers"
    elif all(isinstance(row, (str, list)) for row in content):
        form = "a list of texts"
    else:
        return None
    rows = [{VALUE: row} for row in content]
    return Records(source.path, form, rows, "entry", range(len(rows)), has_ids=False)


def _list_of_objects(source: TextSource, content: Sequence[object]) -> Records:
    """The objects of a list; note anything else in it."""
    rows: list[Record] = []
    numbers: list[int] = []
    for index, row in enumerate(content):
        if isinstance(row, dict):
            rows.append(row)
            numbers.append(index)
        else:
            fix = "expected an object with an id and a caption"
            source.note_problem(f"entry {index}", f"is {described(row, none='null')}", fix)
    if _are_pairs(source, rows):
        return Records(source.path, "a list of one id each", _keyed_pairs(rows))
    return Records(source.path, "a list of objects", rows, "entry", numbers)


def _mapping(source: TextSource, content: object, depth: int) -> Records | None:
    """`{image id: caption}`, `{image id: [captions]}`, `{image id: {...}}`, `{image id: [{...}]}`."""
    if not isinstance(content, dict) or not content:
        return None
    if not any(isinstance(value, list) or _is_entry(source, value) for value in content.values()):
        return None
    if any(isinstance(value, dict) for value in content.values()):
        # Objects without a text next to others with one are metadata.
        metadata = [key for key, value in content.items() if not _is_entry(source, value)]
        if metadata:
            fix = "write the captions into an object of their own"
            raise source.error(f"holds captions beside {some_of(metadata)}", fix)
    return Records(source.path, "an object by image id", _keyed_rows(content))


FORMS: Sequence[Callable[[TextSource, object, int], Records | None]] = (
    _coco,
    _karpathy,
    _pandas,
    _parallel,
    _container,
    _single,
    _list,
    _mapping,
)


# ---- which value of an object holds the records


def _values_with_records(source: TextSource, content: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an object that hold records; else its only list of objects."""
    inside = {
        key: value for key, value in content.items() if _holds_records(source, key, value, len(content))
    }
    if inside:
        return inside
    lists = {key: value for key, value in content.items() if _are_objects(value)}
    return lists if len(lists) == 1 and not _is_mapping(source, content) else {}


def _holds_records(source: TextSource, key: str, value: object, key_count: int) -> bool:
    """Whether a list or object under a key holds records, rather than the captions of that id."""
    if _are_objects(value):
        records = [row for row in value[:LOOKED_AT] if source.is_record(row)]
        return any(not _is_about(row, key) for row in records)
    if isinstance(value, dict) and value and not source.has_text(value):
        may_hold_records = (
            names.is_split(key)
            or source.has_name([key], "caption")
            or source.has_name([key], "references")
            or names.plain(key) in _CONTAINERS
        )
        if key_count > 1 and not may_hold_records:
            return False
        return _is_mapping(source, value) or any(_are_objects(inner) for inner in value.values())
    return False


def _is_about(row: Record, key: str) -> bool:
    """Whether a record names the image under whose id it is, as in pycocoevalcap's results."""
    for name, value in row.items():
        image_id = names.as_id(value) if names.is_name(name, "id") else None
        if image_id is not None and files.bare(image_id) == files.bare(key):
            return True
    return False


def _key_of_role(source: TextSource, inside: Mapping[str, object]) -> str:
    """The key of the records to read; FileError where several may be meant."""
    if len(inside) == 1:
        return next(iter(inside))
    keys = [key for key in inside if names.is_name(key, source.role)]
    keys_of_one_role = [key for key in keys if not names.is_name(key, _other_role(source))]
    keys = keys_of_one_role or keys
    if len(keys) != 1:
        fix = "write one of them into a file of its own"
        raise source.error(f"holds records under {' and '.join(map(repr, inside))}", fix)
    return keys[0]


def _refuse_unclear_key(source: TextSource, content: Mapping[str, object], key: str) -> None:
    """Refuse to read references as candidates, or candidates as references, next to other lists."""
    siblings = []
    for name, value in content.items():
        if name != key and isinstance(value, (list, dict)) and value:
            siblings.append(name)
    if siblings and names.is_name(key, _other_role(source)) and not names.is_name(key, source.role):
        problem = f"holds {key!r} and {some_of(siblings)}, and it is unclear which is meant"
        raise source.error(problem, "write the one to read into a file of its own")


def _other_role(source: TextSource) -> str:
    return "references" if source.role == "caption" else "caption"


# ---- values


def _keyed_rows(content: Mapping[str, object]) -> list[Record]:
    """A record for each key of an object."""
    return [_keyed(key, value) for key, value in content.items()]


def _keyed(key: str, value: object) -> Record:
    """The record of the value under a key."""
    if isinstance(value, dict):
        return {KEY: key, **value}
    return {KEY: key, VALUE: value}


def _are_pairs(source: TextSource, rows: Sequence[Record]) -> bool:
    """Whether each object has one key, which is an id: `{"42": "a dog"}`."""
    return len(rows) > 1 and all(len(row) == 1 and not source.names_a_column(row) for row in rows)


def _keyed_pairs(rows: Iterable[Record]) -> list[Record]:
    """A record for each object of one key."""
    return [_keyed(key, value) for row in rows for key, value in row.items()]


def _rows_of_cells(columns: Iterable[str], cells_of_rows: Iterable[Sequence[Any]]) -> list[Record]:
    """A record for each row of cells."""
    columns = list(columns)
    return [dict(zip(columns, cells, strict=True)) for cells in cells_of_rows]


def _are_objects(value: object) -> TypeGuard[list[Record]]:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _holds_a_record(source: TextSource, value: object) -> bool:
    """Whether a value is a list of objects, one of which names an image and has a text."""
    return _are_objects(value) and any(map(source.is_record, value))


def _is_text(value: object) -> bool:
    """Whether a value is a text, or a list of texts."""
    if isinstance(value, list):
        return all(isinstance(text, str) for text in value)
    return isinstance(value, str)


def _may_be_rating(value: object) -> bool:
    """Whether a value is a number, missing, or a list of such."""
    if isinstance(value, list):
        return all(map(_may_be_rating, value))
    return value is None or isinstance(value, (int, float))


def _is_mapping(source: TextSource, content: Mapping[str, object]) -> bool:
    """Whether each value is a caption, captions, or an object that has one."""
    return all(_is_entry(source, value) for value in content.values())


def _is_entry(source: TextSource, value: object) -> bool:
    """Whether a value is a caption, captions, or an object that has one."""
    if isinstance(value, str):
        return True
    if source.role == "rating" and _may_be_rating(value):
        return True
    if isinstance(value, dict):
        return source.has_text(value)
    if isinstance(value, list):
        return all(isinstance(part, (str, list)) or _has_text(source, part) for part in value)
    return False


def _has_text(source: TextSource, value: object) -> bool:
    return isinstance(value, dict) and source.has_text(value)
