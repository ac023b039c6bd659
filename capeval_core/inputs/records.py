"""Records: any file that holds captions, as a list of objects with named values.

Step one of reading a file. `OPENERS` says how bytes become a table, JSON or lines, `FORMS` which JSON becomes
which records. Nothing here knows which name means a caption, but for what tells two forms apart.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from capeval_core.errors import FileError, Problems, described, file_error, noting
from capeval_core.inputs import files, names
from capeval_core.inputs.files import some_of
from capeval_core.inputs.images import short_reason
from capeval_core.limits import LIMITS

Record = dict[str, Any]
KEY = "(key)"
"""Field of the key that an object has in its file, as the image id of `{image id: caption}`."""
VALUE = "(value)"
"""Field of what stands under that key, where it is a text or a list."""
FILE_NAME = "file_name"
STANDARD_INPUT = "-"
_LOOKED_AT = 1_000  # records that tell the form of a file
_DEEPEST = 4  # objects around the records


@dataclass
class Records:
    """The records of a file, in its order.

    form: what was read, in words. unit, numbers: what messages call a record, such as `line 3`; without a
    unit it is called by its key. is_table: cells are texts, so that a list in one is written as a text.
    is_wide: no name of a column is known, the first one holds ids and the others captions. has_ids: records
    name images. names_files: they are annotations, whose `file_name` is that of the image.
    """

    path: Path
    form: str
    rows: list[Record]
    unit: str = ""
    numbers: Sequence[int] = ()
    is_table: bool = False
    is_wide: bool = False
    has_ids: bool = True
    names_files: bool = False
    notes: list[str] = field(default_factory=list)

    def place(self, index: int) -> str:
        """What messages call a record."""
        if not self.unit:
            return f"id {self.rows[index].get(KEY)!r}"
        return f"{self.unit} {self.numbers[index]}"

    def error(self, index: int, problem: str, fix: str = "") -> FileError:
        """The error about a record."""
        return file_error(self.path, problem, fix, index=self.place(index))

    @cached_property
    def fields(self) -> list[str]:
        """Names of all values, in the order in which they come up."""
        union: dict[str, None] = {}
        for row in self.rows:
            if not row.keys() <= union.keys():
                union.update(dict.fromkeys(row))
        return list(union)


def read_records(
    path: str | os.PathLike[str],
    role: str,
    problems: Problems,
    expected: Iterable[str] = (),
    *,
    wide: bool = False,
) -> Records:
    """The records of a file, of a folder, or of standard input (`-`).

    role: `caption` or `references`, which chooses between two lists of one file, or `rating`, for which
    numbers are read as well. expected: names of columns that the user gives. wide: whether a table may have a
    column for each captioner. Wrong records are noted as problems; FileError where nothing can be read.
    """
    reader = _Reader(Path(path), role, problems, frozenset(expected), wide)
    records = reader.read()
    if not records.rows and not problems:
        raise file_error(records.path, f"holds no {'ratings' if role == 'rating' else 'captions'}")
    return records


# ---- bytes


@dataclass
class _Reader:
    """What the readers of one file share."""

    path: Path
    role: str
    problems: Problems
    expected: frozenset[str]
    wide: bool

    def read(self) -> Records:
        if os.fspath(self.path) == STANDARD_INPUT:
            self.path = Path("standard input")
            return self.open(_limited(sys.stdin.buffer, self.path), "")
        with files.reading(self.path, "file or folder"):
            self.path.stat()
        if self.path.is_dir():
            return self.read_folder()
        if self.path.suffix.lower() in (".parquet", ".pq"):
            files.check_regular(self.path)
            return self.open_parquet(self.path)
        return self.open(files.contents(self.path), self.path.name.lower())

    def open(self, data: bytes, name: str, depth: int = 0) -> Records:
        """The records of these bytes of a file of this name."""
        for opener in OPENERS:
            if opener.fits(data, name):
                return opener.open(self, data, name, depth)
        raise AssertionError("the last opener takes everything")

    def error(self, problem: str, fix: str = "") -> FileError:
        """The error about the whole file."""
        return file_error(self.path, problem, fix)

    # compressed files and archives

    def open_compressed(self, data: bytes, name: str, depth: int) -> Records:
        decompressors: dict[bytes, Callable[[Any], Any]] = {
            b"\x1f\x8b": gzip.open,
            b"BZh": bz2.open,
            b"\xfd7zXZ\x00": lzma.open,
        }
        opened = next(opened for magic, opened in decompressors.items() if data.startswith(magic))
        try:
            with opened(io.BytesIO(data)) as file:
                inner = _limited(file, self.path)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise self.error(f"is damaged ({error})", "compress it again") from None
        if depth > _DEEPEST:
            raise self.error("is compressed several times", "unpack it")
        return self.open(inner, re.sub(r"\.(gz|bz2|xz)$", "", name), depth + 1)

    def open_zip(self, data: bytes, name: str, depth: int) -> Records:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = [member for member in archive.infolist() if _is_content(member)]
                if len(members) != 1:
                    listed = some_of(member.filename for member in members) or "nothing"
                    raise self.error(
                        f"is a zip archive of several files ({listed})", "unzip it, and name one of them"
                    )
                with archive.open(members[0]) as file:
                    inner = _limited(file, self.path)
                member_name = members[0].filename.lower()
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
            raise self.error(
                f"is a zip archive that cannot be read ({error})", "unzip it, and name the file"
            ) from None
        if depth > _DEEPEST:
            raise self.error("is a zip archive in others", "unzip it")
        return self.open(inner, member_name, depth + 1)

    # tables of pandas and pyarrow

    def open_parquet(self, source: Any) -> Records:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(
                pa.BufferReader(source) if isinstance(source, bytes) else source,
                page_checksum_verification=True,
            )
            names_of_columns = file.schema_arrow.names
            self.check_names(names_of_columns)
            columns = [
                name for name in names_of_columns if not _holds_bytes_only(file.schema_arrow.field(name).type)
            ]
            batches = file.iter_batches(columns=columns)
            rows = _rows_of_batches(batches, names_of_columns)
        except FileError:
            raise
        except Exception as error:  # pyarrow raises whatever the damaged part trips over
            raise self.error(
                f"is not Parquet, or damaged ({short_reason(error)})", "write it again"
            ) from None
        return self.tabular("Parquet", rows)

    def open_arrow(self, data: bytes, name: str, depth: int) -> Records:
        import pyarrow as pa

        try:
            if data.startswith(b"ARROW1"):
                table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
            else:
                table = pa.ipc.open_stream(pa.BufferReader(data)).read_all()
            self.check_names(table.column_names)
            columns = [
                name for name in table.column_names if not _holds_bytes_only(table.schema.field(name).type)
            ]
            rows = _rows_of_batches(table.select(columns).to_batches(), table.column_names)
        except FileError:
            raise
        except Exception as error:
            fix = "write it with `datasets.load_from_disk(FOLDER).to_parquet(FILE)`"
            raise self.error(f"is an Arrow file that cannot be read ({short_reason(error)})", fix) from None
        return self.tabular("Arrow", rows)

    def open_excel(self, data: bytes, name: str, depth: int) -> Records:
        try:
            import openpyxl
        except ImportError:
            fix = "save it as CSV (UTF-8), or install the reader: pip install openpyxl"
            raise self.error("is an Excel workbook", fix) from None
        try:
            book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
            sheets = {sheet.title: [list(row) for row in sheet.iter_rows(values_only=True)] for sheet in book}
        except Exception as error:  # whatever the damaged part makes the reader raise
            fix = "save it as CSV (UTF-8)"
            raise self.error(
                f"is an Excel workbook that cannot be read ({short_reason(error)})", fix
            ) from None
        tables = {title: rows for title, rows in sheets.items() if _filled(rows)}
        if len(tables) > 1:
            raise self.error(
                f"is an Excel workbook with several sheets ({some_of(tables)})", "save one as CSV (UTF-8)"
            )
        if not tables:
            raise self.error("is an Excel workbook without rows")
        header, *cells = _filled(next(iter(tables.values())))
        columns = ["" if cell is None else str(cell).strip() for cell in header]
        self.check_names([column for column in columns if column])
        return self.tabular("Excel", [dict(zip(columns, row, strict=True)) for row in cells])

    def tabular(self, form: str, rows: list[Record]) -> Records:
        return Records(self.path, form, rows, "row", range(len(rows)), is_table=form == "Excel")

    def check_names(self, columns: Sequence[str]) -> None:
        """Refuse a table with two columns of one name."""
        repeated = [name for name, count in Counter(columns).items() if name and count > 1]
        if repeated:
            raise file_error(
                self.path, f"has {repeated[0]!r} twice", "name each column once", index="the header"
            )

    # JSON

    def open_json_lines(self, data: bytes, name: str, depth: int) -> Records:
        rows: list[Record] = []
        numbers: list[int] = []
        # Not splitlines: a caption may hold U+2028, which JSON does not escape.
        for number, line in enumerate(files.decoded(self.path, data).split("\n"), start=1):
            if not line.strip():
                continue
            with noting(self.problems):
                content = files.parsed(self.path, line, first_line=number)
                if not isinstance(content, dict):
                    found = f"is {described(content, none='null')}"
                    raise file_error(
                        self.path, found, "expected an object with an id and a caption", f"line {number}"
                    )
                rows.append(content)
                numbers.append(number)
        if len(rows) > 1 and all(len(row) == 1 and not self.names_a_column(row) for row in rows):
            pairs = [pair for row in rows for pair in row.items()]
            return Records(
                self.path, "JSON lines of one id each", [_keyed(key, value) for key, value in pairs]
            )
        return self.segmented(Records(self.path, "JSON lines", rows, "line", numbers))

    def open_json(self, data: bytes, name: str, depth: int) -> Records:
        text = files.decoded(self.path, data)
        first, _, others = text.lstrip().partition("\n")
        if first.rstrip().endswith("}") and others.lstrip().startswith("{"):
            return self.open_json_lines(data, name, depth)
        return self.records_of(files.parsed(self.path, text))

    def records_of(self, content: Any, depth: int = 0) -> Records:
        """The records of parsed JSON: the first form that fits."""
        for form in FORMS:
            records = form(self, content, depth)
            if records is not None:
                return self.segmented(records)
        if isinstance(content, dict) and len(content) == 0:
            raise self.error("holds no captions")
        if isinstance(content, dict) and all(isinstance(value, dict) for value in content.values()):
            first: dict[str, Any] = next(iter(content.values()))
            if len(content) <= len(first) and all(map(_is_text, first.values())):
                fix = "write one of them into a file of its own"
                raise self.error(f"holds records under {some_of(content)}", fix)
            # Which of their values is the text shows when columns are chosen.
            return Records(self.path, "objects by image id", list(map(_keyed, content, content.values())))
        fix = "expected {image id: caption or captions}, or a list of objects with an id and a caption each"
        raise self.error(f"unknown form, found {described(content, none='null')}", fix)

    def is_record(self, value: Any) -> bool:
        """Whether an object names an image and has a text, by the names of its values."""
        if not isinstance(value, dict):
            return False
        return self.has_name(value, "id") and self.has_text(value)

    def names_a_column(self, value: Mapping[str, Any]) -> bool:
        return self.has_text(value) or self.has_name(value, "id")

    def has_text(self, value: Mapping[str, Any]) -> bool:
        if not self.expected.isdisjoint(value):
            return True
        if self.role == "rating" and any(map(names.is_rating, value)):
            return True
        return self.has_name(value, "caption") or self.has_name(value, "references")

    def has_name(self, value: Mapping[str, Any], role: str) -> bool:
        return any(names.is_name(name, role) for name in value)

    def segmented(self, records: Records) -> Records:
        """The same records, where a video has captions with time stamps one of each segment."""
        if not any(_is_segmented(row) for row in records.rows[:_LOOKED_AT]):
            return records
        rows = list(chain.from_iterable(map(_segments, records.rows)))
        note = "captions have time stamps: each segment is an id, joined where times are equal (no tIoU)"
        records.notes.append(note)
        return Records(records.path, f"{records.form}, by segment", rows, notes=records.notes)

    # tables as text

    def open_table(self, data: bytes, name: str, depth: int) -> Records:
        text = files.decoded(self.path, data).replace("\r\n", "\n")
        if "\n" not in text.strip():
            text = text.replace("\r", "\n")  # as old programs end lines
        first = text.lstrip("\n").partition("\n")[0]
        if _TOKEN.match(first):
            return self.flickr_tokens(text)
        delimiter = self.delimiter(first)
        if delimiter is None:
            return self.without_header(text, first, name)
        return self.table(text, delimiter)

    def flickr_tokens(self, text: str) -> Records:
        """Flickr's lines of `42.jpg#0<tab>caption`."""
        rows: list[Record] = []
        numbers: list[int] = []
        for number, line in enumerate(text.split("\n"), start=1):
            match = _TOKEN.fullmatch(line)
            if match:
                rows.append({KEY: match[1], VALUE: match[2]})
                numbers.append(number)
            elif line.strip():
                fix = "expected a file name, # and a number, a tab, and a caption"
                self.problems.add(file_error(self.path, f"is {line[:40]!r}", fix, index=f"line {number}"))
        return Records(self.path, "Flickr's token file", rows, "line", numbers)

    def delimiter(self, header: str) -> str | None:
        """The character between the cells of a table, by its header; None where the first line is none."""
        for delimiter in _DELIMITERS:
            columns = [name.strip().strip('"') for name in header.split(delimiter)]
            has_id = any(names.is_name(name, "id") for name in columns)
            if (has_id or self.expected & set(columns)) and self.has_text(dict.fromkeys(columns)):
                return delimiter
            if len(columns) > 1 and self.has_text(dict.fromkeys(columns)) and not _has_sentence(columns):
                return delimiter
            # Ratings in the order of scores may be the only column.
            if self.role == "rating" and any(map(names.is_rating, columns)):
                return delimiter
        columns = [name.strip().strip('"') for name in re.split(r"[,\t|;]", header)]
        may_be_header = self.wide or any(names.is_name(name, "id") for name in columns)
        if may_be_header and len(columns) > 1:
            return max(_DELIMITERS, key=header.count)
        return None

    def table(self, text: str, delimiter: str) -> Records:
        """A table whose header names ids and texts; of pools also one row per image, with any names."""
        rows: list[Record] = []
        numbers: list[int] = []
        cells_of_rows = _Cells(self, text, delimiter)
        lines = cells_of_rows.read()
        header = next(lines, (0, []))[1]
        is_wide = self.wide and len(header) > 1 and not self.has_text(dict.fromkeys(header))
        if is_wide:
            self.check_wide(header)
        else:
            self.check_names(header)
        for number, cells in lines:
            if not any(cell.strip() for cell in cells):
                continue  # as pandas writes a row of missing values
            rows.append(dict(zip(header, cells, strict=True)))
            numbers.append(number)
        return Records(
            self.path,
            _TABLES[delimiter],
            rows,
            "line",
            numbers,
            is_table=True,
            is_wide=is_wide,
            notes=cells_of_rows.notes,
        )

    def check_wide(self, header: Sequence[str]) -> None:
        """Refuse a first row that is no header: it would be lost."""
        known = [name for name in header[1:] if names.is_name(name, "id")]
        first_is_id = not header[0] or names.is_name(header[0], "id") or header[0] in self.expected
        if not first_is_id or known:
            fix = "expected a header that begins with image_id, image or id, then any names"
            raise file_error(self.path, f"has {some_of(header)[:200]}", fix, index="line 1")

    def without_header(self, text: str, first: str, name: str) -> Records:
        """Two columns of which one holds names and the other captions, or one caption a line."""
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        for delimiter in ("\t", ",", "|", ";"):
            pairs = [line.split(delimiter) for _, line in lines]
            if delimiter == "\t" and all(len(cells) == 2 for cells in pairs):
                swapped = _id_is_last(pairs)
                if swapped is None:
                    continue
                rows = [{KEY: cells[swapped].strip(), VALUE: cells[1 - swapped].strip()} for cells in pairs]
                numbers = [number for number, _ in lines]
                return Records(self.path, "two columns without a header", rows, "line", numbers)
            if delimiter in first and self.is_header_or_ids([cells[0] for cells in pairs]):
                raise self.header_error(first.split(delimiter))
        if "\t" in first or name.endswith((".csv", ".tsv")):
            raise self.header_error(
                re.split(r"[\t,;|]" if "," not in first or "\t" not in first else "\t", first)
            )
        # An empty line within them is an empty text: without it the next ones would move up.
        plain_lines = text.rstrip().split("\n")
        rows = [{VALUE: line.strip()} for line in plain_lines]
        return Records(self.path, "plain lines", rows, "line", range(1, len(rows) + 1), has_ids=False)

    def is_header_or_ids(self, cells: Sequence[str]) -> bool:
        """Whether the first cells of all lines look like a column of names, with or without its header."""
        return (
            all(cell.strip() and not re.search(r"\s", cell.strip()) for cell in cells)
            and len(set(cells)) > len(cells) / 2
        )

    def header_error(self, header: Sequence[str]) -> FileError:
        columns = [name.strip().strip('"') for name in header]
        what = "rating" if self.role == "rating" else "caption"
        expected = f"a header with an id and a {what}, such as image_id,{what}"
        fix = f"expected {expected}; name other columns with --id-column NAME and --{what}-column NAME"
        problem = f"has {some_of(columns)[:300]}: none of these is known to hold {what}s"
        return file_error(self.path, problem, fix, "the header")

    # folders

    def read_folder(self) -> Records:
        """A folder of text files, each the caption of the image of its name, or a saved dataset."""
        listed = sorted(path for path in self.path.iterdir() if not path.name.startswith("."))
        tables = _tables_of(self.path)
        if tables:
            return self.read_tables(tables)
        texts = [path for path in listed if path.suffix.lower() in _CAPTION_FILES]
        by_stem: dict[str, list[Path]] = {}
        for path in texts:
            by_stem.setdefault(path.stem, []).append(path)
        rows = []
        for stem, paths in by_stem.items():
            captions = {files.decoded(path, files.contents(path)).strip() for path in paths}
            if len(captions) > 1:
                listed_names = " and ".join(repr(path.name) for path in paths)
                self.problems.add(self.error(f"{listed_names} hold different captions", "keep one of them"))
            rows.append({KEY: stem, VALUE: captions.pop()})
        if not rows:
            fix = "expected a file, or a folder of captions such as 0.txt next to 0.jpg"
            raise self.error("is a folder without captions", fix)
        return Records(self.path, "a text file for each image", rows)

    def read_tables(self, tables: Mapping[Path, str | None]) -> Records:
        """The rows of several files of a dataset, with the split that the name of a file or folder states."""
        rows: list[Record] = []
        form = ""
        for path, split in tables.items():
            part = _Reader(path, self.role, self.problems, self.expected, self.wide).read()
            form = part.form
            rows += part.rows if split is None else [{"split": split, **row} for row in part.rows]
        return Records(self.path, f"{form} ({len(tables)} files)", rows, "row", range(len(rows)))

    # what no reader takes

    def refuse(self, data: bytes, name: str, depth: int) -> Records:
        for kind in FOREIGN:
            if kind.fits(data, name):
                raise self.error(kind.problem, kind.fix)
        raise self.error("is not a text", "write JSON, JSON lines, CSV or Parquet")


def _limited(file: Any, name: Path) -> bytes:
    data: bytes = file.read(LIMITS.file_bytes + 1)
    if len(data) > LIMITS.file_bytes:
        raise file_error(name, f"is longer than {LIMITS.file_bytes >> 30} GiB", "give it in parts")
    return data


def _tables_of(folder: Path) -> dict[Path, str | None]:
    """The Arrow and Parquet files of a dataset's folder and of its folders of splits, with their splits."""
    tables: dict[Path, str | None] = {}
    for path in sorted(folder.iterdir()):
        split = re.split(r"[-.]", path.name)[0]
        if path.is_dir() and names.is_split(path.name):
            tables.update(dict.fromkeys(_tables_of(path), path.name))
        # `datasets` keeps results of `map` next to the data.
        elif path.suffix in (".arrow", ".parquet") and not path.name.startswith("cache-"):
            tables[path] = split if names.is_split(split) else None
    return tables


def _is_content(member: zipfile.ZipInfo) -> bool:
    """Whether a member of an archive is a file of the user; macOS adds its own."""
    name = member.filename.rpartition("/")[2]
    return not member.is_dir() and not name.startswith(".") and not member.filename.startswith("__MACOSX/")


# ---- columns of Arrow


def _holds_bytes_only(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _rows_of_batches(batches: Iterable[Any], columns: Sequence[str]) -> list[Record]:
    """Rows of record batches, without the bytes of pictures; columns that are not read are None."""
    rows: list[Record] = []
    for batch in batches:
        values = {name: _without_bytes(batch.column(name)).to_pylist() for name in batch.schema.names}
        for index in range(batch.num_rows):
            row: Record = dict.fromkeys(columns)
            for name, column in values.items():
                row[name] = column[index]
            rows.append(row)
    return rows


def _without_bytes(array: Any) -> Any:
    """The array without binary fields: of a picture `{bytes, path}` only its path."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array.type, pa.ExtensionType):
        return _without_bytes(array.storage)
    if pa.types.is_struct(array.type):
        fields = [array.type.field(index) for index in range(array.type.num_fields)]
        kept = [field for field in fields if not _holds_bytes_only(field.type)]
        if len(kept) == len(fields):
            return array
        columns = [_without_bytes(pc.struct_field(array, field.name)) for field in kept]
        if [field.name for field in kept] == ["path"]:
            return columns[0]
        return pa.StructArray.from_arrays(columns, names=[field.name for field in kept])
    if pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type):
        values = _without_bytes(array.flatten())
        lengths = [0 if length is None else length for length in pc.list_value_length(array).to_pylist()]
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    return array


def _filled(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """The rows of a sheet that hold anything."""
    return [row for row in rows if any(cell is not None and str(cell).strip() for cell in row)]


# ---- forms of JSON, in the order in which they are tried


def _coco(reader: _Reader, content: Any, depth: int) -> Records | None:
    """`annotations` of `images` (COCO, VizWiz, nocaps), or `sentences` of `videos` (MSR-VTT)."""
    if not isinstance(content, dict):
        return None
    for name in names.listed("containers", "texts"):
        annotations = content.get(name)
        if not _are_objects(annotations):
            continue
        visuals: dict[Any, Record] = {}
        for key in names.listed("containers", "visuals"):
            for index, visual in enumerate(content.get(key) or []):
                _add_visual(reader, visuals, visual, f"{key.removesuffix('s')} {index}")
        rows = [_with_visual(row, visuals) for row in annotations] if visuals else list(annotations)
        unit = name.removesuffix("s")
        named = any(FILE_NAME in visual for visual in visuals.values())
        return Records(reader.path, f"{unit}s of images", rows, unit, range(len(rows)), names_files=named)
    return None


def _add_visual(reader: _Reader, visuals: dict[Any, Record], visual: Any, place: str) -> None:
    """Note an image or video of annotations under its id, with its fields."""
    if not isinstance(visual, dict):
        problem = f"is {described(visual, none='null')}, expected an object with id and file_name"
        reader.problems.add(file_error(reader.path, problem, index=place))
        return
    fields = {name: value for name, value in visual.items() if isinstance(value, (str, int, float))}
    file_name = visual.get(FILE_NAME)
    if file_name is not None and not isinstance(file_name, str):
        problem = f"is {described(visual)}, expected an object with id and file_name"
        reader.problems.add(file_error(reader.path, problem, index=place))
        return
    for key in ("id", "video_id", "image_id"):
        visual_id = names.as_id(visual.get(key))
        if visual_id is None:
            continue
        known = visuals.setdefault(visual_id, fields)
        if known.get(FILE_NAME) != fields.get(FILE_NAME):
            problem = f"the id {visual_id!r} is also that of {known.get(FILE_NAME)!r}"
            reader.problems.add(file_error(reader.path, problem, index=place))
    if file_name and names.as_id(visual.get("id")) is None:
        problem = f"is {described(visual)}, expected an object with id and file_name"
        reader.problems.add(file_error(reader.path, problem, index=place))


def _with_visual(row: Any, visuals: Mapping[Any, Record]) -> Any:
    """An annotation with what the file says of its image; `id` stays that of the annotation."""
    if not isinstance(row, dict):
        return row
    for key in ("image_id", "video_id"):
        visual = visuals.get(names.as_id(row.get(key)))
        if visual is not None:
            return {**{name: value for name, value in visual.items() if name not in ("id", "caption")}, **row}
    return row


def _karpathy(reader: _Reader, content: Any, depth: int) -> Records | None:
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
    named = any(FILE_NAME in row for row in rows)
    return Records(reader.path, "Karpathy's images", rows, "image", range(len(rows)), names_files=named)


def _pandas(reader: _Reader, content: Any, depth: int) -> Records | None:
    """What `DataFrame.to_json` writes with orient="split"."""
    if not isinstance(content, dict) or not {"columns", "data"} <= content.keys() <= {
        "columns",
        "data",
        "index",
    }:
        return None
    columns, data = content["columns"], content["data"]
    if not isinstance(columns, list) or not isinstance(data, list):
        return None
    if not all(isinstance(row, list) and len(row) == len(columns) for row in data):
        raise reader.error(f"has rows that are not of {len(columns)} columns each", "write a list of objects")
    rows = [dict(zip(map(str, columns), row, strict=True)) for row in data]
    return Records(reader.path, "a table by rows", rows, "row", range(len(rows)))


def _parallel(reader: _Reader, content: Any, depth: int) -> Records | None:
    """Lists by column, `{"image_id": [...], "caption": [...]}`, also as `DataFrame.to_json` writes them."""
    if not isinstance(content, dict) or not reader.has_text(content):
        return None
    named = {name: value for name, value in content.items() if isinstance(value, (list, dict))}
    has_id = reader.has_name(named, "id")
    both = reader.has_name(named, "caption") and reader.has_name(named, "references")
    by_row = {name: value for name, value in named.items() if isinstance(value, dict)}
    columns = {name: value for name, value in named.items() if isinstance(value, list)}
    if not reader.has_text(named) or (by_row and columns):
        return None
    if not has_id and not (both and columns) and reader.role != "rating":
        return None
    if by_row:
        if len({tuple(value) for value in by_row.values()}) > 1:
            raise reader.error(f"has columns of different rows ({some_of(named)})", "write a list of objects")
        columns = {name: list(value.values()) for name, value in by_row.items()}
    if any(_are_objects(column) and any(map(reader.is_record, column)) for column in columns.values()):
        return None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} of {length:,}" for name, length in lengths.items())
        raise reader.error(f"has lists by column of different lengths ({listed})", "write a list of objects")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Records(reader.path, "lists by column", rows, "row", range(len(rows)), has_ids=has_id)


def _single(reader: _Reader, content: Any, depth: int) -> Records | None:
    """One record alone."""
    if not reader.is_record(content):
        return None
    ids = [value for name, value in content.items() if names.is_name(name, "id")]
    texts = [
        value
        for name, value in content.items()
        if not names.is_name(name, "id") and reader.has_text({name: value})
    ]
    plain_values: tuple[type, ...] = (str, list, type(None))
    if reader.role == "rating":
        plain_values = (*plain_values, int, float)
    if not any(names.as_id(value) for value in ids):
        return None
    if not all(isinstance(value, plain_values) for value in texts):
        return None
    if any(_are_objects(value) and any(map(reader.is_record, value)) for value in texts):
        return None
    return Records(reader.path, "one record", [content], "entry", range(1))


def _list(reader: _Reader, content: Any, depth: int) -> Records | None:
    """A list of objects, of pairs of id and caption, or of texts in the order of another file."""
    if not isinstance(content, list) or not content:
        return None
    if any(isinstance(row, dict) for row in content):
        rows: list[Record] = []
        numbers: list[int] = []
        for index, row in enumerate(content):
            if isinstance(row, dict):
                rows.append(row)
                numbers.append(index)
            else:
                found = f"is {described(row, none='null')}"
                fix = "expected an object with an id and a caption"
                reader.problems.add(file_error(reader.path, found, fix, index=f"entry {index}"))
        return Records(reader.path, "a list of objects", rows, "entry", numbers)
    if all(isinstance(row, list) and len(row) == 2 for row in content):
        pairs = [[names.as_id(row[0]) or "", row[1]] for row in content]
        ids = [pair[0] for pair in pairs]
        if all(ids) and not any(re.search(r"\s", one) for one in ids):
            rows = [{KEY: pair[0], VALUE: pair[1]} for pair in pairs]
            return Records(reader.path, "pairs of id and caption", rows, "entry", range(len(rows)))
    if reader.role == "rating" and all(map(_may_be_rating, content)):
        rows = [{VALUE: row} for row in content]
        return Records(reader.path, "a list of numbers", rows, "entry", range(len(rows)), has_ids=False)
    if all(isinstance(row, (str, list)) for row in content):
        rows = [{VALUE: row} for row in content]
        return Records(reader.path, "a list of texts", rows, "entry", range(len(rows)), has_ids=False)
    return None


def _container(reader: _Reader, content: Any, depth: int) -> Records | None:
    """An object around the records: `{"predictions": [...]}`, `{"train": [...], "test": [...]}`."""
    if not isinstance(content, dict) or depth > _DEEPEST:
        return None
    inside = {
        key: value for key, value in content.items() if _holds_records(reader, key, value, len(content))
    }
    if not inside:
        lists = [key for key, value in content.items() if _are_objects(value)]
        if len(lists) != 1 or _is_mapping(reader, content):
            return None
        inside = {lists[0]: content[lists[0]]}
    parts = {key: value for key, value in inside.items() if names.is_split(key)}
    if parts and len(parts) == len(inside):
        rows: list[Record] = []
        for key, value in parts.items():
            opened = reader.records_of(value, depth + 1)
            rows += [{"split": key, **row} for row in opened.rows]
        return Records(reader.path, f"parts {some_of(parts)}", rows, "entry", range(len(rows)))
    if len(inside) > 1:
        of_role = {key: value for key, value in inside.items() if names.is_name(key, reader.role)}
        other_role = "references" if reader.role == "caption" else "caption"
        of_role = {
            key: value for key, value in of_role.items() if not names.is_name(key, other_role)
        } or of_role
        if len(of_role) != 1:
            fix = "write one of them into a file of its own"
            raise reader.error(f"holds records under {' and '.join(map(repr, inside))}", fix)
        inside = of_role
    key, value = next(iter(inside.items()))
    siblings = [
        name for name, other in content.items() if name != key and isinstance(other, (list, dict)) and other
    ]
    other_role = "references" if reader.role == "caption" else "caption"
    if siblings and names.is_name(key, other_role) and not names.is_name(key, reader.role):
        fix = "write the one to read into a file of its own"
        raise reader.error(f"holds {key!r} and {some_of(siblings)}, and it is unclear which is meant", fix)
    opened = reader.records_of(value, depth + 1)
    opened.form = f"{opened.form} under {key!r}"
    if len(content) > 1 and "split" not in opened.fields and isinstance(content.get("split"), str):
        for row in opened.rows:
            row["split"] = content["split"]
    return opened


def _holds_records(reader: _Reader, key: str, value: Any, keys: int) -> bool:
    """Whether a list or object under a key holds records, rather than the captions of that id."""
    if _are_objects(value):
        records = [row for row in value[:_LOOKED_AT] if reader.is_record(row)]
        if not records:
            return False
        return any(not _is_about(row, key) for row in records)
    if isinstance(value, dict) and value and not reader.has_text(value):
        if keys > 1 and not (names.is_split(key) or names.is_name(key, "caption") or _is_container_name(key)):
            return False
        return _is_mapping(reader, value) or any(_are_objects(inner) for inner in value.values())
    return False


def _is_container_name(key: str) -> bool:
    return names.is_name(key, "references") or names.plain(key) in (
        "results",
        "data",
        "annotations",
        "items",
        "samples",
    )


def _is_about(row: Record, key: str) -> bool:
    """Whether a record names the image under whose id it lies, as in pycocoevalcap's results."""
    ids = [names.as_id(value) for name, value in row.items() if names.is_name(name, "id")]
    return any(one is not None and (one == key or files.bare(one) == files.bare(key)) for one in ids)


def _is_mapping(reader: _Reader, content: Mapping[str, Any]) -> bool:
    """Whether each value is a caption, captions, or an object that has one."""
    return all(_is_entry(reader, value) for value in content.values())


def _may_be_rating(value: Any) -> bool:
    """Whether a value is a number, missing, or a list of such."""
    if isinstance(value, list):
        return all(map(_may_be_rating, value))
    return value is None or isinstance(value, (int, float))


def _is_entry(reader: _Reader, value: Any) -> bool:
    if isinstance(value, str):
        return True
    if reader.role == "rating" and _may_be_rating(value):
        return True
    if isinstance(value, dict):
        return reader.has_text(value)
    if isinstance(value, list):
        return all(
            isinstance(one, (str, list)) or (isinstance(one, dict) and reader.has_text(one)) for one in value
        )
    return False


def _mapping(reader: _Reader, content: Any, depth: int) -> Records | None:
    """`{image id: caption}`, `{image id: [captions]}`, `{image id: {...}}`, `{image id: [{...}]}`."""
    if not isinstance(content, dict) or not content:
        return None
    if not any(isinstance(value, list) or _is_entry(reader, value) for value in content.values()):
        return None
    if any(isinstance(value, dict) for value in content.values()):
        # Objects that have no text beside others that have: metadata next to the records.
        foreign = [key for key, value in content.items() if not _is_entry(reader, value)]
        if foreign:
            fix = "write the captions into an object of their own"
            raise reader.error(f"holds captions beside {some_of(foreign)}", fix)
    return Records(reader.path, "an object by image id", list(map(_keyed, content, content.values())))


def _keyed(key: str, value: Any) -> Record:
    """The record of what stands under a key."""
    if isinstance(value, dict):
        return {KEY: key, **value}
    return {KEY: key, VALUE: value}


FORMS: Sequence[Callable[[_Reader, Any, int], Records | None]] = (
    _coco,
    _karpathy,
    _pandas,
    _parallel,
    _container,
    _single,
    _list,
    _mapping,
)


def _are_objects(value: Any) -> TypeGuard[list[Record]]:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(text, str) for text in value)
    )


def _is_span(value: Any) -> bool:
    """Whether a value is the begin and the end of a segment, in seconds."""
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(time, (int, float)) for time in value)
    )


def _is_segmented(row: Record) -> bool:
    """Whether a record has captions with time stamps."""
    if isinstance(row.get("timestamps"), list) and isinstance(row.get("sentences"), list):
        return all(map(_is_span, row["timestamps"]))
    captions = row.get(VALUE)
    if _are_objects(captions):
        return all(_is_span(caption.get("timestamp")) for caption in captions)
    return _is_span(row.get("timestamp"))


def _segments(row: Record) -> list[Record]:
    """A record for each caption with a time stamp: `sentences` with `timestamps`, or one `sentence`."""
    key = row.get(KEY)
    if isinstance(row.get("timestamps"), list) and isinstance(row.get("sentences"), list):
        spans, sentences = row["timestamps"], row["sentences"]
        if len(spans) != len(sentences):
            return [row]
        return [
            {KEY: f"{key} {_span(span)}", VALUE: sentence}
            for span, sentence in zip(spans, sentences, strict=True)
        ]
    captions = row.get(VALUE)
    if _is_span(row.get("timestamp")):
        return [{**row, KEY: f"{key} {_span(row['timestamp'])}"}]
    if _are_objects(captions):
        return [{**caption, KEY: f"{key} {_span(caption.get('timestamp'))}"} for caption in captions]
    return [row]


def _span(span: Any) -> str:
    """The times of a segment, in seconds."""
    if not isinstance(span, (list, tuple)):
        return str(span)
    return "-".join(f"{time:g}" if isinstance(time, (int, float)) else str(time) for time in span)


# ---- cells of text tables

_DELIMITERS = ",\t|;"
_TABLES = {",": "CSV", "\t": "a table with tabs", "|": "a table with |", ";": "CSV with semicolons"}
_TOKEN = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
"""A line of Flickr8k and Flickr30k: an image's file name, the number of the caption, the caption."""
_JOINED = re.compile(r"\s*[0-9]+\s\s+(\S.*)")
"""Number and caption of an image of Flickr30k in one cell: a row of the published table lacks a `|`."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_CAPTION_FILES = {".txt", ".caption", ".cap"}


@dataclass
class _Cells:
    """The rows of a text table: the line on which each begins, with as many cells as the header has."""

    reader: _Reader
    text: str
    delimiter: str
    header: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacking: int = 0
    unquoted: int = 0

    def read(self) -> Iterator[tuple[int, list[str]]]:
        for number, raw, cells in self.lines():
            if not self.header or self.delimiter == "|":
                cells = [cell.strip() for cell in cells]
            if not self.header:
                self.header = cells
                yield number, cells
                continue
            if len(cells) != len(self.header):
                cells = self.mended(raw, cells)
            if len(cells) == len(self.header):
                yield number, cells
            else:
                problem = f"has {len(cells)} cells, the header has {len(self.header)}"
                fix = "quote captions that hold commas, and leave no cell out"
                self.reader.problems.add(file_error(self.reader.path, problem, fix, index=f"line {number}"))
        if self.lacking:
            lack = "row lacks" if self.lacking == 1 else "rows lack"
            self.notes.append(f"{self.lacking:,} {lack} the | behind the number")
        if self.unquoted:
            have = "row has" if self.unquoted == 1 else "rows have"
            self.notes.append(
                f"{self.unquoted:,} {have} commas without quotes: the rest of the line is the caption"
            )

    def mended(self, raw: str, cells: list[str]) -> list[str]:
        """The cells of a line whose last column holds the delimiter without quotes, or that lacks a `|`."""
        if self.delimiter == "|" and len(cells) == len(self.header) - 1:
            match = _JOINED.fullmatch(cells[-1])
            if match:
                self.lacking += 1
                return [*cells[:-1], "", match[1]]
        if len(cells) <= len(self.header) or '"' in raw or self.delimiter == "|":
            return cells
        parts = raw.split(self.delimiter, len(self.header) - 1)
        # Before the caption no other text may hold the delimiter: which comma ends it would be a guess.
        before = parts[:-1]
        last_is_text = self.reader.role != "rating" and self.reader.has_text({self.header[-1]: None})
        if last_is_text and not any(re.search(r"\s", cell.strip()) for cell in before):
            self.unquoted += 1
            return [*(cell.strip() for cell in before), parts[-1].strip()]
        return cells

    def lines(self) -> Iterator[tuple[int, str, list[str]]]:
        """The number, the text where it is one line, and the cells of each row that is not blank."""
        lines = self.text.split("\n")
        if self.delimiter == "\t" and len({line.count("\t") for line in lines if line.strip()}) == 1:
            # All of as many tabs: marks that do not enclose a cell are the caption's.
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line, [_unquoted(cell) for cell in line.split("\t")]
            return
        settings: Any = {
            "delimiter": self.delimiter,
            "strict": True,
            "skipinitialspace": self.delimiter in ",;",
        }
        # Line by line, so that its numbers are those of `lines`.
        rows = csv.reader((f"{line}\n" for line in lines), **settings)
        begins = 1
        try:
            for cells in rows:
                if cells:
                    yield begins, lines[begins - 1] if rows.line_num == begins else '"', cells
                begins = rows.line_num + 1
        except csv.Error as error:
            fix = "if a cell is too large, close the quotation mark with which it begins, or use JSON lines"
            problem = f"is not CSV ({error})"
            self.reader.problems.add(file_error(self.reader.path, problem, fix, index=f"line {begins}"))


def _unquoted(cell: str) -> str:
    match = _QUOTED.fullmatch(cell)
    return match[1].replace('""', '"') if match else cell


def _has_sentence(columns: Sequence[str]) -> bool:
    """Whether a first line is rather a caption than a header."""
    return any(name.count(" ") >= 3 for name in columns)


def _id_is_last(pairs: Sequence[Sequence[str]]) -> int | None:
    """Which of two columns holds names: those without blanks, next to captions; None where it is unclear."""
    for column in (0, 1):
        ids = [pair[column].strip() for pair in pairs]
        texts = [pair[1 - column].strip() for pair in pairs]
        # The first line may be a header with unknown names, which has no blanks in its text.
        if all(ids) and not any(re.search(r"\s", one) for one in ids) and " " in texts[0]:
            return column
    return None


# ---- which bytes are opened how, in the order in which they are tried


@dataclass(frozen=True)
class _Opener:
    """A reader of bytes: which it takes, and what that is, by name and in words, for the documents."""

    fits: Callable[[bytes, str], bool]
    open: Callable[[_Reader, bytes, str, int], Records]
    form: str = ""
    about: str = ""


@dataclass(frozen=True)
class _Foreign:
    """A kind of file that is named, with the line that converts it."""

    fits: Callable[[bytes, str], bool]
    problem: str
    fix: str


def _begins(*marks: bytes) -> Callable[[bytes, str], bool]:
    return lambda data, name: data.startswith(marks)


def _ends(*extensions: str) -> Callable[[bytes, str], bool]:
    return lambda data, name: name.endswith(extensions)


def _is_excel(data: bytes, name: str) -> bool:
    return data.startswith(b"PK\x03\x04") and (
        name.endswith((".xlsx", ".xlsm")) or b"xl/workbook.xml" in data
    )


def _is_array(data: bytes, name: str) -> bool:
    return data.startswith(b"\x93NUMPY") or (data.startswith(b"PK") and name.endswith(".npz"))


def _is_torch(data: bytes, name: str) -> bool:
    return data.startswith(b"PK") and (name.endswith((".pt", ".pth", ".bin")) or b"data.pkl" in data[:4096])


_WRITE_JSON = 'json.dump({image_id: caption, ...}, open("captions.json", "w"))'
FOREIGN: Sequence[_Foreign] = (
    _Foreign(_is_array, "is a NumPy array", f"write its captions with {_WRITE_JSON}"),
    _Foreign(_is_torch, "is a file of PyTorch", f"load it where it is trusted, and write {_WRITE_JSON}"),
    _Foreign(
        lambda data, name: (
            name.endswith((".pkl", ".pickle", ".p")) or re.match(rb"\x80[\x02-\x05]", data) is not None
        ),
        "is a pickle, which would run its code when it is opened",
        f"load it where it is trusted, and write {_WRITE_JSON}",
    ),
    _Foreign(_begins(b"\xd0\xcf\x11\xe0"), "is an old Excel workbook (.xls)", "save it as CSV (UTF-8)"),
    _Foreign(_begins(b"\x89HDF"), "is an HDF5 file", f"write its captions with {_WRITE_JSON}"),
    _Foreign(_begins(b"SQLite format 3"), "is an SQLite database", "export the table as CSV"),
    _Foreign(_begins(b"%PDF"), "is a PDF", "write JSON, JSON lines, CSV or Parquet"),
    _Foreign(_begins(b"\x28\xb5\x2f\xfd"), "is compressed with zstd", "unpack it with `zstd -d`"),
    _Foreign(_begins(b"7z\xbc\xaf", b"Rar!"), "is an archive", "unpack it, and name the file"),
    _Foreign(
        lambda data, name: data[257:262] == b"ustar",
        "is a tar archive",
        "unpack it, and name the file; shards of pictures are scored with `capeval shards score`",
    ),
    _Foreign(
        _begins(b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"), "is a picture", "name the file of captions"
    ),
    _Foreign(
        _begins(b"version https://git-lfs"),
        "is a pointer of git-lfs, not the file",
        "fetch it with `git lfs pull`",
    ),
    _Foreign(
        lambda data, name: re.match(rb"\s*(<!doctype html|<html)", data[:200], re.IGNORECASE) is not None,
        "is an HTML page, as a failed download leaves it",
        "download the file again",
    ),
)


def _is_foreign(data: bytes, name: str) -> bool:
    return any(kind.fits(data, name) for kind in FOREIGN)


def _is_arrow(data: bytes, name: str) -> bool:
    return data.startswith(b"ARROW1") or (
        name.endswith((".arrow", ".feather")) and data[:4] == b"\xff\xff\xff\xff"
    )


def _is_empty(data: bytes, name: str) -> bool:
    return not data.removeprefix(b"\xef\xbb\xbf").strip()


def _is_json(data: bytes, name: str) -> bool:
    first = data[:4096].decode(files.encoding_of(data), "ignore").lstrip()[:1]
    return name.endswith(".json") or (not name.endswith((".csv", ".tsv")) and first in ("{", "["))


def _open_empty(reader: _Reader, data: bytes, name: str, depth: int) -> Records:
    raise reader.error("is empty")


OPENERS: Sequence[_Opener] = (
    _Opener(_is_empty, _open_empty),
    _Opener(
        _begins(b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"),
        _Reader.open_compressed,
        "compressed",
        "gzip, bzip2 or xz around any of these; a zip archive of one file",
    ),
    _Opener(
        lambda data, name: data.startswith(b"PAR1") or name.endswith((".parquet", ".pq")),
        lambda reader, data, name, depth: reader.open_parquet(data),
        "Parquet",
        "columns by name; a picture `{bytes, path}` counts as its path",
    ),
    _Opener(
        _is_arrow,
        _Reader.open_arrow,
        "Arrow",
        "a file, or the folder that `datasets` writes with `save_to_disk`",
    ),
    _Opener(_is_excel, _Reader.open_excel, "Excel", "`.xlsx` with one sheet (`pip install openpyxl`)"),
    _Opener(_is_foreign, _Reader.refuse),
    _Opener(_begins(b"PK\x03\x04", b"PK\x05\x06"), _Reader.open_zip),
    _Opener(
        _ends(".jsonl", ".ndjson", ".jsonlines"),
        _Reader.open_json_lines,
        "JSON lines",
        "an object a line: predictions, answers of chat models (`messages`, OpenAI's and vLLM's batches), "
        "samples of lmms-eval",
    ),
    _Opener(_is_json, _Reader.open_json, "JSON", "each form in the rows below"),
    _Opener(
        lambda data, name: True,
        _Reader.open_table,
        "CSV, TSV",
        "a header, and cells between commas, tabs, semicolons or `|`; two columns with tabs also without a "
        "header; Flickr's `42.jpg#0<tab>caption`; one caption a line, if references are lines too",
    ),
)


def forms_read() -> list[tuple[str, str]]:
    """The forms of files that are read, with what they look like, for the documents."""
    json_forms = [("JSON", (form.__doc__ or "").strip()) for form in FORMS]
    openers = [(opener.form, opener.about) for opener in OPENERS if opener.form]
    folder = ("folder", "a text file for each image, such as `0.txt` next to `0.jpg`")
    place = 1 + [form for form, _ in openers].index("JSON")
    return [*openers[:place], *json_forms, *openers[place:], folder]
