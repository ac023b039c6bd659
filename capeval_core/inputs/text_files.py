"""Captions and references in the files that the field already uses.

    .json     {image id: caption}, {image id: [captions]}, {image id: [references]},
              pycocoevalcap's {image id: [{"caption": ...}]},
              COCO results [{"image_id": ..., "caption": ...}],
              COCO annotations {"images": [...], "annotations": [...]},
              Karpathy's {"images": [{"sentences": [...], "split": ...}]}
    .jsonl    one object a line, with image_id, image, id or file_name, and caption, captions, references or
              text; also .ndjson
    .csv      a header with those names, and cells separated by commas, tabs, `|` (Flickr30k) or semicolons;
              also .tsv; several rows for one image, or a list in a cell of captions or references, as JSON
              or as pandas writes it; for candidates to choose from also one row per image, its id first,
              then its captions under any names
    .parquet  columns with those names

Other files, and standard input, are one of these by their content; lines of `42.jpg#0<tab>caption` are
Flickr's. Any of them may be compressed with gzip. Image ids are strings throughout: the number 42 of COCO is
"42".
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as AbstractCollection
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any, NoReturn

from capeval_core.errors import (
    FileError,
    Problems,
    did_you_mean,
    file_problem,
    option_problem,
    refuse_nul,
    setting,
    warn,
)
from capeval_core.inputs.folder import Folder, Names, only_matches, some_of
from capeval_core.inputs.texts import is_written_list, read_written_list, valid_unicode
from capeval_core.limits import LIMITS
from capeval_core.options import Settings, option
from capeval_core.values import described

ID_FIELDS = ("image_id", "image", "id", "filename", "file_name", "image_name")
PATH_FIELDS = ("image_path", "img", "path", "filepath", "url")
"""What else may name images; messages do not list them."""
CANDIDATE_FIELDS = ("caption", "captions")
REFERENCE_FIELDS = ("references", "captions", "caption")
LIST_FIELDS = ("references", "captions")
FOREIGN_FIELDS = ("text", "comment", "sentence", "sentences", "raw")
"""What datasets call texts; they count where none of the names before is there, and only one of these."""
SPLIT = "split"


@dataclass(frozen=True, kw_only=True)
class FileOptions(Settings):
    """What of the user's files is read."""

    id_column: str | None = option(
        None,
        "column or key of image ids, in the files that have it; None: image_id, image, id or file_name, of "
        "several the one that names images",
    )
    caption_column: str | None = option(None, "column or key of captions; None: caption, captions or text")
    reference_column: str | None = option(
        None, "column or key of references; None: references, captions, caption or text"
    )
    split: str | None = option(
        None, "parts of a file whose rows name theirs, e.g. test of Karpathy's JSON, or train,restval"
    )

    @property
    def splits(self) -> list[str]:
        """The parts to read; none: all."""
        return [name.strip() for name in (self.split or "").split(",") if name.strip()]


@dataclass
class Texts:
    """The texts of a file by image id, in the file's order.

    entries: for each text, what its row calls the image, by column where it has several; texts of one row
    share it. file_names: that the file gives to ids. columns: names of columns or keys. splits: how many rows
    are in each part. left_out: the part of each id that is in none to be read.
    """

    rows: list[tuple[str, str]] = field(default_factory=list)
    entries: list[Mapping[str, str]] = field(default_factory=list)
    file_names: dict[str, str] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    splits: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)

    def by_id(self) -> dict[str, list[str]]:
        gathered: dict[str, list[str]] = {}
        for image_id, text in self.rows:
            gathered.setdefault(image_id, []).append(text)
        return gathered

    def id_column(
        self, path: Path, find: Callable[[str], Sequence[str]], options: FileOptions, problems: Problems
    ) -> str | None:
        """The column whose values name something in most rows; None where no row has several columns.

        find: what a value names. Notes a problem where two columns of a row name different things, and none
        of them is the user's choice.
        """
        known: Counter[str] = Counter()
        differing: list[Mapping[str, Sequence[str]]] = []
        cached = cache(lambda value: tuple(sorted(find(value))))
        for ids in self.entries:
            found = {name: things for name, value in ids.items() if (things := cached(value))}
            known.update(found.keys())
            if len(set(found.values())) > 1:
                differing.append(found)
        if options.id_column in known:
            return options.id_column
        if differing:
            one = {name: things[0] for name, things in differing[0].items()}
            names, images = (" and ".join(map(repr, of)) for of in (one, one.values()))
            rows = f"{len(differing):,} row{'s' if len(differing) > 1 else ''}"
            wrong = f"{names} name different images in {rows}, such as {images}"
            best = next(name for name in one if name != "id")
            fix = setting("id_column", best, "choose the column of image ids with ")
            problems.add(file_problem(path, wrong, fix))
        columns = {name: None for ids in self.entries for name in ids if len(ids) > 1}
        return max(columns, key=known.__getitem__, default=None)

    def use_id_column(
        self, path: Path, find: Callable[[str], Sequence[str]], options: FileOptions, problems: Problems
    ) -> None:
        """Let that column name the images: as file names of ids, or as the ids where they are no pairs."""
        column = self.id_column(path, find, options, problems)
        named = [(i, ids[column]) for i, ids in enumerate(self.entries) if column in ids] if column else []
        pairs = {(self.rows[i][0], value) for i, value in named}
        if len({key for key, _ in pairs}) == len(pairs) == len({value for _, value in pairs}):
            self.file_names.update(pair for pair in pairs if pair[0] != pair[1])
        else:
            for i, value in named:
                self.rows[i] = value, self.rows[i][1]

    def differing(self) -> dict[str, int]:
        """How many captions images have, of those that several rows give different ones."""
        first: dict[str, tuple[str, Mapping[str, str]]] = {}
        several: set[str] = set()
        for (image_id, text), ids in zip(self.rows, self.entries, strict=True):
            earlier, row = first.setdefault(image_id, (text, ids))
            if text != earlier and ids is not row:
                several.add(image_id)
        return {image_id: len(texts) for image_id, texts in self.by_id().items() if image_id in several}


class Gatherer:
    """Turns the rows of a file into Texts and notes what is wrong with them.

    fields: the names that a row's text may have, the first that is there counts. column: which of the options
    names the texts. wide: whether a table may have one row per image, its candidates side by side.
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[str],
        problems: Problems,
        options: FileOptions | None = None,
        *,
        column: str = "caption_column",
        wide: bool = False,
    ) -> None:
        self.path = path
        self.fields = fields
        self.problems = problems
        self.options = options or FileOptions()
        self.column = column
        self.chosen: str | None = getattr(self.options, column)
        self.wide = wide
        self.texts = Texts()
        self._lists: dict[str, list[str]] = {}

    def complain(self, row: str | None, found: str, fix: str = "", *, verb: str = "is") -> None:
        """Note a problem with a row, such as `line 3`, or a part of it; None: with the file."""
        self.problems.add(file_problem(self.path, found, fix, index=row, verb=verb))

    def fail(self, found: str, fix: str = "") -> NoReturn:
        """Raise FileError about the file as a whole."""
        raise FileError(file_problem(self.path, found, fix))

    def require_columns(self, names: Sequence[str], table: str) -> None:
        """Raise FileError unless a table names ids and texts, once; `table`: what has these columns."""
        self.texts.columns = dict.fromkeys(names)
        if not self.id_fields(names) or len(self.text_fields(names)) != 1:
            found, fix = self._unclear(names)
            if table == "the header has" and not self.id_fields(names) and fix:
                fix += ", or write a header above the first row if there is none"
            self.fail(f"{table} {_listed(names)}, {found}", fix)
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            self.fail(f"{twice[0]!r} names several columns", "give every column a name of its own")

    def used_columns(self, names: AbstractCollection[str]) -> list[str]:
        """Those of a table's columns that may be read."""
        options = self.options
        chosen = {options.id_column, options.caption_column, options.reference_column}
        known = {*ID_FIELDS, *PATH_FIELDS, *self.fields, *FOREIGN_FIELDS, SPLIT, *chosen}
        return [name for name in names if name in known]

    def row(self, row: Any, name: str) -> None:
        """One object with an id and a text, from any kind of file; `name`: such as `line 3`."""
        if not isinstance(row, dict):
            self.complain(name, described(row), "expected an object with an id and a caption")
            return
        self.texts.columns = self.texts.columns or dict.fromkeys(row)
        if isinstance(split := row.get(SPLIT), str):
            self.texts.splits[split] += 1
            if self.options.splits and split not in self.options.splits:
                self.texts.left_out[str(row.get(next(iter(self.id_fields(row)), "")))] = split
                return
        # An image in a table of Hugging Face is an object, and another column has its name.
        usable = [key for key, value in row.items() if not isinstance(value, (dict, NoneType))]
        id_fields, text_fields = self.id_fields(usable), self.text_fields(row)
        if self.options.id_column in self.texts.columns:  # where it is empty, no other takes its place
            id_fields.insert(0, str(self.options.id_column))
        if not id_fields or len(text_fields) != 1:
            found, fix = self._unclear(row, id_fields)
            self.complain(name, f"{_listed(row)}, {found}", fix, verb="has")
            return
        (text_field,) = text_fields
        image_id = self.image_id(row.get(id_fields[0]), f"{name}: {id_fields[0]}")
        if image_id is None:
            return
        ids = {key: one for key in self.id_fields(usable) if (one := _as_id(row[key]))}
        name = f"{name} (id {image_id!r}): {text_field}"
        value = row[text_field]
        if isinstance(value, str) and text_field in (*LIST_FIELDS, self.chosen):
            texts = read_written_list(value)
            if texts is None and is_written_list(value, whole=text_field not in LIST_FIELDS):
                found = f"like a list but cannot be read as one ({value[:40]!r})"
                self.complain(name, found, 'write a list of strings as JSON, ["...", "..."]', verb="begins")
                return
            value = value if texts is None else texts
        repeats = text_field == "references"  # rows that carry their image's whole list each
        self.add(image_id, value, name, repeats, ids if len(ids) > 1 else None)

    def id_fields(self, names: AbstractCollection[str]) -> list[str]:
        """The names of a row's ids, best first; COCO's `id` beside `image_id` is that of an annotation."""
        wanted = dict.fromkeys((self.options.id_column, *ID_FIELDS, *PATH_FIELDS))
        there = [name for name in wanted if name is not None and name in names]
        of_annotation = "image_id" in there and self.options.id_column != "id"
        return [name for name in there if name != "id" or not of_annotation]

    def text_fields(self, names: AbstractCollection[str]) -> list[str]:
        """The names that may be those of the texts: one is clear, several are not."""
        if self.chosen is not None:
            return [self.chosen] if self.chosen in names else []
        own = [name for name in self.fields if name in names][:1]
        usual = own or [name for name in FOREIGN_FIELDS if name in names]
        # Both files may have one form; but where this one has other texts, those named may be candidates.
        captions = self.options.caption_column
        return usual if captions is None or captions not in names else list(dict.fromkeys([captions, *usual]))

    def _unclear(self, names: AbstractCollection[str], ids: Sequence[str] = ()) -> tuple[str, str]:
        """What a row or table of these names lacks, or has too much of, and the fix."""
        ids, texts = ids or self.id_fields(names), self.text_fields(names)
        others = [name for name in names if name and name not in (*ID_FIELDS, *PATH_FIELDS, SPLIT, *texts)]
        if ids and texts:
            found = f"of which {' or '.join(map(repr, texts))} may be the text"
            return found, setting(self.column, texts[0], "name it with ")
        lacking, settings = [], []
        if not ids:
            lacking.append(self.options.id_column or " or ".join(ID_FIELDS))
            settings += [setting("id_column", name) for name in others[:1]]
        if not texts:
            lacking.append(self.chosen or " or ".join(self.fields))
            settings += [setting(self.column, name) for name in others[0 if ids else 1 :][-1:]]
        found = f"but no {', and no '.join(lacking)}"
        return (
            found,
            f"name {'it' if len(settings) == 1 else 'them'} with {' and '.join(settings)}"
            if settings
            else "",
        )

    def image_id(self, value: Any, name: str) -> str | None:
        """The id as a string, or None with the problem noted."""
        if isinstance(value, str) and not valid_unicode(value):
            self.complain(name, f"{value!a}, which is not UTF-8", "rename the image, and its id here")
            return None
        if image_id := _as_id(value):
            return image_id
        found = "an empty string" if value == "" else described(value)
        self.complain(name, found, "expected a string or a whole number")
        return None

    def add(
        self,
        image_id: str,
        value: Any,
        name: str,
        repeats: bool = False,
        ids: Mapping[str, str] | None = None,
    ) -> None:
        """A caption or a list of them, or of objects that hold one.

        With `repeats`, the same list may come again and counts once. `ids`: what the row calls the image.
        """
        values = value if isinstance(value, list) else [value]
        if not values:
            self.complain(name, "an empty list")
        if isinstance(value, str) and "references" in self.fields and is_written_list(value):
            self.complain(name, f"a list written as text ({value[:40]!r})", "write it as a list")
            return
        texts: list[str] = []
        for j, text in enumerate(values):
            item = f"{name}[{j}]" if isinstance(value, list) else name
            if isinstance(text, dict):
                inner = next((n for n in (self.chosen, *self.fields, *FOREIGN_FIELDS) if n in text), None)
                if inner is None:
                    found = f"{_listed(text)}, but no {' or '.join(self.fields)}"
                    self.complain(item, found, verb="has")
                    return
                self.texts.columns.setdefault(inner)
                text = text[inner]
            if not isinstance(text, str):
                self.complain(item, described(text, none="null"), "expected a string")
                return
            texts.append(text)
        if repeats and isinstance(value, list) and self._lists.setdefault(image_id, texts) is not texts:
            if self._lists[image_id] != texts:
                self.complain(name, "from those given for this id before", verb="differ")
            return
        self.texts.rows.extend((image_id, text) for text in texts)
        self.texts.entries.extend([{} if ids is None else ids] * len(texts))


def _as_id(value: Any) -> str | None:
    """The id that a value is, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _listed(names: AbstractCollection[str]) -> str:
    return ", ".join(map(repr, list(names)[:8])) + (", ..." if len(names) > 8 else "") or "nothing"


def refuse_unused(options: FileOptions, read: Mapping[Path, Texts], problems: Problems) -> None:
    """Note columns and splits that the user names and none of the files has."""
    columns = list(dict.fromkeys(name for texts in read.values() for name in texts.columns))
    splits = sum((texts.splits for texts in read.values()), Counter[str]())
    files = " or ".join(map(str, read))
    for name in ("id_column", "caption_column", "reference_column"):
        value = getattr(options, name)
        if value is not None and value not in columns:
            has = f"the columns are {_listed(columns)}" if columns else "captions there have no columns"
            problems.add(option_problem(name, value, f"no column of {files}", has))
    for split in options.splits:
        if split not in splits:
            has = f"the splits are {_counted(splits)}" if splits else "rows there have no split"
            problems.add(option_problem("split", split, f"no split of {files}", has))


def _counted(splits: Counter[str]) -> str:
    return ", ".join(f"{name!r} ({count:,})" for name, count in splits.items())


# ---- JSON

FORMS = (
    '{image id: caption}, {image id: [captions or references]}, {image id: [{"caption": ...}]}, '
    'COCO results [{"image_id": ..., "caption": ...}], COCO annotations {"images": [...], '
    '"annotations": [...]} and Karpathy\'s {"images": [{"sentences": [...]}]}'
)


def read_json(data: bytes, gatherer: Gatherer) -> None:
    """A JSON file in any of these forms, or JSON lines under the name of JSON."""
    text = decoded(gatherer.path, data)
    if _is_json_lines(text):
        read_json_lines(data, gatherer)
        return
    content = parse_json(gatherer.path, text)
    under: dict[str, Any] = content if isinstance(content, dict) else {}
    images: Any = under.get("images")
    if _is_list_of_objects(under.get("annotations")):
        _read_annotations(under, gatherer)
    elif _is_list_of_objects(images) and any("sentences" in image for image in images):
        _read_karpathy(images, gatherer)
    elif isinstance(content, dict) and (not content or any(map(_is_text_or_list, content.values()))):
        _read_mapping(content, gatherer)
    elif _is_list_of_objects(content):
        for i, row in enumerate(content):
            gatherer.row(row, f"entry {i}")
    else:
        gatherer.complain(None, f"unknown form, found {_outlined(content)}; read are {FORMS}", verb="")


def _is_json_lines(text: str) -> bool:
    """Whether the first line is an object of its own, and another line follows."""
    line, _, rest = text.lstrip().partition("\n")
    try:
        return line.startswith("{") and bool(rest.strip()) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_text_or_list(value: Any) -> bool:
    return isinstance(value, (str, list))


def _read_mapping(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Captions by image id. Values of another kind, but null, are reported alone."""
    unfit = any(value is not None and not _is_text_or_list(value) for value in content.values())
    for image_id, value in content.items():
        if not _is_text_or_list(value):
            found = described(value, none="null")
            gatherer.complain(f"id {image_id!r}", found, "expected a caption or a list of them")
        elif not unfit and gatherer.image_id(image_id, "an image id") is not None:
            gatherer.add(image_id, value, f"id {image_id!r}")


def _read_annotations(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Rows under `annotations`, and from `images` the file names of their ids."""
    for i, row in enumerate(content["annotations"]):
        gatherer.row(row, f"annotation {i}")
    images = content.get("images", [])
    if not isinstance(images, list):
        gatherer.complain("images", described(images, none="null"), "expected a list, or leave it out")
        return
    file_names = gatherer.texts.file_names
    for i, image in enumerate(images):
        if not isinstance(image, dict):
            gatherer.complain(f"image {i}", described(image, none="null"), "expected an object with an id")
            continue
        if "file_name" not in image:
            continue
        name = image["file_name"]
        if not isinstance(name, str) or not name:
            found = "empty" if name == "" else described(name, none="null")
            gatherer.complain(f"image {i}: file_name", found, "expected a file's name, or leave it out")
            continue
        image_id = gatherer.image_id(image.get("id"), f"image {i}: id")
        if image_id is not None and file_names.setdefault(image_id, name) != name:
            found = f"the id {image_id!r} is also that of {file_names[image_id]!r}"
            gatherer.complain(f"image {i}", found, verb="")


def _read_karpathy(images: list[dict[str, Any]], gatherer: Gatherer) -> None:
    """Images with their sentences. The number of COCO is the id where there is one, else the file's name."""
    for i, image in enumerate(images):
        row = dict(image)
        if "cocoid" in image:
            row.setdefault("image_id", image["cocoid"])
        folder, name = image.get("filepath"), image.get("filename")
        if isinstance(folder, str) and isinstance(name, str):
            row.setdefault("file_name", f"{folder}/{name}")
        gatherer.row(row, f"image {i}")


def _outlined(content: Any) -> str:
    """The form of a JSON value in a few words."""
    if isinstance(content, dict):
        key, value = next(iter(content.items()))
        return f"an object with {key!r}: {described(value)}"
    if isinstance(content, list):
        return f"a list with {described(content[0])}" if content else "an empty list"
    return described(content, none="null")


def read_json_lines(data: bytes, gatherer: Gatherer) -> None:
    """One object a line."""
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(decoded(gatherer.path, data).split("\n"), start=1):
        if line.strip():
            try:
                row = parse_json(gatherer.path, line, first_line=number)
            except FileError as error:
                gatherer.problems.extend(error.problems)
            else:
                gatherer.row(row, f"line {number}")


# ---- tables

_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""
_DELIMITERS = ",\t|;"
_TOKEN = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
"""A line of Flickr8k and Flickr30k: an image's file name, the number of the caption, the caption."""
_JOINED = re.compile(r"\s*[0-9]+\s\s+(\S.*)")
"""Number and caption of an image of Flickr30k in one cell: a row of the published table lacks a `|`."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_COMMAS = "quote captions that hold commas"

Records = Iterator[tuple[str, list[str]]]


def read_table(data: bytes, gatherer: Gatherer) -> None:
    """A table of text whose header names ids and texts, or the lines of Flickr's token files.

    Cells are separated by commas, tabs, `|` or semicolons: by that one at which the header falls into known
    names. Where `gatherer.wide`, a header that names no texts belongs to a table of one row per image: its
    id, then its captions, whose names do not matter.
    """
    text = decoded(gatherer.path, data)
    first = text.lstrip("\r\n").partition("\n")[0]
    if _TOKEN.match(first):
        _read_tokens(text, gatherer)
        return
    delimiter = _delimiter(first, gatherer)
    lines = text.replace("\r\n", "\n").split("\n")
    even = len({line.count("\t") for line in lines if line.strip()}) == 1
    rows = _lines(lines) if delimiter == "\t" and even else _records(text, delimiter, gatherer)
    header = [name.strip() for name in next(rows, ("", []))[1]]
    if len(header) == 1:
        found = f"the first line is {first.strip()[:40]!r}, expected a header that names an id and a caption"
        gatherer.fail(found, "write image_id and caption above the first row, or use JSON")
    if gatherer.wide and not gatherer.text_fields(header):
        _read_wide_rows(header, rows, gatherer)
    else:
        _read_rows(header, rows, gatherer, delimiter)
    _warn_of_missing(gatherer)


def _delimiter(header: str, gatherer: Gatherer) -> str:
    """What separates the cells of a table with this first line."""
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"') for name in header.split(delimiter)]
        if gatherer.id_fields(names) and gatherer.text_fields(names):
            return delimiter
    return max(_DELIMITERS, key=header.count)


def _records(text: str, delimiter: str, gatherer: Gatherer) -> Records:
    """Each record that is not blank, with the line on which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for cells in reader:
            if cells:
                yield f"line {begins}", cells
            begins = reader.line_num + 1
    except csv.Error as error:
        if str(error).startswith("field larger"):
            found = f"a cell of more than {csv.field_size_limit():,} characters"
            fix = "close the quotation mark with which it begins, or use JSON lines"
            gatherer.complain(f"line {begins}", found, fix, verb="has")
        else:
            gatherer.complain(f"line {begins}", f"not CSV ({error})")


def _lines(lines: list[str]) -> Records:
    """Each line of a table with tabs, all of as many: marks that do not enclose a cell are the caption's."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            quoted = [(_QUOTED.fullmatch(cell), cell) for cell in line.split("\t")]
            yield f"line {number}", [mark[1].replace('""', '"') if mark else cell for mark, cell in quoted]


def _read_rows(header: list[str], rows: Records, gatherer: Gatherer, delimiter: str) -> None:
    gatherer.require_columns(header, "the header has")
    (field,) = gatherer.text_fields(header)
    alone = field not in LIST_FIELDS and field != gatherer.chosen
    joined = 0
    for line, cells in rows:
        if delimiter == "|":
            cells = [cell.strip() for cell in cells]
            if len(cells) == len(header) - 1 and (match := _JOINED.fullmatch(cells[-1])):
                cells[-1:] = ["", match[1]]
                joined += 1
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            fix = _COMMAS if delimiter == "," and len(cells) > len(header) else ""
            gatherer.complain(line, f"{len(cells)} cells, the header has {len(header)}", fix, verb="has")
        elif alone and is_written_list(row[field]):
            found = f"a list written as text ({row[field][:40]!r})"
            fix = "call the column captions, or write one row per caption"
            gatherer.complain(f"{line}: {field}", found, fix)
        else:
            gatherer.row(row, line)
    if joined:
        lacking = "row lacks" if joined == 1 else "rows lack"
        warn(
            f"{gatherer.path}: {joined:,} {lacking} the | between number and caption; what follows the "
            "number is taken for the caption"
        )


def _read_tokens(text: str, gatherer: Gatherer) -> None:
    numbered: dict[str, str] = {}  # captions with numbers of their own belong together
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if match := _TOKEN.fullmatch(line):
            gatherer.add(match[1], match[2], f"line {number} (id {match[1]!r})", ids=numbered)
        elif line.strip():
            found = f"{line[:40]!r}, expected a file name, # and a number, a tab, and a caption"
            gatherer.complain(f"line {number}", found)


def _read_wide_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    """Empty cells are no captions: images may have different numbers of them.

    The first line must be known to be a header: taken for one, the row of an image would be lost.
    """
    ids = (*ID_FIELDS, gatherer.options.id_column)
    if (header[0] and header[0] not in ids) or set(header[1:]) & set(ids):
        found = ", ".join(repr(name[:40]) for name in header[:4])
        fix = f"expected a header that begins with {' or '.join(ID_FIELDS)}, then any names"
        gatherer.complain("line 1", found, f"{fix}; write one above the first image", verb="has")
        return
    known: set[str] = set()
    for line, (image_id, *texts) in rows:
        captions = [text for text in texts if text.strip()]
        lists = [text for text in captions if is_written_list(text)]
        if len(texts) != len(header) - 1:
            found = f"{len(texts) + 1} cells, the header has {len(header)}"
            fix = f"{_COMMAS}, and leave cells empty where an image has fewer captions"
            gatherer.complain(line, found, fix, verb="has")
        elif image_id in known:
            found = f"the id {image_id!r} comes twice, expected one row per image"
            gatherer.complain(line, found, verb="")
        elif lists:
            found = f"a list written as text ({lists[0][:40]!r})"
            fix = "write one caption per cell, or call the column captions"
            gatherer.complain(f"{line} (id {image_id!r}): a cell", found, fix)
        elif (checked := gatherer.image_id(image_id, f"{line}: {header[0] or 'the id'}")) is not None:
            gatherer.add(checked, captions, f"{line} (id {image_id!r}): its captions")
        known.add(image_id)


def _warn_of_missing(gatherer: Gatherer) -> None:
    """Tables are often written with a word for what is missing, which nobody wants to have scored."""
    ids = [image_id for image_id, text in gatherer.texts.rows if text.strip() in _MISSING]
    if ids:
        warn(
            f"{gatherer.path}: {len(ids):,} of {len(gatherer.texts.rows):,} captions are a word for a "
            f"missing value, such as 'nan' (ids {some_of(ids)}), and are read as "
            "captions: leave those rows out if there is none"
        )


def read_parquet(data: bytes, gatherer: Gatherer) -> None:
    """A table with columns of ids and texts; other columns are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        columns = file.schema_arrow.names
        gatherer.require_columns(columns, "the columns are")
        used = gatherer.used_columns(columns)
        rows = (row for batch in file.iter_batches(columns=used) for row in batch.to_pylist())
        for i, row in enumerate(rows):
            gatherer.row(row, f"row {i}")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        gatherer.complain(None, f"is not Parquet, or damaged ({reason})", "write it again", verb="")


# ---- any of them

Reader = Callable[[bytes, Gatherer], None]
"""Hands the values of a file to the gatherer; raises FileError for a file that is something else."""
READERS: Mapping[str, Reader] = {
    ".json": read_json,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".csv": read_table,
    ".tsv": read_table,
    ".parquet": read_parquet,
}
STANDARD_INPUT = "-"


def read_texts(
    path: str | os.PathLike[str],
    fields: Sequence[str],
    problems: Problems,
    options: FileOptions | None = None,
    *,
    column: str = "caption_column",
    wide: bool = False,
    all_splits: bool = False,
) -> Texts:
    """Read any of the forms from a file, or from standard input (`-`); arguments are those of `Gatherer`.

    What is wrong with single rows is noted; a file that cannot be read at all raises FileError. all_splits:
    whether a file of several splits may be read as a whole.
    """
    path, name = Path(path), Path(path)
    if os.fspath(path) == STANDARD_INPUT:
        name = Path("standard input")
        data = _limited(sys.stdin.buffer.read(LIMITS.file_bytes + 1), name)
    else:
        data = contents(path)
    if data.startswith(b"\x1f\x8b"):
        path, data = path.with_suffix(""), _decompressed(data, name)
    before = len(problems)
    gatherer = Gatherer(name, fields, problems, options, column=column, wide=wide)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        gatherer.fail("is empty")
    reader = READERS.get(path.suffix.lower()) or _reader_of(data)
    reader(data, gatherer)
    texts, chosen = gatherer.texts, gatherer.options.splits
    if not texts.rows and len(problems) == before:
        if texts.splits and chosen:
            only = f"of split {', '.join(map(repr, chosen))}, only of {_counted(texts.splits)}"
            gatherer.fail(
                f"holds no captions {only}", did_you_mean(chosen[0], texts.splits).removeprefix(": ")
            )
        gatherer.fail("holds no captions")
    if len(texts.splits) > 1 and not chosen and not all_splits:
        first = "test" if "test" in texts.splits else next(iter(texts.splits))
        found = f"holds the splits {_counted(texts.splits)}"
        problems.add(file_problem(name, found, setting("split", first, "choose with ")))
        texts.entries.clear()
        texts.rows.clear()  # which images are missing depends on the choice
    return texts


def _reader_of(data: bytes) -> Reader:
    """The reader of a file whose name does not say what it is."""
    if data.startswith(b"PAR1"):
        return read_parquet
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    first = data[:4096].decode("utf-16" if wide else "utf-8-sig", "ignore").lstrip()[:1]
    return read_json if first in ("{", "[") else read_table


def _decompressed(data: bytes, name: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return _limited(file.read(LIMITS.file_bytes + 1), name)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(file_problem(name, f"is damaged ({error})", "compress it again")) from None


def _limited(data: bytes, name: Path) -> bytes:
    if len(data) > LIMITS.file_bytes:
        found = f"is longer than {LIMITS.file_bytes >> 30} GiB"
        raise FileError(file_problem(name, found, "give it in parts"))
    return data


_PICTURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n": "PNG"}
"""What files of images begin with, neither of which is UTF-8."""
_ONCE = "for several captions of an image use {image id: [captions]}"


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    refuse_nul(path)
    try:
        mode = path.stat().st_mode
        data = path.read_bytes() if stat.S_ISREG(mode) else b""
    except FileNotFoundError:
        found = "there is no such file" + did_you_mean(path.name, _beside(path))
        raise FileError(file_problem(path, found)) from None
    except OSError as error:
        raise FileError(file_problem(path, f"cannot be read ({error.strerror})")) from None
    if stat.S_ISDIR(mode):
        raise FileError(file_problem(path, "is a folder, expected a file"))
    if not stat.S_ISREG(mode):
        found = "is a pipe, a socket or a device"
        fix = "write its content to a file first, or send captions to standard input and name it -"
        raise FileError(file_problem(path, found, fix))
    return data


def _beside(path: Path) -> list[str]:
    """The names in the folder of a path, the first thousand."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry, _ in zip(entries, range(1000), strict=False)]
    except OSError:
        return []


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark, without that mark.

    Raises FileError.
    """
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as Excel and PowerShell write
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if wide:
            raise FileError(file_problem(path, f"is not UTF-16 ({error.reason})", "write it again")) from None
        kind = next((kind for start, kind in _PICTURES.items() if data.startswith(start)), None)
        if kind is not None:
            fix = "expected a file of text, such as captions by image id"
            raise FileError(file_problem(path, f"an image ({kind})", fix, verb="is")) from None
        found = f"is not UTF-8 (byte {data[error.start]:#04x} at position {error.start})"
        raise FileError(file_problem(path, found, "convert it")) from None
    if "\0" in text[:100]:
        found = "holds NUL characters, as UTF-16 without a byte order mark does"
        raise FileError(file_problem(path, found, "convert it to UTF-8"))
    return text


def load_json(path: Path, once: str = _ONCE) -> Any:
    """The content of a JSON file; `once` and errors as for `parse_json`."""
    return parse_json(path, decoded(path, contents(path)), once=once)


def parse_json(path: Path, text: str, first_line: int = 1, once: str = _ONCE) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last.

    Raises FileError, with lines counted from `first_line`; `once` is the fix where a key comes twice.
    """
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
        fix = ""
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            fix = "; if each line is an object, name it .jsonl"
        if error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()):
            fix = "; the file is truncated: create it again"
        line = first_line + error.lineno - 1
        found = f"not JSON (line {line}, column {error.colno}: {error.msg}){fix}"
        raise FileError(file_problem(path, found)) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise FileError(file_problem(path, f"JSON that cannot be read ({error})")) from None
    if repeated:
        keys = ", ".join(map(repr, list(dict.fromkeys(repeated))[:5]))
        raise FileError(file_problem(path, f"the key {keys} comes twice; {once}"))
    return content


@dataclass(frozen=True)
class Collection:
    """Rows read from files: parallel lists, one entry per caption, fit for `metric.score`.

    images: paths of images or videos; without a folder of them their ids. entries: ids as the file of
    references writes them; None without such a file.
    """

    ids: list[str]
    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None
    entries: list[str] | None = None


def read_collection(
    candidates: str | os.PathLike[str],
    images: str | os.PathLike[str] | None,
    references: str | os.PathLike[str] | None = None,
    *,
    options: FileOptions | None = None,
    wide: bool = False,
    medium: str = "image",
    problems: Problems | None = None,
    absent_too: bool = False,
) -> Collection:
    """Join a file of candidates with a folder of images, or of videos, and a file of references.

    Every candidate needs an image, and references if a file of them is given; images and references that
    no candidate has are left out. Ids need not be written the same way in all three (see `Names`). Where rows
    have several columns that may be ids, that one counts which names images of the folder (without one: which
    the other file knows); two that name different images are refused, unless `options.id_column` is one.
    Where COCO annotations give an id a `file_name`, that image is taken (see `Folder.match`, also for
    `absent_too`). `images` None: there is no folder, ids alone name images. `options`: columns and splits to
    read. `wide`: a table may have one row per image, its candidates side by side. `problems`: if all files
    can be read, where problems with rows are noted, which are then left out.

    All captions of an image count, equal ones too; a warning says how many repeat, and how many images have
    different ones in several rows, as where a run was appended to another.

    Raises FileError that lists everything that does not match.
    """
    noted, problems = problems, Problems()
    options = options or FileOptions()
    if references is not None and os.fspath(candidates) == os.fspath(references) == STANDARD_INPUT:
        fix = "name a file for one of them"
        raise FileError(file_problem("standard input", "cannot be both candidates and references", fix))
    texts, folder, known = None, None, None
    with _noting(problems):
        texts = read_texts(candidates, CANDIDATE_FIELDS, problems, options, wide=wide)
    with _noting(problems):
        folder = None if images is None else Folder(Path(images), medium)
    with _noting(problems):
        if references is not None:
            column = "reference_column"
            known = read_texts(
                references, REFERENCE_FIELDS, problems, options, column=column, all_splits=True
            )
    if texts is not None and (known is not None or references is None):
        read = [(candidates, texts), (references, known)]
        refuse_unused(options, {Path(path): one for path, one in read if path and one}, problems)
    if texts is None or (folder is None and images is not None) or (known is None and references is not None):
        raise problems.error()
    file = Path(candidates)
    if folder is not None:
        texts.use_id_column(file, folder.find, options, problems)
    if known is not None and references is not None:
        find = _finder_of_candidates(texts) if folder is None else folder.find
        known.use_id_column(Path(references), find, options, problems)
    ids = list(texts.by_id())
    paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids}
    if folder is not None:
        file_names = {**(known.file_names if known else {}), **texts.file_names}
        paths = folder.match(ids, problems, file_names, absent_too=absent_too)
        _refuse_two_ids(file, paths, problems)
    matched: dict[str, str] = {}
    references_of: dict[str, list[str]] = {}
    if known is not None and references is not None:
        entries = known.by_id()
        matches = _matches(texts, known, entries, file, options, problems)
        lacking, advice = _lacking(known, entries, matches, options)
        matched = only_matches(Path(references), matches, lacking, problems, advice)
        if len({*paths.values()}) == len(paths):  # else they are refused already
            _refuse_two_ids(file, matched, problems)
        references_of = {image_id: entries[entry] for image_id, entry in matched.items()}
    if not len(problems):
        _warn_of_repeats(file, texts, references_of, wide=wide)
    if noted is None:
        problems.raise_if_any()
    else:
        noted.extend(problems)
    kept = [row for row in texts.rows if row[0] in paths and (known is None or row[0] in matched)]
    own = [image_id for image_id, _ in kept]
    return Collection(
        ids=own,
        captions=[caption for _, caption in kept],
        images=[paths[image_id] for image_id in own],
        references=None if known is None else [references_of[image_id] for image_id in own],
        entries=None if known is None else [matched[image_id] for image_id in own],
    )


@contextmanager
def _noting(problems: Problems) -> Iterator[None]:
    """Note what is wrong with a file, so that the other files are read as well."""
    try:
        yield
    except FileError as error:
        problems.extend(error.problems)


def _matches(
    texts: Texts,
    known: Texts,
    entries: Mapping[str, Any],
    file: Path,
    options: FileOptions,
    problems: Problems,
) -> dict[str, list[str]]:
    """What each id of the candidates can mean among the entries of the references."""
    find = _finder(known, entries)
    column = texts.id_column(file, find, options, problems) or ""
    matches: dict[str, list[str]] = {}
    for (image_id, _), own in zip(texts.rows, texts.entries, strict=True):
        found = matches.setdefault(image_id, [])
        found += [entry for entry in find(own.get(column, image_id)) if entry not in found]
    return matches


def _finder_of_candidates(texts: Texts) -> Callable[[str], list[str]]:
    """Finds the ids of candidates by whatever their rows call the image."""
    named: dict[str, dict[str, None]] = {}
    for (image_id, _), own in zip(texts.rows, texts.entries, strict=True):
        for name in own.values() or [image_id]:
            named.setdefault(PurePosixPath(name).name, {})[image_id] = None
    names = Names(named)
    return lambda name: [one for entry in names.find(PurePosixPath(name).name) for one in named[entry]]


def _finder(texts: Texts, entries: Mapping[str, Any]) -> Callable[[str], list[str]]:
    """Finds the entries that an image id, or its path, can mean, by their ids or the file names they have."""
    named: dict[str, list[str]] = {}
    for entry, name in texts.file_names.items():
        for written in {name, PurePosixPath(name).name} if entry in entries else ():
            named.setdefault(written, []).append(entry)
    by_id, by_name = Names(entries), Names(named)

    def find(image_id: str) -> list[str]:
        exact = [image_id] if image_id in entries else named.get(image_id)
        return exact or by_id.find(image_id) or [e for name in by_name.find(image_id) for e in named[name]]

    return lambda image_id: find(image_id) or find(PurePosixPath(image_id).name)


def _lacking(
    texts: Texts, entries: Mapping[str, Any], matches: Mapping[str, list[str]], options: FileOptions
) -> tuple[str, str]:
    """What ids without an entry in a file of references have, and the fix."""
    left_out = Names(texts.left_out)
    elsewhere = {
        texts.left_out[entry]
        for image_id, found in matches.items()
        if not found
        for entry in left_out.find(image_id)
    }
    if elsewhere:
        kept = options.splits if any(matches.values()) else []
        of_splits = " and ".join(map(repr, sorted(elsewhere)))
        found = f"no references in split {', '.join(map(repr, options.splits))}, but in {of_splits}"
        return found, setting("split", ",".join([*kept, *sorted(elsewhere)]), "pass ")
    examples = f"; it has ids like {', '.join(map(repr, [*entries][:3]))}" if entries else ""
    return f"no references{examples}", ""


def _refuse_two_ids(path: Path, meant: Mapping[str, Path | str], problems: Problems) -> None:
    """Note images, or references, that have several ids: each would get a pool and a line of its own."""
    first: dict[Path | str, str] = {}
    for image_id, one in meant.items():
        if first.setdefault(one, image_id) != image_id:
            name = PurePosixPath(one).name
            found = f"the ids {first[one]!r} and {image_id!r} both mean {name!r}"
            problems.add(file_problem(path, found, "write its id in one way"))


def _warn_of_repeats(path: Path, texts: Texts, references: Mapping[str, list[str]], *, wide: bool) -> None:
    """Warn of captions that look like references; except of pools, of captions that repeat or differ."""
    several = len(texts.rows) / len(references) if references else 0
    if several >= 2 and all(len(of_image) == 1 for of_image in references.values()):
        warn(f"{path}: {several:.3g} captions and one reference of each image: are the two files swapped?")
    if references and all(caption in references[image_id] for image_id, caption in texts.rows):
        warn(
            f"{path}: every caption is one of its own references, so a score says nothing: are they the "
            "captions of people?"
        )
    repeats = 0 if wide else len(texts.rows) - len(set(texts.rows))
    if repeats:
        again = "caption that its image has" if repeats == 1 else "captions that their images have"
        warn(f"{path}: {repeats:,} {again} already: each counts ({len(texts.rows):,} captions)")
    differing = {} if wide else texts.differing()
    if differing:
        images = "image has" if len(differing) == 1 else "images have"
        warn(
            f"{path}: {len(differing):,} {images} different captions in several rows (ids "
            f"{some_of([*differing])}; {sum(differing.values()):,} captions), as where a run was appended to "
            "another: each counts. Leave out the rows that are not meant, give each run a file of its own, "
            "or write captions that belong together as a list, {image id: [captions]}"
        )
