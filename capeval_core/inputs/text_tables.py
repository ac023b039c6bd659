"""Tables as text: CSV, tabs, semicolons and `|`, Flickr's token files, and one caption a line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from capeval_core.errors import FileError, file_error
from capeval_core.inputs import files, names
from capeval_core.inputs.files import some_of
from capeval_core.inputs.records import KEY, VALUE, Record, Records, TextSource

_FORMS: Mapping[str, str] = {
    ",": "CSV",
    "\t": "a table with tabs",
    "|": "a table with |",
    ";": "CSV with semicolons",
}
"""What a table is called, by the character between its cells."""
_TOKEN = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
"""A line of Flickr8k and Flickr30k: an image's file name, the number of the caption, the caption."""
_JOINED = re.compile(r"\s*[0-9]+\s\s+(\S.*)")
"""Number and caption of an image of Flickr30k in one cell: a row of the published table lacks a `|`."""
_EXCEL_MARK = re.compile(r"\s*sep=[,;|\t]?\s*\n")
"""A first line that tells Excel which character is between cells."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')  # CSV doubles a mark within marks


def open_text(source: TextSource, data: bytes, name: str) -> Records:
    """The records of a text: a table with a header, else two columns, else one caption a line."""
    text = files.decoded(source.path, data).replace("\r\n", "\n")
    if "\n" not in text.strip():
        text = text.replace("\r", "\n")  # as old programs end lines
    if _EXCEL_MARK.match(text):
        text = text[text.index("\n") :]  # a blank line instead, so that lines keep their numbers
    first_line = text.lstrip("\n").partition("\n")[0]
    if _TOKEN.match(first_line):
        return _flickr_tokens(source, text)
    delimiter = _delimiter(source, first_line)
    if delimiter is not None:
        return _table(source, text, delimiter)
    return _without_header(source, text, first_line, name)


def _flickr_tokens(source: TextSource, text: str) -> Records:
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
            source.note_problem(f"line {number}", f"is {line[:40]!r}", fix)
    return Records(source.path, "Flickr's token file", rows, "line", numbers)


# ---- the header


def _delimiter(source: TextSource, header: str) -> str | None:
    """The character between the cells of a table, by its header; None where the first line is not one."""
    # The names tell, not the counts: a caption of the first line may hold more commas than the table columns.
    for delimiter in _FORMS:
        if _is_header(source, _columns(header.split(delimiter))):
            return delimiter
    columns = _columns(re.split(r"[,\t|;]", header))
    may_be_header = source.wide or source.has_name(columns, "id")
    if may_be_header and len(columns) > 1:
        return max(_FORMS, key=header.count)
    return None


def _columns(cells: Sequence[str]) -> list[str]:
    """The cells of a header without blanks and quotation marks."""
    return [cell.strip().strip('"') for cell in cells]


def _is_header(source: TextSource, columns: Sequence[str]) -> bool:
    """Whether the names of columns say that one is a text, and another one may be the id."""
    if source.has_text(columns):
        if source.has_name(columns, "id") or not source.expected.isdisjoint(columns):
            return True
        # `title, a dog in the snow` as a caption has a word that is the name of a text, too.
        if len(columns) > 1 and not _has_sentence(columns):
            return True
    # Ratings in the order of scores may be the only column.
    return source.role == "rating" and any(map(names.is_rating, columns))


def _has_sentence(columns: Sequence[str]) -> bool:
    """Whether a first line is rather a caption than a header."""
    return any(name.count(" ") >= 3 for name in columns)


def _header_error(source: TextSource, cells: Sequence[str]) -> FileError:
    """The error about a first line whose names say nothing."""
    text = "rating" if source.role == "rating" else "caption"
    problem = f"has {some_of(_columns(cells))[:300]}: none of these is known to hold {text}s"
    expected = f"a header with an id and a {text}, such as image_id,{text}"
    fix = f"expected {expected}; name other columns with --id-column NAME and --{text}-column NAME"
    return file_error(source.path, problem, fix, "the header")


# ---- tables with a header


def _table(source: TextSource, text: str, delimiter: str) -> Records:
    """A table whose header names ids and texts; of pools also one row per image, with any names."""
    rows: list[Record] = []
    numbers: list[int] = []
    cells_of_rows = _CellReader(source, text, delimiter)
    lines = cells_of_rows.read()
    _, header = next(lines, (0, []))
    is_wide = source.wide and len(header) > 1 and not source.has_text(header)
    if is_wide:
        _check_wide(source, header)
    else:
        source.check_names(header)
    for number, cells in lines:
        if not any(map(str.strip, cells)):
            continue  # as pandas writes a row of missing values
        rows.append(dict(zip(header, cells, strict=True)))
        numbers.append(number)
    return Records(
        source.path,
        _FORMS[delimiter],
        rows,
        "line",
        numbers,
        is_table=True,
        is_wide=is_wide,
        notes=cells_of_rows.notes(),
    )


def _check_wide(source: TextSource, header: Sequence[str]) -> None:
    """Refuse a first row of a wide table that is not a header: it would be lost."""
    first, *captioners = header
    begins_with_id = not first or names.is_name(first, "id") or first in source.expected
    if not begins_with_id or source.has_name(captioners, "id"):
        fix = "expected a header that begins with image_id, image or id, then any names"
        raise file_error(source.path, f"has {some_of(header)[:200]}", fix, index="line 1")


@dataclass
class _CellReader:
    """The rows of a text table: the line on which each begins, with as many cells as the header has.

    rows_without_bar: of Flickr30k's table, those that lack a `|`. rows_with_commas: those whose caption holds
    the delimiter without quotes.
    """

    source: TextSource
    text: str
    delimiter: str
    header: list[str] = field(default_factory=list)
    rows_without_bar: int = 0
    rows_with_commas: int = 0

    def read(self) -> Iterator[tuple[int, list[str]]]:
        """The header, then the rows; note rows of another width."""
        for number, line, cells in self.lines():
            # Blanks within a cell of CSV are the caption's; around the `|` of Flickr30k's table they are not.
            if not self.header or self.delimiter == "|":
                cells = [cell.strip() for cell in cells]
            if not self.header:
                self.header = cells
                yield number, cells
                continue
            if len(cells) != len(self.header):
                cells = self.mended(line, cells)
            if len(cells) == len(self.header):
                yield number, cells
            else:
                problem = f"has {len(cells)} cells, the header has {len(self.header)}"
                fix = "quote captions that hold commas, and leave no cell out"
                self.source.note_problem(f"line {number}", problem, fix)

    def lines(self) -> Iterator[tuple[int, str | None, list[str]]]:
        """The number, the text (None: of several lines) and the cells of each row that is not blank."""
        lines = self.text.split("\n")
        if self.delimiter == "\t" and _have_as_many_tabs(lines):
            # All of as many tabs: marks that do not enclose a cell are the caption's.
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    cells = list(map(_unquoted, line.split("\t")))
                    yield number, line, cells
            return
        # Line by line, so that the reader counts the same lines.
        rows = csv.reader(
            (f"{line}\n" for line in lines),
            delimiter=self.delimiter,
            strict=True,
            skipinitialspace=self.delimiter in ",;",
        )
        first_number = 1
        try:
            for cells in rows:
                if cells:
                    # A caption with a line break in quotation marks: `mended` could not tell its lines apart.
                    is_one_line = rows.line_num == first_number
                    yield first_number, lines[first_number - 1] if is_one_line else None, cells
                first_number = rows.line_num + 1
        except csv.Error as error:
            fix = "if a cell is too large, close the quotation mark with which it begins, or use JSON lines"
            self.source.note_problem(f"line {first_number}", f"is not CSV ({error})", fix)

    def mended(self, line: str | None, cells: list[str]) -> list[str]:
        """The cells of a line whose last column holds the delimiter without quotes, or that lacks a `|`."""
        width = len(self.header)
        if self.delimiter == "|":
            match = _JOINED.fullmatch(cells[-1]) if len(cells) == width - 1 else None
            if match is None:
                return cells
            self.rows_without_bar += 1
            return [*cells[:-1], "", match[1]]
        if line is None or '"' in line or len(cells) <= width:
            return cells
        if self.source.role == "rating" or not self.source.has_text(self.header[-1:]):
            return cells
        *before, caption = line.split(self.delimiter, width - 1)
        # Before the caption no other text may hold the delimiter: which comma ends it would be a guess.
        if any(map(_has_blank, before)):
            return cells
        # 0,5 may be a number of a language that writes it so.
        if before and before[-1].strip().isdecimal() and re.match(r"\s*[0-9]+\s*,", caption):
            return cells
        self.rows_with_commas += 1
        return [cell.strip() for cell in (*before, caption)]

    def notes(self) -> list[str]:
        """What was mended, in words."""
        notes = []
        if self.rows_without_bar:
            lack = "row lacks" if self.rows_without_bar == 1 else "rows lack"
            notes.append(f"{self.rows_without_bar:,} {lack} the | behind the number")
        if self.rows_with_commas:
            have = "row has" if self.rows_with_commas == 1 else "rows have"
            mended = "commas without quotes: the rest of the line is the caption"
            notes.append(f"{self.rows_with_commas:,} {have} {mended}")
        return notes


def _have_as_many_tabs(lines: Sequence[str]) -> bool:
    """Whether all lines that are not blank have equally many tabs."""
    tab_counts = {line.count("\t") for line in lines if line.strip()}
    return len(tab_counts) == 1


def _has_blank(cell: str) -> bool:
    """Whether a cell has a blank within it, as captions have and ids have not."""
    return re.search(r"\s", cell.strip()) is not None


def _unquoted(cell: str) -> str:
    match = _QUOTED.fullmatch(cell)
    return match[1].replace('""', '"') if match else cell


# ---- texts without a header


def _without_header(source: TextSource, text: str, first_line: str, name: str) -> Records:
    """Two columns of which one holds names and the other captions, or one caption a line."""
    column = first_line.strip().strip('"')
    if names.is_name(column, "caption") or names.is_name(column, "references"):
        return _only_column(source, text, column)
    numbers: list[int] = []
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            numbers.append(number)
            lines.append(line)
    for delimiter in ("\t", ",", "|", ";"):
        cells_of_lines = [line.split(delimiter) for line in lines]
        # Only of tabs: a caption holds no tab, but it may hold one comma in each line by chance.
        if delimiter == "\t" and all(len(cells) == 2 for cells in cells_of_lines):
            id_place = _place_of_ids(cells_of_lines)
            if id_place is None:
                continue
            rows: list[Record] = []
            for cells in cells_of_lines:
                rows.append({KEY: cells[id_place].strip(), VALUE: cells[1 - id_place].strip()})
            return Records(source.path, "two columns without a header", rows, "line", numbers)
        first_cells = [cells[0].strip() for cells in cells_of_lines]
        # Read as plain lines, the names would be scored with the captions.
        if delimiter in first_line and _are_names(first_cells):
            raise _header_error(source, first_line.split(delimiter))
    if "\t" in first_line or name.endswith((".csv", ".tsv")):
        only_tabs = "\t" in first_line and "," in first_line
        raise _header_error(source, re.split("\t" if only_tabs else r"[\t,;|]", first_line))
    # An empty line within them is an empty text: without it the next ones would move up.
    rows = [{VALUE: line.strip()} for line in text.rstrip().split("\n")]
    return Records(source.path, "plain lines", rows, "line", range(1, len(rows) + 1), has_ids=False)


def _only_column(source: TextSource, text: str, column: str) -> Records:
    """The lines below the name of the only column."""
    rows: list[Record] = []
    numbers: list[int] = []
    is_header = True
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        if is_header and line.strip():
            is_header = False
        elif not is_header:
            rows.append({column: _unquoted(line.strip())})
            numbers.append(number)
    return Records(source.path, "a table of one column", rows, "line", numbers, has_ids=False)


def _place_of_ids(pairs: Sequence[Sequence[str]]) -> int | None:
    """Which of two columns holds names: those without blanks, next to captions; None where it is unclear."""
    for place in (0, 1):
        ids = [pair[place].strip() for pair in pairs]
        has_blank = any(map(_has_blank, ids))
        # The first line may be a header with unknown names, which has no blanks in its text.
        first_text = pairs[0][1 - place].strip()
        if all(ids) and not has_blank and " " in first_text:
            return place
    return None


def _are_names(cells: Sequence[str]) -> bool:
    """Whether the first cells of all lines look like a column of names, with or without its header."""
    are_words = all(cells) and not any(map(_has_blank, cells))
    # Captions that begin with `Yes,` or `Finally,` repeat these; ids repeat for a few captions of an image.
    return are_words and len(set(cells)) > len(cells) / 2
