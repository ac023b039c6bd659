"""Captions and references in the files that the field already uses, joined with a folder of images.

    .json             captions, references or objects by image id, COCO's results and annotations, Karpathy's
    .jsonl, .ndjson   one object a line
    .csv, .tsv        a header and cells between commas, tabs, `|` (Flickr30k) or semicolons; lists as JSON or
                      as pandas writes them; of pools also one row per image
    .parquet          columns of ids and texts
    others            one of these by its content, or Flickr's lines of `42.jpg#0<tab>caption`

Any of them may be compressed with gzip. Image ids are strings throughout: the number 42 of COCO is "42".
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from capeval_core.errors import (
    FileError,
    Problems,
    described,
    file_error,
    noting,
    setting,
    warn,
    wrong_option,
)
from capeval_core.inputs import files
from capeval_core.inputs.files import Names, some_of
from capeval_core.inputs.images import short_reason
from capeval_core.inputs.samples import is_written_list, read_written_list
from capeval_core.limits import LIMITS
from capeval_core.options import Settings, option

ID_FIELDS = ("image_id", "image", "id", "filename", "file_name", "image_name")
_PATH_FIELDS = ("image_path", "img", "path", "filepath", "url")
"""What else may name images; messages do not list them."""
CANDIDATE_FIELDS = ("caption", "captions")
REFERENCE_FIELDS = ("references", "captions", "caption")
_LIST_FIELDS = ("references", "captions")
_FOREIGN_FIELDS = ("text", "comment", "sentence", "sentences", "raw")
"""What datasets call texts; they count where none of the names before is there, and only one of these."""
_SPLIT = "split"
_STANDARD_INPUT = "-"


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


# ---- the texts of a file


class Row(NamedTuple):
    """A text; names: what its row calls the image, by column where it has several, one for all its texts."""

    image_id: str
    text: str
    names: Mapping[str, str]


@dataclass
class Texts:
    """The texts of a file, in its order; what is wrong with its rows is noted.

    fields: the names that a row's text may have, the first that is there counts. column: the option that
    names another one.
    """

    path: Path
    fields: Sequence[str]
    problems: Problems
    options: FileOptions
    column: str
    wide: bool
    is_table: bool = False
    rows: list[Row] = field(default_factory=list)
    file_names: dict[str, str] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    splits: Counter[str] = field(default_factory=Counter)
    _lists: dict[str, list[str]] = field(default_factory=dict)

    @property
    def chosen(self) -> str | None:
        name: str | None = getattr(self.options, self.column)
        return name

    def wrong(self, place: str | None, found: str, fix: str = "") -> FileError:
        """The error about a row, such as `line 3`, or a part of it; None: about the file."""
        return file_error(self.path, found, fix, index=place)

    # which column names the image, and which the text

    def id_column(self, find: Callable[[str], Sequence[str]]) -> str | None:
        """The column whose values name something in most rows; None where no row has several columns."""
        cached = cache(lambda value: tuple(sorted(find(value))))
        found = [
            {name: things for name, value in row.names.items() if (things := cached(value))}
            for row in self.rows
        ]
        known = Counter(chain.from_iterable(found))
        if self.options.id_column in known:
            return self.options.id_column
        if differing := [own for own in found if len(set(own.values())) > 1]:
            names = " and ".join(map(repr, differing[0]))
            images = " and ".join(repr(things[0]) for things in differing[0].values())
            wrong = f"{names} name different images in {len(differing):,} rows, such as {images}"
            best = next(name for name in differing[0] if name != "id")
            fix = setting("id_column", best, "choose the column of image ids with ")
            self.problems.add(self.wrong(None, wrong, fix))
        return max(known, key=known.__getitem__, default=None)

    def use_id_column(self, find: Callable[[str], Sequence[str]]) -> None:
        """Let that column name the images: as file names of ids, or as the ids where they are no pairs."""
        column = self.id_column(find) or ""
        pairs = {(row.image_id, row.names[column]) for row in self.rows if column in row.names}
        if len(dict(pairs)) == len(pairs) == len({name for _, name in pairs}):
            self.file_names.update(pair for pair in pairs if pair[0] != pair[1])
        else:
            self.rows = [row._replace(image_id=row.names.get(column, row.image_id)) for row in self.rows]

    def id_fields(self, names: Collection[str]) -> list[str]:
        """The names of a row's ids, best first; COCO's `id` beside `image_id` is that of an annotation."""
        wanted = dict.fromkeys((self.options.id_column, *ID_FIELDS, *_PATH_FIELDS))
        there = [name for name in wanted if name is not None and name in names]
        of_annotation = "image_id" in there and self.options.id_column != "id"
        return [name for name in there if name != "id" or not of_annotation]

    def text_fields(self, names: Collection[str]) -> list[str]:
        """The names that may be those of the texts: one is clear, several are not."""
        if self.chosen is not None:
            return [self.chosen] if self.chosen in names else []
        own = [name for name in self.fields if name in names][:1]
        usual = own or [name for name in _FOREIGN_FIELDS if name in names]
        # Both files may have one form; but where this one has other texts, those named may be candidates.
        captions = self.options.caption_column
        return usual if captions is None or captions not in names else list(dict.fromkeys([captions, *usual]))

    def text_field(self, names: Sequence[str], ids: Sequence[str], place: str) -> str:
        """The name of the text in a row or header of these names, some of them ids. Raises FileError."""
        texts = self.text_fields(names)
        if ids and len(texts) == 1:
            return texts[0]
        wanted, none = self.chosen or " or ".join(self.fields), "none of these"
        which = f"{some_of(ids) or none} may be the id, {some_of(texts) or none} the text"
        usual = f"{self.options.id_column or ' or '.join(ID_FIELDS)}, and {wanted}"
        others = [] if ids else [setting("id_column", "NAME")]
        others += [] if len(texts) == 1 else [setting(self.column, [*texts, "NAME"][0])]
        fix = f"expected {usual}, or name others with {' and '.join(others)}"
        raise self.wrong(place, f"has {some_of(names)[:500]}: {which}", fix)

    def check_header(self, names: Sequence[str]) -> None:
        """Refuse a table unless its columns say what its ids and its texts are, each once."""
        self.columns = dict.fromkeys(names)
        if twice := [name for name, count in Counter(names).items() if name and count > 1]:
            raise self.wrong("the header", f"has {twice[0]!r} twice", "name each column once")
        self.text_field(names, self.id_fields(names), "the header")

    # rows

    def row(self, row: Any, place: str) -> None:
        """Add an object with an id and a text, from any kind of file, or note what is wrong with it."""
        with noting(self.problems):
            if not isinstance(row, dict):
                raise self.wrong(place, f"is {described(row)}", "expected an object with an id and a caption")
            self.columns = self.columns or dict.fromkeys(row)
            if isinstance(split := row.get(_SPLIT), str):
                self.splits[split] += 1
                if self.options.splits and split not in self.options.splits:
                    return
            # An image in a table of Hugging Face is an object, and another column has its name.
            usable = [key for key, value in row.items() if value is not None and not isinstance(value, dict)]
            ids = self.id_fields(usable)
            names = {key: one for key in ids if (one := _as_id(row[key]))}
            if self.options.id_column in self.columns:  # where it is empty, no other takes its place
                ids.insert(0, str(self.options.id_column))
            name = self.text_field(list(row), ids, place)
            self.add(row.get(ids[0]), row[name], place, name, names)

    def add(self, image: Any, value: Any, place: str = "", name: str = "", names: Any = None) -> None:
        """Add a caption or a list of them, or note what is wrong. name: their column. names: as of a `Row`;
        of captions that belong together it is one and the same."""
        with noting(self.problems):
            image_id = _as_id(image)
            if image_id is None:
                found, fix = described(image), "expected a text or a whole number"
                if isinstance(image, str):
                    found = f"{ascii(image)[:80]}, which is not UTF-8" if image else "empty"
                raise self.wrong(f"{place}: the id" if place else "the id", f"is {found}", fix)
            place = f"{place} (id {image_id!r})" if place else f"id {image_id!r}"
            place += f": {name}" if name else ""
            is_list = name in _LIST_FIELDS
            may_be_list = is_list or bool(name and name == self.chosen)
            if isinstance(value, str) and may_be_list:
                listed = read_written_list(value)
                value = value if listed is None else listed
            several, texts = isinstance(value, list), []
            for j, text in enumerate(value if several else [value]):
                own = f"{place}[{j}]" if several else place
                if several and isinstance(text, dict):
                    usual = (self.chosen, *self.fields, *_FOREIGN_FIELDS)
                    for inner in [one for one in usual if one in text][:1]:
                        self.columns[str(inner)] = None
                        text = text[inner]
                if not isinstance(text, str):
                    without = f" without {' or '.join(self.fields)}" if isinstance(text, dict) else ""
                    raise self.wrong(own, f"is {described(text, none='null')}{without}", "expected a caption")
                unread = not several and may_be_list and is_written_list(text, whole=not is_list)
                needs_texts = self.is_table or "references" in self.fields
                if unread or (needs_texts and is_written_list(text)):
                    fix = 'write a list as JSON, ["...", "..."], in a table in a column captions'
                    raise self.wrong(own, f"is a list written as text ({text[:40]!r})", fix)
                texts.append(text)
            if not texts:
                raise self.wrong(place, "is an empty list")
            if several and name == "references" and self._lists.setdefault(image_id, texts) is not texts:
                if self._lists[image_id] != texts:  # each row may carry the list, which counts once
                    raise self.wrong(place, "differ from those given for this id before")
                return
            names = {} if names is None or len(names) == 1 else names
            self.rows.extend(Row(image_id, text, names) for text in texts)


def _as_id(value: Any) -> str | None:
    """The id that a value is, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value and files.valid_unicode(value) else None


def refuse_unused(options: FileOptions, read: Sequence[Texts], problems: Problems) -> None:
    """Note columns and splits that the user names and none of the files has."""
    paths = " or ".join(str(texts.path) for texts in read)
    columns = dict.fromkeys(name for texts in read for name in texts.columns)
    splits = sum((texts.splits for texts in read), Counter[str]())
    chosen = [(name, getattr(options, name)) for name in ("id_column", "caption_column", "reference_column")]
    for kind, known, values in (
        ("column", columns, [(name, value) for name, value in chosen if value is not None]),
        ("split", splits, [("split", value) for value in options.splits]),
    ):
        own = _counted(splits) if known is splits else some_of(known)
        has = f"the {kind}s are {own}" if known else f"captions there have no {kind}s"
        for name, value in values:
            if value not in known:
                problems.add(wrong_option(name, value, f"is no {kind} of {paths}", has))


def _counted(splits: Counter[str]) -> str:
    return ", ".join(f"{name!r} ({count:,})" for name, count in splits.items())


# ---- JSON


def _read_json(data: bytes, texts: Texts) -> None:
    """A JSON file in any of these forms, or JSON lines under the name of JSON."""
    text = files.decoded(texts.path, data)
    first, _, rest = text.lstrip().partition("\n")
    if first.rstrip().endswith("}") and rest.lstrip().startswith("{"):
        _read_json_lines(data, texts)
        return
    content = files.parsed(texts.path, text)
    under: dict[str, Any] = content if isinstance(content, dict) else {}
    rows, name, images = content, "entry", under.get("images", [])
    if _are_objects(under.get("annotations")):
        rows, name = under["annotations"], "annotation"
        _read_file_names(images, texts)
    elif _are_objects(images) and any("sentences" in image for image in images):
        rows, name = [_of_karpathy(image) for image in images], "image"
    if _are_objects(rows):
        for i, row in enumerate(rows):
            texts.row(row, f"{name} {i}")
    elif content == {} or any(isinstance(value, (str, list)) for value in under.values()):
        for image_id, value in under.items():
            texts.add(image_id, value)
    else:
        fix = "expected {image id: caption or captions}, COCO's results or annotations, or Karpathy's images"
        raise texts.wrong(None, f"unknown form, found {described(content, none='null')}", fix)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _read_file_names(images: Any, texts: Texts) -> None:
    """From the images of COCO's annotations the file names of their ids."""
    for i, image in enumerate(images if isinstance(images, list) else [None]):
        name = image.get("file_name", "") if isinstance(image, dict) else None
        image_id = _as_id(image.get("id")) if name else None
        wrong = ""
        if not isinstance(name, str) or (name and image_id is None):
            wrong = f"is {described(image, none='null')}, expected an object with id and file_name"
        elif image_id and (other := texts.file_names.setdefault(image_id, name)) != name:
            wrong = f"the id {image_id!r} is also that of {other!r}"
        if wrong:
            texts.problems.add(texts.wrong(f"image {i}", wrong))


def _of_karpathy(image: dict[str, Any]) -> dict[str, Any]:
    """An image with its sentences. The number of COCO is the id where there is one, else the file's name."""
    row = {"image_id": image["cocoid"], **image} if "cocoid" in image else dict(image)
    folder, name = image.get("filepath"), image.get("filename")
    if isinstance(folder, str) and isinstance(name, str):
        row.setdefault("file_name", f"{folder}/{name}")
    return row


def _read_json_lines(data: bytes, texts: Texts) -> None:
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(files.decoded(texts.path, data).split("\n"), start=1):
        if line.strip():
            with noting(texts.problems):
                texts.row(files.parsed(texts.path, line, first_line=number), f"line {number}")


# ---- tables

_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""
_DELIMITERS = ",\t|;"
_TOKEN = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
"""A line of Flickr8k and Flickr30k: an image's file name, the number of the caption, the caption."""
_JOINED = re.compile(r"\s*[0-9]+\s\s+(\S.*)")
"""Number and caption of an image of Flickr30k in one cell: a row of the published table lacks a `|`."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _read_table(data: bytes, texts: Texts) -> None:
    """A table whose header names ids and texts, or the lines of Flickr's token files."""
    text = files.decoded(texts.path, data).replace("\r\n", "\n")
    first = text.lstrip("\n").partition("\n")[0]
    if _TOKEN.match(first):
        together: dict[str, str] = {}  # their numbers say so
        for number, line in enumerate(text.split("\n"), start=1):
            if match := _TOKEN.fullmatch(line):
                texts.add(match[1], match[2], f"line {number}", names=together)
            elif line.strip():
                fix = "expected a file name, # and a number, a tab, and a caption"
                texts.problems.add(texts.wrong(f"line {number}", f"is {line[:40]!r}", fix))
        return

    def known(delimiter: str) -> bool:
        names = [name.strip().strip('"') for name in first.split(delimiter)]
        return bool(texts.id_fields(names) and texts.text_fields(names))

    texts.is_table = True
    delimiter = next(filter(known, _DELIMITERS), max(_DELIMITERS, key=first.count))
    records = _records(text, delimiter, texts)
    header = next(records, ("", []))[1]
    if texts.wide and len(header) > 1 and not texts.text_fields(header):
        # One row per image, its id first; a first row that is no header would be lost, and is refused.
        ids = (*ID_FIELDS, texts.options.id_column)
        if (header[0] and header[0] not in ids) or set(header[1:]) & set(ids):
            fix = f"expected a header that begins with {' or '.join(ID_FIELDS)}, then any names"
            raise texts.wrong("line 1", f"has {some_of(header)[:200]}", fix)
        known_ids: set[str] = set()
        for place, (image_id, *pool) in records:
            if image_id in known_ids:
                found = f"the id {image_id!r} comes twice, expected one row per image"
                texts.problems.add(texts.wrong(place, found))
            known_ids.add(image_id)
            texts.add(image_id, [text for text in pool if text.strip()], place, "its captions")
    else:
        texts.check_header(header)
        for place, cells in records:
            texts.row(dict(zip(header, cells, strict=True)), place)
    # Tables are often written with a word for what is missing, which nobody wants to have scored.
    if missing := [row.image_id for row in texts.rows if row.text.strip() in _MISSING]:
        warn(
            f"{texts.path}: {len(missing):,} of {len(texts.rows):,} captions are a word for a missing value, "
            f"such as 'nan' (ids {some_of(missing)}), and are read: leave those rows out if there is none"
        )


def _records(text: str, delimiter: str, texts: Texts) -> Iterator[tuple[str, list[str]]]:
    """The header, then each record of as many cells, with the line on which it begins; others are noted."""
    header: list[str] = []
    joined = 0
    for place, cells in _cells(text, delimiter, texts):
        if not header or delimiter == "|":
            cells = [cell.strip() for cell in cells]
        header = header or cells
        if delimiter == "|" and len(cells) == len(header) - 1 and (match := _JOINED.fullmatch(cells[-1])):
            cells[-1:] = ["", match[1]]
            joined += 1
        if len(cells) == len(header):
            yield place, cells
        else:
            found = f"has {len(cells)} cells, the header has {len(header)}"
            fix = "quote captions that hold commas, and leave no cell out"
            texts.problems.add(texts.wrong(place, found, fix))
    if joined:
        warn(f"{texts.path}: {joined:,} row{'s lack' if joined > 1 else ' lacks'} the | behind the number")


def _cells(text: str, delimiter: str, texts: Texts) -> Iterator[tuple[str, list[str]]]:
    """The cells of each record that is not blank, with the line on which it begins."""
    lines = text.split("\n")
    if delimiter == "\t" and len({line.count("\t") for line in lines if line.strip()}) == 1:
        # All of as many tabs: marks that do not enclose a cell are the caption's.
        for number, line in enumerate(lines, start=1):
            if line.strip():
                cells = [(_QUOTED.fullmatch(cell), cell) for cell in line.split("\t")]
                yield f"line {number}", [mark[1].replace('""', '"') if mark else cell for mark, cell in cells]
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for record in reader:
            if record:
                yield f"line {begins}", record
            begins = reader.line_num + 1
    except csv.Error as error:
        fix = "if a cell is too large, close the quotation mark with which it begins, or use JSON lines"
        texts.problems.add(texts.wrong(f"line {begins}", f"is not CSV ({error})", fix))


def _read_parquet(data: bytes, texts: Texts) -> None:
    """A table with columns of ids and texts; other columns are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        columns, options = file.schema_arrow.names, texts.options
        chosen = (options.id_column, options.caption_column, options.reference_column)
        known = {*ID_FIELDS, *_PATH_FIELDS, *texts.fields, *_FOREIGN_FIELDS, _SPLIT, *chosen}
        texts.check_header(columns)
        batches = file.iter_batches(columns=[name for name in columns if name in known])
        for i, row in enumerate(row for batch in batches for row in batch.to_pylist()):
            texts.row(row, f"row {i}")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        found = f"is not Parquet, or damaged ({short_reason(error)})"
        raise texts.wrong(None, found, "write it again") from None


# ---- any of them


def read_texts(
    path: str | os.PathLike[str],
    fields: Sequence[str],
    problems: Problems,
    options: FileOptions | None = None,
    *,
    column: str = "caption_column",
    wide: bool = False,
) -> Texts:
    """Read any of the forms from a file, or from standard input (`-`); a file that cannot be read raises
    FileError. Of references no split has to be chosen."""
    path, name = Path(path), Path(path)
    if os.fspath(path) == _STANDARD_INPUT:
        name = Path("standard input")
        data = _limited(sys.stdin.buffer, name)
    else:
        data = files.contents(path)
    if data.startswith(b"\x1f\x8b"):
        path = path.with_suffix("")
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = _limited(file, name)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise file_error(name, f"is damaged ({error})", "compress it again") from None
    before, options = len(problems), options or FileOptions()
    texts = Texts(name, fields, problems, options, column, wide)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise file_error(name, "is empty")
    _reader_of(path.suffix.lower(), data)(data, texts)
    chosen, splits = options.splits, texts.splits
    if not texts.rows and len(problems) == before:
        others = f" of split {some_of(chosen)}, only of {_counted(splits)}" if splits and chosen else ""
        raise file_error(name, f"holds no captions{others}")
    if len(splits) > 1 and not chosen and column != "reference_column":
        fix = setting("split", "test" if "test" in splits else next(iter(splits)), "choose with ")
        problems.add(texts.wrong(None, f"holds the splits {_counted(splits)}", fix))
        texts.rows.clear()  # which images are missing depends on the choice
    return texts


def _reader_of(extension: str, data: bytes) -> Callable[[bytes, Texts], None]:
    """The reader of a file by its name, or where that does not say what it is by its content."""
    if extension == ".parquet" or data.startswith(b"PAR1"):
        return _read_parquet
    if extension in (".jsonl", ".ndjson"):
        return _read_json_lines
    first = data[:4096].decode(files.encoding_of(data), "ignore").lstrip()[:1]
    is_json = extension == ".json" or (extension not in (".csv", ".tsv") and first in ("{", "["))
    return _read_json if is_json else _read_table


def _limited(file: Any, name: Path) -> bytes:
    data: bytes = file.read(LIMITS.file_bytes + 1)
    if len(data) > LIMITS.file_bytes:
        raise file_error(name, f"is longer than {LIMITS.file_bytes >> 30} GiB", "give it in parts")
    return data


# ---- captions, images and references together


@dataclass(frozen=True)
class Joined:
    """Rows of files, one entry per caption; `entries`: ids as the file of references writes them."""

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
) -> Joined:
    """Join a file of candidates with a folder of images, or of videos, and a file of references.

    Ids need not be written the same way in all three (see `Names`). Where rows have several columns that may
    be ids, that one counts which names images of the folder, or without one what the other file knows.
    `problems`: where to note what is wrong with rows, left out then. Raises FileError with all problems.
    """
    if references is not None and os.fspath(candidates) == os.fspath(references) == _STANDARD_INPUT:
        fix = "name a file for one of them"
        raise file_error("standard input", "cannot be both candidates and references", fix)
    noted, problems, options = problems, Problems(), options or FileOptions()
    file = Path(candidates)
    texts: Texts | None = None
    known: Texts | None = None
    folder: files.Folder | None = None
    # What is wrong with one of them is noted, so that the others are read as well.
    with noting(problems):
        texts = read_texts(candidates, CANDIDATE_FIELDS, problems, options, wide=wide)
    with noting(problems):
        folder = None if images is None else files.Folder(images, medium)
    with noting(problems):
        if references is not None:
            known = read_texts(references, REFERENCE_FIELDS, problems, options, column="reference_column")
    read = [one for one in (texts, known) if one is not None]
    if len(read) == 1 + (references is not None):
        refuse_unused(options, read, problems)
    if texts is None or (folder is None) != (images is None) or (known is None) != (references is None):
        raise problems.error()
    if folder is not None:
        texts.use_id_column(folder.find)
    if known is not None:
        known.use_id_column(_finder_of_candidates(texts) if folder is None else folder.find)
    ids = list(dict.fromkeys(row.image_id for row in texts.rows))
    paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids}
    if folder is not None:
        file_names = {**(known.file_names if known else {}), **texts.file_names}
        paths = folder.match(ids, problems, file_names, absent_too=absent_too)
    matched, references_of = {}, {}
    if known is not None:
        entries: dict[str, list[str]] = {}
        for row in known.rows:
            entries.setdefault(row.image_id, []).append(row.text)
        part = f" in split {some_of(options.splits)}" if options.splits else ""
        lacking = f"no references{part}; it has ids like {some_of([*entries][:3])}"
        matched = files.only_matches(known.path, _matches(texts, known, entries), lacking, problems)
        references_of = {image_id: entries[entry] for image_id, entry in matched.items()}
    if not (_two_ids(file, paths, problems) or _two_ids(file, matched, problems) or problems):
        _warn_of_repeats(file, texts, references_of, wide=wide)
    if noted is None:
        problems.raise_if_any()
    else:
        noted.extend(problems)
    kept = [row for row in texts.rows if row.image_id in paths and (known is None or row.image_id in matched)]
    own = [row.image_id for row in kept]
    return Joined(
        ids=own,
        captions=[row.text for row in kept],
        images=[paths[image_id] for image_id in own],
        references=None if known is None else [references_of[image_id] for image_id in own],
        entries=None if known is None else [matched[image_id] for image_id in own],
    )


def _finder(named: Mapping[str, Iterable[str]]) -> Callable[[str], list[str]]:
    """Finds the ids of what has a name, however it is written, or of its last part."""
    names = Names(named)

    def find(name: str) -> list[str]:
        found = names.find(name) or names.find(PurePosixPath(name).name)
        return list(dict.fromkeys(one for entry in found for one in named[entry]))

    return find


def _matches(texts: Texts, known: Texts, entries: Mapping[str, Any]) -> dict[str, list[str]]:
    """What each id of the candidates can mean among the entries of the references: by id or file name."""
    named = {entry: [entry] for entry in entries}
    for entry, name in known.file_names.items():
        for written in {name, PurePosixPath(name).name} - entries.keys():  # an id is never a file's name
            if entry in entries:
                named.setdefault(written, []).append(entry)
    find = _finder(named)
    column = texts.id_column(find) or ""
    matches: dict[str, list[str]] = {}
    for row in texts.rows:
        meant = matches.setdefault(row.image_id, [])
        meant += [entry for entry in find(row.names.get(column, row.image_id)) if entry not in meant]
    return matches


def _finder_of_candidates(texts: Texts) -> Callable[[str], list[str]]:
    """Finds the ids of candidates by whatever their rows call the image."""
    named: dict[str, dict[str, None]] = {}
    for row in texts.rows:
        for name in row.names.values() or [row.image_id]:
            named.setdefault(PurePosixPath(name).name, {})[row.image_id] = None
    return _finder(named)


def _two_ids(path: Path, meant: Mapping[str, Path | str], problems: Problems) -> bool:
    """Note images, or references, that have several ids: each would get a pool and a line of its own."""
    first: dict[Path | str, str] = {}
    for image_id, one in meant.items():
        if first.setdefault(one, image_id) != image_id:
            found = f"the ids {first[one]!r} and {image_id!r} both mean {PurePosixPath(one).name!r}"
            problems.add(file_error(path, found, "write its id in one way"))
    return len(first) < len(meant)


def _warn_of_repeats(path: Path, texts: Texts, references: Mapping[str, list[str]], *, wide: bool) -> None:
    """Warn of captions that look like references; except of pools, of captions that repeat or differ."""
    rows, found = texts.rows, []
    several = len(rows) / len(references) if references else 0
    if several >= 2 and all(len(of_image) == 1 for of_image in references.values()):
        found.append(f"{several:.3g} captions and one reference of each image: are the two files swapped?")
    if references and all(row.text in references[row.image_id] for row in rows):
        why = "so a score says nothing: are they the captions of people?"
        found.append(f"every caption is one of its own references, {why}")
    if not wide and (repeats := len(rows) - len({row[:2] for row in rows})):
        again = "caption that its image has" if repeats == 1 else "captions that their images have"
        found.append(f"{repeats:,} {again} already: each counts ({len(rows):,} captions)")
    first = {row.image_id: row for row in reversed(rows)}
    differing = dict.fromkeys(  # images that several rows give different captions
        row.image_id
        for row in rows
        if row.text != first[row.image_id].text and row.names is not first[row.image_id].names
    )
    if differing and not wide:
        images = "image has" if len(differing) == 1 else "images have"
        found.append(
            f"{len(differing):,} {images} different captions in several rows (ids {some_of(differing)}), as "
            "where a run was appended to another: each counts. Write captions that belong together as a "
            "list, {image id: [captions]}"
        )
    for message in found:
        warn(f"{path}: {message}")
