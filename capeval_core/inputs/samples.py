"""What a user hands to a metric, checked once: captions, pictures and references, row by row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, overload

from PIL import Image

from capeval_core.inputs.columns import UndecodedColumn, is_dataset_column
from capeval_core.inputs.pictures import Picture, PictureError, Row
from capeval_core.inputs.problems import Problems, described
from capeval_core.inputs.sources import OnDisk, Source

CHECKED_AT_ONCE = 1024  # pictures queued for the threads; bounds what waits, not what is decoded
NAMED_PLACES = 3


@dataclass(frozen=True)
class Sample:
    """One caption with its picture and, for metrics that need them, its references."""

    index: int
    caption: str
    picture: Picture
    references: list[str] | None


@dataclass(frozen=True)
class Samples:
    """Checked input. All sequences have one entry per caption.

    `indices` holds each row's place in the input as it was handed in: a window or a selection keeps it.
    `candidates` holds its place in its picture's pool, where captions came in pools: the first candidate of
    a pool has the index `index - candidate`. None where they did not.
    """

    captions: list[str]
    pictures: Sequence[Picture]
    references: list[list[str]] | None
    indices: Sequence[int]
    candidates: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def places(self) -> list[int]:
        """Of a whole input, which of its pictures each row is about: its own, or that of its pool."""
        if self.candidates is None:
            return list(range(len(self)))
        return [first - 1 for first in accumulate(candidate == 0 for candidate in self.candidates)]

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, row: int) -> Sample: ...
    @overload
    def __getitem__(self, row: slice) -> Samples: ...
    def __getitem__(self, row: int | slice) -> Sample | Samples:
        if isinstance(row, slice):
            return self.select(range(*row.indices(len(self))))
        references = None if self.references is None else self.references[row]
        return Sample(self.indices[row], self.captions[row], self.pictures[row], references)

    def select(self, rows: Iterable[int]) -> Samples:
        """The given rows, in the given order. `rows` count within these samples; `indices` stay global."""
        rows = list(rows)
        return Samples(
            captions=[self.captions[row] for row in rows],
            pictures=[self.pictures[row] for row in rows],
            references=None if self.references is None else [self.references[row] for row in rows],
            indices=[self.indices[row] for row in rows],
            candidates=None if self.candidates is None else [self.candidates[row] for row in rows],
        )


def check_samples(
    captions: Any,
    images: Any,
    references: Any = None,
    *,
    needs_references: bool,
    on_error: Literal["raise", "nan"] = "raise",
    empty: Literal["error", "score"] = "error",
    called: str = "captions",
) -> Samples:
    """Check everything that a user hands in, and raise all complaints at once.

    captions: one string per row (list, tuple, numpy array, pandas Series, a column of a dataset).
    images: one picture per row, each anything that `Picture.of` takes; also an array (N, H, W, C), a
        tensor (N, 3, H, W), or the image column of a dataset, which is read row by row and not by its own
        decoder (that one applies the EXIF orientation, the published metrics do not).
    references: per row a list of strings, of any length above zero, or one bare string. Ignored unless
        `needs_references`.
    on_error: "raise" decodes every distinct picture now; "nan" leaves the pictures to `Picture.load`, so that
        a broken file costs its own row later. What can never work (lengths, types, None) raises with both.
    empty: "error" refuses empty and whitespace-only captions and references; "score" lets them through.
    called: what messages call the captions, where a user knows them by another name.

    Raises ValueError or TypeError; several problems make one exception that lists them.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> samples = check_samples(["a wall", "grey"], [grey, grey], needs_references=False)
    >>> len(samples), samples[1].caption, samples[1:].indices
    (2, 'grey', [1])
    >>> check_samples(["a wall", ""], [grey], needs_references=False)
    Traceback (most recent call last):
    ValueError: 2 problems with the input:
      captions[1] is empty: write a caption or pass empty="score"
      len(captions)=2 but len(images)=1: give one picture per caption, and repeat it for further captions
    """
    if on_error not in ("raise", "nan"):
        raise ValueError(f'on_error={on_error!r}: expected "raise" or "nan"')
    if empty not in ("error", "score"):
        raise ValueError(f'empty={empty!r}: expected "error" or "score"')
    problems = Problems()
    texts = check_captions(captions, empty, problems, called)
    pictures = check_images(images, problems)
    if texts is not None and pictures is not None and (texts or pictures) and len(texts) != len(pictures):
        problems.add(
            f"len({called})={len(texts)} but len(images)={len(pictures)}: "
            "give one picture per caption, and repeat it for further captions"
        )
    compared: list[list[str]] | None = None
    if needs_references:
        count = None if texts is None else len(texts)
        compared = check_references(references, count, empty, problems, called)
    if pictures is not None and on_error == "raise":
        check_pictures([picture for picture in pictures if picture is not None], problems)
    problems.raise_if_any()
    return Samples(
        captions=[text for text in texts or [] if text is not None],
        pictures=[picture for picture in pictures or [] if picture is not None],
        references=compared,
        indices=range(len(texts or [])),
    )


def check_captions(
    captions: Any, empty: str, problems: Problems, called: str = "captions"
) -> list[str | None] | None:
    """One entry per caption, None where it is unusable; None if there are no rows at all to speak of."""
    rows = rows_of(captions, called, "strings", problems)
    if rows is None:
        return None
    if not rows:
        problems.add(f"{called} is empty: there is nothing to score")
    mend = "write a caption"
    return [text_of(row, f"{called}[{i}]", mend, empty, problems) for i, row in enumerate(rows)]


def check_references(
    references: Any, captions: int | None, empty: str, problems: Problems, called: str = "captions"
) -> list[list[str]] | None:
    """Per caption its references; ragged lists and bare strings are welcome."""
    if references is None:
        problems.add(
            "references is missing: this metric compares each caption with its references, "
            'pass references=[["...", "..."], ...]'
        )
        return None
    rows = rows_of(references, "references", "lists of strings", problems)
    if rows is None:
        return None
    checked = [references_of(row, f"references[{i}]", empty, problems) for i, row in enumerate(rows)]
    if captions is not None and len(rows) != captions:
        mend = "give one list of references per caption"
        if rows and all(len(row) == captions for row in checked):
            mend += "; these look transposed, pass list(zip(*references))"
        problems.add(f"len({called})={captions} but len(references)={len(rows)}: {mend}")
    return checked


def references_of(row: Any, where: str, empty: str, problems: Problems) -> list[str]:
    if isinstance(row, str):
        text = text_of(row, where, "write the reference", empty, problems)
        return [] if text is None else [text]
    if row is None:
        problems.add(f"{where} is empty: every caption needs at least one reference, found None")
        return []
    values = as_list(row)
    if values is None:
        problems.add(f"{where} is {described(row)}: expected a list of strings or one string", kind=TypeError)
        return []
    if not values:
        problems.add(f"{where} is empty: every caption needs at least one reference")
    texts = [
        text_of(value, f"{where}[{j}]", "write the reference or leave it out", empty, problems)
        for j, value in enumerate(values)
    ]
    return [text for text in texts if text is not None]


def text_of(value: Any, where: str, mend: str, empty: str, problems: Problems) -> str | None:
    if isinstance(value, str):
        if empty == "error" and not value.strip():
            found = "empty (only whitespace)" if value else "empty"
            problems.add(f'{where} is {found}: {mend} or pass empty="score"')
        elif not value.isascii() and not encodes(value):
            problems.add(f"{where} is not valid Unicode (a lone surrogate): {value[:40]!a}")
        else:
            return str(value)  # numpy's str_ is a str, but not a plain one
        return None
    if value is None:
        problems.add(f"{where} is None: {mend}")
    else:
        told = ", decode it first" if isinstance(value, (bytes, bytearray)) else ""
        problems.add(f"{where} is {described(value)}: expected a string{told}", kind=TypeError)
    return None


def encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(value: Any, argument: str, of: str, problems: Problems) -> list[Any] | None:
    """The rows of a text argument, or None with the complaint noted."""
    if value is None:
        problems.add(f"{argument} is missing: pass a list of {of}")
        return None
    if isinstance(value, str):
        problems.add(f"{argument} is a single string: pass a list, {argument}=[...]", kind=TypeError)
        return None
    rows = as_list(value)
    if rows is None:
        problems.add(
            f"{argument} is {described(value)}: expected a list of {of}{how_to_list(value)}", TypeError
        )
    return rows


def as_list(value: Any) -> list[Any] | None:
    """A sequence of any make as a list; None for what has no order, no length, or is no sequence."""
    if isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        return None
    if isinstance(value, Sequence):
        return list(value)
    for method in ("to_pylist", "tolist"):  # pyarrow; numpy, pandas
        if hasattr(value, method):
            rows = getattr(value, method)()
            return rows if isinstance(rows, list) else None  # a numpy scalar has tolist too
    return None


def is_table(value: Any) -> bool:
    """A pandas or polars DataFrame, or a whole Dataset: its columns are not rows."""
    return hasattr(value, "columns") or hasattr(value, "column_names")


def how_to_list(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", one per row in the order of the images"
    if isinstance(value, Iterator):
        return ", pass list(...) of it"
    if is_table(value):
        return ', pass one of its columns, as in dataset["image"]'
    if type(value).__module__.partition(".")[0] == "datasets":
        return ", a streamed dataset has no length, pass list(...) of it"
    return ""


def check_images(images: Any, problems: Problems) -> list[Picture | None] | None:
    """One entry per picture, None where the value can be none; None if `images` itself is unfit."""
    if images is None:
        problems.add("images is missing: pass a list of pictures")
        return None
    if is_single_picture(images):
        problems.add("images is a single picture: pass a list, images=[picture]", kind=TypeError)
        return None
    if is_dataset_column(images):
        return lazy_rows(UndecodedColumn.of(images), problems)
    if isinstance(images, (list, tuple)) or (hasattr(images, "shape") and not is_table(images)):
        # A list, an array or tensor whose first axis counts pictures (rows are views), a Series.
        return listed_pictures(list(images), problems)
    if hasattr(images, "to_pylist"):
        return listed_pictures(images.to_pylist(), problems)
    if isinstance(images, Sequence):
        return lazy_rows(images, problems)
    problems.add(
        f"images is {described(images)}: expected a list of pictures{how_to_list(images)}", TypeError
    )
    return None


def is_single_picture(value: Any) -> bool:
    if isinstance(value, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, Picture)):
        return True
    if isinstance(value, Mapping):
        return bool(value.keys() & {"bytes", "path"})
    shape = getattr(value, "shape", None)
    if shape is None or str(getattr(value, "dtype", "object")) in ("object", "str", "string"):
        return False
    if len(shape) == 3:  # (N, H, W) counts pictures; a colour axis tells a single one
        return shape[-1] in (1, 3, 4) or shape[0] in (1, 3)
    return len(shape) in (0, 2)


def listed_pictures(values: list[Any], problems: Problems) -> list[Picture | None]:
    """Pictures of values that are at hand. The same path or object is one source: read and checked once."""
    sources: dict[object, Source] = {}
    pictures: list[Picture | None] = []
    for i, value in enumerate(values):
        where = f"images[{i}]"
        identity = os.fspath(value) if isinstance(value, (str, os.PathLike)) else id(value)
        if identity in sources:
            pictures.append(Picture(where, sources[identity]))
            continue
        try:
            picture = Picture.of(value, where)
        except (PictureError, TypeError) as error:
            problems.add(str(error), kind=type(error))
            pictures.append(None)
        else:
            sources[identity] = picture.source
            pictures.append(picture)
    return pictures


def lazy_rows(rows: Sequence[Any], problems: Problems) -> list[Picture | None]:
    """Pictures of rows that are made when asked for; only the first is looked at, for its type."""
    if len(rows):
        try:
            Picture.of(rows[0], "images[0]")
        except PictureError:
            pass  # that row's own matter, told by check or load
        except TypeError as error:
            problems.add(str(error), kind=TypeError)
            return [None] * len(rows)
    return [Picture(f"images[{i}]", Row(rows, i)) for i in range(len(rows))]


def check_pictures(pictures: Sequence[Picture], problems: Problems) -> None:
    """Decode every distinct picture once, in a few threads (Pillow decodes outside the interpreter lock)."""
    first: dict[Source, Picture] = {}
    for picture in pictures:
        first.setdefault(picture.source, picture)
    distinct = list(first.values())
    sound: set[str] = set()

    def failure(picture: Picture) -> PictureError | None:
        try:
            # A file is read whole for its key and again to decode it: paths are distinct already.
            if not isinstance(picture.source, OnDisk) and picture.key in sound:
                return None
            picture.check()
            sound.add(picture.key)
        except PictureError as error:
            return error
        return None

    failures: dict[Source, PictureError] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(distinct), CHECKED_AT_ONCE):
            window = distinct[start : start + CHECKED_AT_ONCE]
            for picture, error in zip(window, pool.map(failure, window), strict=True):
                if error is not None:
                    failures[picture.source] = error
    if not failures:
        return
    places: dict[Source, list[str]] = {source: [] for source in failures}
    for picture in pictures:
        if picture.source in places:
            places[picture.source].append(picture.where)
    for source, error in failures.items():
        problems.add(f"{error}{also(places[source][1:])}", kind=PictureError)


def also(places: list[str]) -> str:
    if not places:
        return ""
    more = len(places) - NAMED_PLACES
    return f" (also {', '.join(places[:NAMED_PLACES])}{f' and {more:,} more' if more > 0 else ''})"
