"""Which file becomes which records: `OPENERS` by the bytes of a file, `FORMS` of `json_forms` by parsed JSON.

Compressed files and zip archives are opened first (`containers`), kinds of files that hold no captions are
refused with the line that converts them (`foreign`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capeval_core.errors import Problems, file_error
from capeval_core.inputs import binary_tables, files, names
from capeval_core.inputs.containers import limited, unpacked
from capeval_core.inputs.foreign import foreign_kind
from capeval_core.inputs.json_forms import FORMS, open_json, open_json_lines
from capeval_core.inputs.records import KEY, VALUE, Record, Records, TextSource
from capeval_core.inputs.text_tables import open_text

STANDARD_INPUT = "-"
_CAPTION_FILES = {".txt", ".caption", ".cap"}


@dataclass(frozen=True)
class _Opener:
    """A reader of bytes: which bytes of a file of which name it takes; its form and what that looks like."""

    fits: Callable[[bytes, str], bool]
    open: Callable[[TextSource, bytes, str], Records]
    form: str
    about: str


def _is_json_lines(data: bytes, name: str) -> bool:
    return name.endswith((".jsonl", ".ndjson", ".jsonlines"))


def _is_json(data: bytes, name: str) -> bool:
    if name.endswith(".json"):
        return True
    # Under any other name, as `results` or `captions.txt`; but a table may begin with a bracket, too.
    first_character = data[:4096].decode(files.encoding_of(data), "ignore").lstrip()[:1]
    return not name.endswith((".csv", ".tsv")) and first_character in ("{", "[")


def _is_anything(data: bytes, name: str) -> bool:
    return True


OPENERS: Sequence[_Opener] = (
    _Opener(
        binary_tables.is_parquet,
        binary_tables.open_parquet,
        "Parquet",
        "columns by name; a picture `{bytes, path}` counts as its path",
    ),
    _Opener(
        binary_tables.is_arrow,
        binary_tables.open_arrow,
        "Arrow",
        "a file, or the folder that `datasets` writes with `save_to_disk`",
    ),
    _Opener(
        binary_tables.is_excel,
        binary_tables.open_excel,
        "Excel",
        "`.xlsx` with one sheet (`pip install openpyxl`)",
    ),
    _Opener(
        _is_json_lines,
        open_json_lines,
        "JSON lines",
        "an object a line: predictions, answers of chat models (`messages`, OpenAI's and vLLM's batches), "
        "samples of lmms-eval",
    ),
    _Opener(_is_json, open_json, "JSON", "each form in the rows below"),
    _Opener(
        _is_anything,
        open_text,
        "CSV, TSV",
        "a header, and cells between commas, tabs, semicolons or `|`; two columns with tabs also without a "
        "header; Flickr's `42.jpg#0<tab>caption`; one caption a line, below the name of the column or not, "
        "if references are lines too",
    ),
)
"""The readers of bytes, in the order in which they are tried."""


def forms_read() -> list[tuple[str, str]]:
    """The forms of files that are read, with what they look like, for the documents."""
    forms = [("compressed", "gzip, bzip2 or xz around any of these; a zip archive of one file")]
    for opener in OPENERS:
        forms.append((opener.form, opener.about))
        if opener.form == "JSON":
            for form in FORMS:
                forms.append(("JSON", str(form.__doc__).strip()))
    return [*forms, ("folder", "a text file for each image, such as `0.txt` next to `0.jpg`")]


def read_records(
    path: str | os.PathLike[str],
    role: str,
    problems: Problems,
    expected: Iterable[str] = (),
    *,
    wide: bool = False,
) -> Records:
    """The records of a file, of a folder, or of standard input (`-`).

    role: `caption`, `references` or `objects`, which chooses between two lists of one file, or `rating`, for
    which numbers are read as well. expected: names of columns that the user gives. wide: whether a table may
    have a column for each captioner. Wrong records are noted as problems; FileError where nothing can be
    read.
    """
    source = TextSource(Path(path), role, problems, frozenset(expected), wide)
    records = _read(source)
    if not records.rows and not problems:
        content = {"rating": "ratings", "objects": "objects"}.get(role, "captions")
        raise file_error(records.path, f"holds no {content}")
    return records


def _read(source: TextSource) -> Records:
    """The records of a file, of a folder, or of standard input."""
    path = source.path
    if os.fspath(path) == STANDARD_INPUT:
        source = replace(source, path=Path("standard input"))
        return _open(source, limited(sys.stdin.buffer, source.path), "")
    with files.reading(path, "file or folder"):
        path.stat()
    if path.is_dir():
        return _read_folder(source)
    if binary_tables.is_parquet(b"", path.name.lower()):
        # pyarrow reads those columns alone that are needed.
        files.check_regular(path)
        return binary_tables.open_parquet(source, path, path.name)
    return _open(source, files.contents(path), path.name.lower())


def _open(source: TextSource, data: bytes, name: str) -> Records:
    """The records of these bytes of a file of this name."""
    data, name = unpacked(source, data, name, is_format=_is_zip_of_its_own)
    if not data.removeprefix(b"\xef\xbb\xbf").strip():
        raise source.error("is empty")
    kind = foreign_kind(data, name)
    if kind is not None:
        raise source.error(kind.problem, kind.fix)
    opener = next(opener for opener in OPENERS if opener.fits(data, name))  # the last one takes anything
    return opener.open(source, data, name)


def _is_zip_of_its_own(data: bytes, name: str) -> bool:
    """Whether a zip archive is a format of its own, as workbooks and files of NumPy and PyTorch are."""
    return binary_tables.is_excel(data, name) or foreign_kind(data, name) is not None


# ---- folders


def _read_folder(source: TextSource) -> Records:
    """A folder of text files, each the caption of the image of its name, or a saved dataset."""
    tables = _tables_of(source.path)
    if tables:
        return _read_tables(source, tables)
    by_stem: dict[str, list[Path]] = {}
    for path in sorted(source.path.iterdir()):
        if path.suffix.lower() in _CAPTION_FILES and not path.name.startswith("."):
            by_stem.setdefault(path.stem, []).append(path)
    rows: list[Record] = []
    for stem, paths in by_stem.items():
        captions = set()
        for path in paths:
            captions.add(files.decoded(path, files.contents(path)).strip())
        # Both `0.txt` and `0.caption` may be there: harmless while they say the same.
        if len(captions) > 1:
            listed = " and ".join(repr(path.name) for path in paths)
            source.problems.add(
                source.error(f"{listed} hold different captions", "keep one of them", sentence=True)
            )
        rows.append({KEY: stem, VALUE: captions.pop()})  # any of several, whose difference is noted
    if not rows:
        fix = "expected a file, or a folder of captions such as 0.txt next to 0.jpg"
        raise source.error("is a folder without captions", fix)
    return Records(source.path, "a text file for each image", rows)


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


def _read_tables(source: TextSource, tables: Mapping[Path, str | None]) -> Records:
    """The rows of several files of a dataset, with the split that the name of a file or folder states."""
    rows: list[Record] = []
    form = ""
    for path, split in tables.items():
        part = _read(replace(source, path=path))
        form = part.form
        for row in part.rows:
            # A column of that name in the rows counts more than the name of their file.
            rows.append(row if split is None else {"split": split, **row})
    return Records(source.path, f"{form} ({len(tables)} files)", rows, "row", range(len(rows)))
