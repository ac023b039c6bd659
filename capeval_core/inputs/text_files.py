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
"42". A new form is a reader and a line in `READERS`.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from capeval_core.errors import FileError, Problems, Setting, did_you_mean, file_problem
from capeval_core.inputs.file_texts import FileOptions, Gatherer, Texts
from capeval_core.inputs.json_files import contents, read_json, read_json_lines
from capeval_core.inputs.tables import read_parquet, read_table
from capeval_core.limits import LIMITS

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
    """Read any of the forms; `fields` are the names that a row's text may have.

    What is wrong with single rows is noted; a file that cannot be read at all raises FileError.

    Args:
        path: the file; `-` is standard input.
        fields, problems, options, column, wide: those of `Gatherer`.
        all_splits: whether a file of several splits may be read as a whole.
    """
    path, name = Path(path), Path(path)
    options = options or FileOptions()
    if os.fspath(path) == STANDARD_INPUT:
        name = Path("standard input")
        data = _limited(sys.stdin.buffer.read(LIMITS.file_bytes + 1), name)
    else:
        data = contents(path)
    if data.startswith(b"\x1f\x8b"):
        path, data = path.with_suffix(""), _decompressed(data, name)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise FileError(file_problem(name, "is empty"))
    reader = READERS.get(path.suffix.lower()) or _reader_of(data)
    before = len(problems)
    gatherer = Gatherer(name, fields, problems, options, column=column, wide=wide)
    reader(data, gatherer)
    splits = ", ".join(f"{split!r} ({count:,})" for split, count in gatherer.texts.splits.items())
    if not gatherer.texts.rows and len(problems) == before:
        if splits and options.splits:
            found = f"holds no captions of split {', '.join(map(repr, options.splits))}, only of {splits}"
            hint = did_you_mean(options.splits[0], gatherer.texts.splits).removeprefix(": ")
            raise FileError(file_problem(name, found, hint))
        raise FileError(file_problem(name, "holds no captions"))
    if len(gatherer.texts.splits) > 1 and not options.splits and not all_splits:
        known = gatherer.texts.splits
        fix = ("choose with ", Setting("split", "test" if "test" in known else next(iter(known))))
        problems.add(file_problem(name, f"holds the splits {splits}", fix))
        gatherer.texts.entries.clear()
        gatherer.texts.rows.clear()  # which images are missing depends on the choice
    return gatherer.texts


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
        raise FileError(
            file_problem(name, f"is longer than {LIMITS.file_bytes >> 30} GiB", "give it in parts")
        )
    return data
