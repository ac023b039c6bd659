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
from capeval_core.inputs.records import FILE_NAME, KEY, LOOKED_AT, VALUE, Record, Records, TextSource, all_are
from capeval_core.inputs.segments import by_segment

# Objects around the records. Without a bound a file of thousands of brackets would end in a RecursionError.
_DEEPEST = 4
_CONTAINERS = ("results", "data", "annotations", "items", "samples")
"""Names of lists and objects that hold records, besides those of captions and references."""


def open_json(source: TextSource, data: bytes, name: str) -> Records:
    """The records of JSON, or of JSON lines under a name that ends with .json."""
    text = files.decoded(source.path, data)
    # Many tools write JSON lines under `.json`. A first line that is a closed object before another one
    # cannot be JSON: that has no second value.
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
        # A run that was stopped leaves half a line: it is noted with its number, and the others are read.
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
    if isinstance(content, dict) and all_are(dict, content.values()):
        first: dict[str, Any] = next(iter(content.values()))
        # Few objects of many texts each, `{"model A": {"1": "a dog", ...}, ...}`: these are several systems.
        if len(content) <= len(first) and all(map(_is_text, first.values())):
            fix = "write one of them into a file of its own"
            raise source.error(f"holds records under {some_of(content)}", fix)
        # Which of their values is the text shows when columns are chosen.
        return Records(source.path, "objects by image id", _keyed_rows(content))
    fix = "expected {image id: caption or captions}, or a list of objects with an id and a caption each"
    raise source.error(f"unknown form, found {described(content, none='null')}", fix, sentence=True)


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
            visuals_of_key = content.get(key)
            if visuals_of_key:
                medium = key
            for index, visual in enumerate(visuals_of_key or []):
                _add_visual(source, visuals, visual, f"{key.removesuffix('s')} {index}")
        rows = list(annotations)
        if visuals:
            rows = [_with_visual(row, visuals) for row in annotations]
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
    # Lists and objects of an image, such as its regions, would become columns of each of its captions.
    fields = {name: value for name, value in visual.items() if isinstance(value, (str, int, float))}
    # COCO's annotations point at an image's `id`; MSR-VTT's at `video_id`, next to a running `id`.
    for key in ("id", "video_id", "image_id"):
        visual_id = names.as_id(visual.get(key))
        if visual_id is None:
            continue
        first = visuals.setdefault(visual_id, fields)
        # Merged files repeat images: that is harmless, unless one id would mean two files.
        if first.get(FILE_NAME) != fields.get(FILE_NAME):
            source.note_problem(
                place, f"the id {visual_id!r} is also that of {first.get(FILE_NAME)!r}", sentence=True
            )
    if file_name and names.as_id(visual.get("id")) is None:
        source.note_problem(place, problem)


def _with_visual(row: Record, visuals: Mapping[str, Record]) -> Record:
    """An annotation with the fields of its image; `id` stays that of the annotation."""
    for key in ("image_id", "video_id"):
        visual_id = names.as_id(row.get(key))
        visual = visuals.get(visual_id) if visual_id is not None else None
        if visual is not None:
            # The annotation's values count. An image's own `caption` would be taken for the text of an
            # annotation that calls its own by another name.
            fields = dict(visual)
            fields.pop("id", None)
            fields.pop("caption", None)
            return fields | row
    return row


def _karpathy(source: TextSource, content: object, depth: int) -> Records | None:
    """Karpathy's `images`, each with its `sentences`."""
    images = content.get("images") if isinstance(content, dict) else None
    if not _are_objects(images) or not any("sentences" in image for image in images):
        return None
    rows: list[Record] = []
    names_files = False
    for image in images:
        folder = image.get("filepath")
        name = image.get("filename")
        # Of COCO only: its images lie in `train2014` and `val2014`. Flickr's entries have a `filename` alone.
        if isinstance(folder, str) and isinstance(name, str):
            image = {**image, FILE_NAME: f"{folder}/{name}"}
        names_files = names_files or FILE_NAME in image
        rows.append(image)
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
    names_of_columns = list(map(str, columns))  # pandas numbers columns without a name
    rows = []
    for cells in data:
        if not isinstance(cells, list) or len(cells) != len(columns):
            problem = f"has rows that are not of {len(columns)} columns each"
            raise source.error(problem, "write a list of objects")
        rows.append(dict(zip(names_of_columns, cells, strict=True)))
    return Records(source.path, "a table by rows", rows, "row", range(len(rows)))


def _parallel(source: TextSource, content: object, depth: int) -> Records | None:
    """Lists by column, `{"image_id": [...], "caption": [...]}`, also as `DataFrame.to_json` writes them."""
    if not isinstance(content, dict) or not source.has_text(content):
        return None
    columns: dict[str, list[Any]] = {}
    by_row: dict[str, dict[str, Any]] = {}
    for name, value in content.items():
        if isinstance(value, list):
            columns[name] = value
        elif isinstance(value, dict):
            by_row[name] = value
    if by_row and columns:
        return None
    fields = [*columns, *by_row]
    # `{"captions": [...], "references": [...]}` may be two lists of records as well: an id, or both texts as
    # bare lists, tells that these are columns.
    has_id = source.has_name(fields, "id")
    has_both_texts = source.has_name(fields, "caption") and source.has_name(fields, "references")
    if not source.has_text(fields):
        return None
    if not has_id and not (has_both_texts and columns) and source.role != "rating":
        return None
    if by_row:
        columns = _columns_by_row(source, by_row)
    if any(_holds_a_record(source, column) for column in columns.values()):
        return None
    lengths = set(map(len, columns.values()))
    if len(lengths) > 1:
        listed = ", ".join(f"{name!r} of {len(column):,}" for name, column in columns.items())
        problem = f"has lists by column of different lengths ({listed})"
        raise source.error(problem, "write a list of objects")
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return Records(source.path, "lists by column", rows, "row", range(len(rows)), has_ids=has_id)


def _columns_by_row(source: TextSource, by_row: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Lists by column of `{"caption": {"0": ..., "1": ...}}`, as pandas writes them by default."""
    columns: dict[str, list[Any]] = {}
    row_names: list[str] | None = None
    for name, cells in by_row.items():
        row_names = row_names or list(cells)
        # Their values are taken in order, so that other names of rows would join texts of different images.
        if list(cells) != row_names:
            raise source.error(
                f"has columns of different rows ({some_of(by_row)})", "write a list of objects"
            )
        columns[name] = list(cells.values())
    return columns


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
            for row in records_of(source, value, depth + 1).rows:
                rows.append({"split": split, **row})
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
    # `{"image": {...}, "captions": {...}}` has the names of a record, too: only plain values make it one.
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
    pairs = _rows_of_pairs(content)
    if pairs:
        return Records(source.path, "pairs of id and caption", pairs, "entry", range(len(pairs)))
    if source.role == "rating" and all(map(_may_be_rating, content)):
        form = "a list of numbers"
    elif all_are((str, list), content):
        form = "a list of texts"
    else:
        return None
    rows = [{VALUE: row} for row in content]
    return Records(source.path, form, rows, "entry", range(len(rows)), has_ids=False)


def _rows_of_pairs(content: Sequence[object]) -> list[Record]:
    """The records of a list of `[id, caption]`; empty where it is none."""
    rows: list[Record] = []
    for pair in content:
        if not isinstance(pair, list) or len(pair) != 2:
            return []
        image_id = names.as_id(pair[0])
        # A blank tells two captions of one image, in the order of another file, from an id and its caption.
        if image_id is None or re.search(r"\s", image_id):
            return []
        rows.append({KEY: image_id, VALUE: pair[1]})
    return rows


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
        # Objects without a text next to others with one are metadata: whether they are to be left out, or a
        # caption was forgotten, nobody can tell.
        metadata = [key for key, value in content.items() if not _is_entry(source, value)]
        if metadata:
            fix = "write the captions into an object of their own"
            raise source.error(f"holds captions beside {some_of(metadata)}", fix)
    return Records(source.path, "an object by image id", _keyed_rows(content))


# The narrow forms come first: COCO's annotations would fit `_container`, a table of pandas `_mapping`.
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
    inside: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    for key, value in content.items():
        if _holds_records(source, key, value, len(content)):
            inside[key] = value
        if _are_objects(value):
            lists[key] = value
    if inside:
        return inside
    # Records of unknown names: `{"my_results": [{...}]}` is opened, so that messages name its columns.
    return lists if len(lists) == 1 and not _is_mapping(source, content) else {}


def _holds_records(source: TextSource, key: str, value: object, key_count: int) -> bool:
    """Whether a list or object under a key holds records, rather than the captions of that id."""
    if _are_objects(value):
        return any(source.is_record(row) and not _is_about(row, key) for row in value[:LOOKED_AT])
    if isinstance(value, dict) and value and not source.has_text(value):
        # Next to other keys an object of unknown name is as likely settings of the run, such as `args`.
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
    keys: list[str] = []
    keys_of_one_role: list[str] = []
    for key in inside:
        if names.is_name(key, source.role):
            keys.append(key)
            if not names.is_name(key, _other_role(source)):
                keys_of_one_role.append(key)
    # `captions` may name both roles: next to `references` it is not those, alone it is.
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
    records: list[Record] = []
    for row in rows:
        records += _keyed_rows(row)
    return records


def _are_objects(value: object) -> TypeGuard[list[Record]]:
    return isinstance(value, list) and bool(value) and all_are(dict, value)


def _holds_a_record(source: TextSource, value: object) -> bool:
    """Whether a value is a list of objects, one of which names an image and has a text."""
    return _are_objects(value) and any(map(source.is_record, value))


def _is_text(value: object) -> bool:
    """Whether a value is a text, or a list of texts."""
    return all_are(str, value) if isinstance(value, list) else isinstance(value, str)


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
