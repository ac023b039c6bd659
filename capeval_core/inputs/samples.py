"""The input of a metric, checked once: captions, visuals and references, row by row."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

from PIL import Image
from tqdm import tqdm

from capeval_core.errors import Index, Kind, Problem, Problems, at, described, setting, valid_unicode, warn
from capeval_core.inputs import images as imaging
from capeval_core.inputs.boxes import REQUIRED, box_source
from capeval_core.inputs.decoders import shared_decoders
from capeval_core.inputs.images import (
    ImageError,
    Source,
    Texts,
    Upright,
    Visual,
    as_list,
    image_error,
    shape_of,
)
from capeval_core.inputs.videos import video_source

_MEDIA: dict[str, tuple[Callable[[Any], Source[Any]], str]] = {
    "image": (imaging.image_source, "images"),
    "video": (video_source, "videos (paths, arrays, lists of frames)"),
    "boxes": (box_source, "dicts of boxes"),
}
"""A maker of sources of values, and many of them in words, by the names of `CaptionMetric.media`."""
ARGUMENTS = ("images", "videos")
"""Every argument of `CaptionMetric.score` that takes visuals."""
_PATHS = (str, os.PathLike)

_Rows = list[Visual[Any] | None]


def argument_of(media: Sequence[str]) -> str | None:
    """The argument of `CaptionMetric.score` that takes visuals of these media; None for texts alone."""
    return ("videos" if media[0] == "video" else "images") if media else None


def medium_of(name: str) -> str:
    """The medium that an argument or a column of visuals names, be it for one or for many."""
    return name.removesuffix("s")


@dataclass(frozen=True)
class Samples:
    """Checked input, one entry per caption.

    indices: each row's position in the input of the user. candidates: of pools, each row's place in its pool.
    """

    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None
    indices: Sequence[int]
    candidates: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def places(self) -> list[int]:
        """Of a whole input, which of its images each row is about."""
        if self.candidates is None:
            return list(range(len(self)))
        # candidates 0 1 2 0 1 0 -> places 0 0 0 1 1 2: each first candidate begins the next image.
        places = []
        place = -1
        for candidate in self.candidates:
            if candidate == 0:
                place += 1
            places.append(place)
        return places

    @property
    def starts(self) -> list[int]:
        """Rows at which another pool begins: one per image, at least one where there are rows."""
        starts = []
        previous_start = None
        for row, (index, candidate) in enumerate(zip(self.indices, self.candidates or [], strict=True)):
            # The place in the input of the pool's first candidate, which these samples may not hold.
            pool_start = index - candidate
            if pool_start != previous_start:
                starts.append(row)
            previous_start = pool_start
        return starts

    def __getitem__(self, rows: slice) -> Self:
        return self.select(range(*rows.indices(len(self))))

    def select(self, rows: Iterable[int]) -> Self:
        """These rows of the samples, in this order."""
        rows = list(rows)
        columns: dict[str, Any] = {}
        for name, column in vars(self).items():
            if column is not None:
                columns[name] = [column[row] for row in rows]
        return replace(self, **columns)


def check_samples(
    captions: Any,
    images: Any,
    references: Any = None,
    *,
    needs_references: bool = False,
    pools: bool = False,
    on_error: str = "raise",
    empty: str = "error",
    media: Sequence[str] = ("image",),
    decoders: int | None = None,
    upright: bool = False,
    has_row: Callable[[str, Any, Sequence[str]], bool] | None = None,
    progress: bool = False,
) -> Samples:
    """Check everything that a user hands to `CaptionMetric.score`, and raise all problems at once.

    pools: whether `captions` holds a list of candidates for each image, which become a row each. on_error:
    "nan" leaves visuals to their `load`, so that a broken one costs its own row later. upright: turn images
    as their EXIF orientation says. has_row: whether an earlier run has the row of a caption, its visual and
    references: it is not decoded again.
    """
    problems = Problems()
    # Each argument is checked as far as it can be, whatever is wrong with the others: one error for all.
    texts: Any
    if pools:
        texts = _Texts("captions", empty, problems).lists(captions, "lists of captions", "a single string")
    else:
        texts = check_captions(captions, empty, problems)
    row_count = None if texts is None else len(texts)
    arguments = _Visuals(str(argument_of(media)), media, problems, upright)
    visuals: list[Any] = arguments.of(images, row_count) if media else []
    checked = check_references(references, row_count, empty, problems) if needs_references else None
    if on_error == "raise" and media:

        def is_stored(row: int) -> bool:
            references_of_row = [] if checked is None else checked[row]
            return (
                has_row is not None
                and texts is not None
                and has_row(texts[row], visuals[row], references_of_row)
            )

        # Where a text is missing, a row is not complete.
        arguments.check(visuals, None if has_row is None or problems else is_stored, decoders, progress)
    problems.raise_if_any()
    texts = texts or []
    if not media:
        # Intervals are clustered by image, and captions with the same references are of the same one.
        visuals = []
        for i, row in enumerate(checked or []):
            visuals.append(Visual(at("references", i), Texts(row)))
    candidates: list[int] | None = None
    if pools:
        candidates = []
        visuals_of_rows = []
        for visual, pool in zip(visuals, texts, strict=True):
            candidates += range(len(pool))
            visuals_of_rows += [visual] * len(pool)
        visuals = visuals_of_rows
        texts = list(chain.from_iterable(texts))
    _warn_of_lists(texts)
    return Samples(texts, visuals, checked, range(len(texts)), candidates)


def _warn_of_lists(captions: Sequence[str]) -> None:
    """Warn of captions that are lists written as text; a captioner may write one."""
    lists = [text for text in captions if is_written_list(text)]
    if lists:
        warn(
            f"{len(lists):,} of {len(captions):,} captions are lists written as text, such as "
            f"{lists[0][:40]!r}, and are scored as they are: pass one caption per row if they were lists"
        )


# ---- captions and references

_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_STRINGS = rf"\s*{_STRING}(?:\s*,\s*{_STRING})*\s*,?\s*"
_LIST = re.compile(rf"\s*(?:\[{_STRINGS}\]|\({_STRINGS}\))\s*", re.DOTALL)
# pandas writes a list of texts with quotes, and a missing value among them as nan: [nan, 'a dog'].
_BEGUN = re.compile(r"""\s*[\[(]\s*(?:["']|(?:nan|None|null)\s*[,\])])""")
_ENDED = re.compile(r"""(?:["']|\b(?:nan|None|null|[\d.]+))\s*,?\s*[\])]+\s*$""")


def is_written_list(text: str, *, complete: bool = True) -> bool:
    """Whether a text was a list of strings; not `complete`: also where it was cut off."""
    return bool(_BEGUN.match(text) and (not complete or _ENDED.search(text)))


def read_written_list(text: str) -> list[Any] | None:
    """The list or tuple of strings, or the JSON list, that a text is; None if it is none."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return list(json.loads(text.strip()))
    # The pattern bounds what is evaluated: no nesting, nothing but strings.
    if _LIST.fullmatch(text):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            return list(ast.literal_eval(text.strip()))
    return None


@dataclass(frozen=True)
class _Texts:
    """The texts of one argument; what is wrong with them is noted.

    empty: the option of that name, what an empty text is: an "error", or one to "score".
    """

    argument: str
    empty: str
    problems: Problems

    def note(self, index: Index, description: str, fix: str = "", kind: Kind = ValueError) -> None:
        self.problems.add(Problem(at(self.argument, index), f"is {description}", fix, kind))

    def rows(self, value: object, of: str) -> list[Any] | None:
        """The rows of the argument, or None where there are none."""
        rows = as_list(value)
        if value is None:
            self.note(None, "missing", f"pass a list of {of}")
        elif rows is None:
            description = "a single string" if isinstance(value, str) else described(value)
            self.note(None, description, f"expected a list of {of}, {imaging.NOT_A_LIST}", TypeError)
        elif not rows and self.argument == "captions":
            self.note(None, "empty", "there is nothing to score")
        return rows

    def lists(self, value: object, of: str, never: str = "") -> list[list[str]] | None:
        """The usable texts of each row, which is a list, or one string unless that is `never` right."""
        rows = self.rows(value, of)
        if rows is None:
            return None
        return [self._listed(row, i, never) for i, row in enumerate(rows)]

    def _listed(self, row: object, index: int, never: str) -> list[str]:
        """The usable texts of one row."""
        # One reference may be a plain string; but a CSV gives "['a dog', 'a cat']", which would be one.
        is_written = self.argument == "references" and isinstance(row, str) and is_written_list(row)
        if isinstance(row, str) and not never and not is_written:
            text = self.text(row, index)
            return [] if text is None else [text]
        values = as_list(row)
        if row is None or values == []:
            description = "missing" if row is None else "empty"
            self.note(index, description, f"write one {self.argument[:-1]} at least")
        elif values is None:
            description = described(row)
            if isinstance(row, str):
                description = never or "a list written as text"
            kind = ValueError if is_written else TypeError
            self.note(index, description, "expected a list of strings", kind)
        texts = []
        for place, value in enumerate(values or []):
            text = self.text(value, (index, place))
            if text is not None:
                texts.append(text)
        return texts

    def text(self, value: object, index: Index) -> str | None:
        """A usable text as a plain str; None for anything else."""
        fix = f"write a {self.argument[:-1]}"
        if value is None:
            self.note(index, "missing", fix)
        elif not isinstance(value, str):
            decode = ", decode it first" if isinstance(value, (bytes, bytearray)) else ""
            self.note(index, described(value), f"expected a string{decode}", TypeError)
        elif self.empty == "error" and not value.strip():
            description = "empty (only whitespace)" if value else "empty"
            self.note(index, description, fix + setting("empty", "score", " or pass "))
        # Refused here, as tokenizers and files of results fail on half a character in ways of their own.
        elif not value.isascii() and not valid_unicode(value):
            self.note(index, f"not valid Unicode (a lone surrogate): {value[:40]!a}")
        else:
            return str(value)  # numpy's str_ is a str, but not a plain one
        return None


def check_captions(captions: object, empty: str, problems: Problems) -> list[str | None] | None:
    """One entry per caption, None where it is unusable; None if there are no rows at all."""
    texts = _Texts("captions", empty, problems)
    rows = texts.rows(captions, "strings")
    if rows is None:
        return None
    return [texts.text(row, i) for i, row in enumerate(rows)]


def check_references(
    references: object, rows: int | None, empty: str, problems: Problems
) -> list[list[str]] | None:
    """The references of each caption, of which there are so many."""
    texts = _Texts("references", empty, problems)
    checked = texts.lists(references, 'lists of strings, [["...", "..."], ...]')
    if checked is not None and rows is not None and len(checked) != rows:
        fix = "give one list of references per caption"
        # sacrebleu takes one list per annotator, each with a reference of every caption.
        if checked and all(len(row) == rows for row in checked):
            fix += "; these look transposed, pass list(zip(*references))"
        problems.add(other_length("captions", rows, "references", len(checked), fix))
    return checked


def corpus_texts(texts: object) -> list[str]:
    """The texts of a corpus, given as strings or as lists of them; empty ones are welcome."""
    problems = Problems()
    rows = _Texts("texts", "score", problems).lists(texts, "strings")
    problems.raise_if_any()
    return list(chain.from_iterable(rows or []))


def united(corpora: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The union of corpora as multisets: a document, a text or a list of texts and visuals, counts as
    often as where it is most frequent."""
    if len(corpora) == 1:
        return corpora[0]

    union: Counter[Hashable] = Counter()
    document_of_key: dict[Hashable, Any] = {}
    for documents in corpora:
        keys = list(map(_document_key, documents))
        document_of_key |= zip(keys, documents, strict=True)
        union |= Counter(keys)  # the greater count of each, not their sum
    return [document_of_key[key] for key in union.elements()]


def _document_key(document: Any) -> Hashable:
    """The key of a text, or of a list of texts and visuals; the name of a visual that cannot be read."""
    if isinstance(document, str):
        return document
    keys: list[Hashable] = []
    for part in document:
        if isinstance(part, str):
            keys.append(part)
            continue
        try:
            keys.append((part.key,))
        except ValueError:
            keys.append((part.name,))
    return tuple(keys)


def other_length(argument: str, length: int, second: str, second_length: int, fix: str) -> Problem:
    """The problem of two arguments that should have as many rows."""
    return Problem("", f"len({at(argument)})={length} but len({at(second)})={second_length}", fix)


# ---- visuals


def _many(media: Sequence[str]) -> str:
    return " or ".join(_MEDIA[medium][1] for medium in media)


def _is_single(value: object, media: Sequence[str]) -> bool:
    """Whether a value is one visual and not a list of them."""
    if isinstance(value, (Visual, *_PATHS, *imaging.BYTES, Image.Image)):
        return True
    if isinstance(value, Mapping):
        return bool(value.keys() & {"bytes", "path", *(REQUIRED if "boxes" in media else ())})
    shape = shape_of(value)
    # An array of objects or of paths is a list, whatever its shape.
    if shape is None or str(getattr(value, "dtype", "object")) in ("object", "str", "string"):
        return False
    if len(shape) == 3:  # (N, H, W) counts images; a colour axis tells a single one
        return shape[-1] in (1, 3, 4) or shape[0] in (1, 3)
    return len(shape) in (0, 2) or (len(shape) == 4 and "video" in media)


def _medium_of(value: object, media: Sequence[str]) -> str:
    """The medium of a value, as far as that shows without reading it."""
    if isinstance(value, Visual):
        return value.medium
    is_boxes = isinstance(value, Mapping) and not value.keys() & {"bytes", "path"}
    is_boxes = is_boxes or (isinstance(value, _PATHS) and os.fsdecode(value).endswith(".npz"))
    return "boxes" if is_boxes and "boxes" in media else media[0]


def _source(value: object, media: Sequence[str]) -> Source[Any]:
    """The source of a value that is one of these media."""
    medium = _medium_of(value, media)
    if medium not in media:
        raise image_error(f"is of the kind {medium}", f"this metric takes {_many(media)}", kind=TypeError)
    return value.source if isinstance(value, Visual) else _MEDIA[medium][0](value)


@dataclass(eq=False, slots=True)
class _Row(Source[Any]):
    """A row of something that makes its visuals when they are needed, such as a column of a dataset.

    names: where `rows` are tables as stored, the column, and the fields within it.
    """

    rows: Any
    index: int
    media: Sequence[str]
    names: Sequence[str]

    @property
    def medium(self) -> str:  # type: ignore[override]
        return self.media[0]

    @property
    def name(self) -> str:
        return f"row {self.index}"

    def compute_key(self) -> str:
        return self.fetch().key

    def decode(self, reduced: bool = False) -> Any:
        source = self.fetch()
        content = source.decode(reduced)
        self.traits = source.traits
        return content

    def fetch(self) -> Source[Any]:
        try:
            value = self.rows[self.index]
            if self.names:
                # One row of the stored table: its column, then the fields within, as in row["image"]["path"].
                value = value.column(self.names[0])[0].as_py()
            for name in self.names[1:]:
                value = None if value is None else value[name]
        except Exception as error:  # the rows' own code may fail in any way, and costs this row only
            raise image_error(f"cannot be fetched ({type(error).__name__}: {error})") from None
        return _source(value, self.media)


def _as_stored(column: Any) -> tuple[Any, Sequence[str]]:
    """The stored rows behind a column of `datasets`, whose own decoding turns photographs upright (EXIF), and
    the names that lead to its values; other rows as they are."""
    names: list[str] = []
    root = column
    while type(root).__module__.partition(".")[0] == "datasets" and hasattr(root, "column_name"):
        names.insert(0, root.column_name)
        root = root.source
    stored = names and type(column.features).__name__ in ("Image", "Video", "Value")
    # A transform of the user's own may do anything to the images: only what it returns is meant.
    if not stored or root.format["type"] == "custom":
        return column, ()
    return root.with_format("arrow").select_columns([names[0]]), names


@dataclass(frozen=True)
class _Visuals:
    """The visuals of an argument, of these media; what is wrong with them is noted."""

    argument: str
    media: Sequence[str]
    problems: Problems
    upright: bool = False

    def of(self, values: Any, captions: int | None) -> _Rows:
        """One visual per value, None where the value can be none; as many as there are captions."""
        many = _many(self.media)
        problem = None
        # A list, an array or tensor whose first axis counts visuals (rows are views), a Series.
        is_array = shape_of(values) is not None and not imaging.is_table(values)
        is_in_memory = is_array or isinstance(values, (list, tuple))
        if values is None:
            problem = Problem(at(self.argument), "is missing", f"pass a list of {many}")
        elif _is_single(values, self.media):
            medium = _medium_of(values, self.media)
            fix = f"pass a list, {self.argument}=[{medium}]"
            problem = Problem(at(self.argument), f"is a single {medium}", fix, TypeError)
            try:
                _source(values, self.media)
            except ImageError as error:  # in a list it would be refused, too
                problem = error.at(self.argument)
        elif is_in_memory or hasattr(values, "to_pylist"):
            visuals = self._listed(list(values) if is_in_memory else as_list(values) or [])
        elif isinstance(values, Sequence) and not isinstance(values, range):
            visuals = self._lazy(*_as_stored(values))
        else:
            fix = f"expected a list of {many}, {imaging.NOT_A_LIST}"
            problem = Problem(at(self.argument), f"is {described(values)}", fix, TypeError)
        if problem is not None:
            self.problems.add(problem)
            return []
        visuals = self._turned(visuals)
        if captions is not None and captions != len(visuals):
            fix = f"pass one {self.argument[:-1]} per caption, or pool; repeat it if it has several captions"
            self.problems.add(other_length("captions", captions, self.argument, len(visuals), fix))
        return visuals

    def _turned(self, visuals: _Rows) -> _Rows:
        """The visuals, images turned or as they are stored; those that share a source still do."""
        turned: dict[Source[Any], Source[Any]] = {}
        for visual in visuals:
            if visual is not None and visual.source not in turned:
                source = visual.source
                stored = source.source if isinstance(source, Upright) else source
                if not self.upright or stored.medium != "image":
                    turned[source] = stored
                else:
                    turned[source] = source if isinstance(source, Upright) else Upright(stored)
        return [visual and Visual(visual.where, turned[visual.source]) for visual in visuals]

    def _listed(self, values: list[Any]) -> _Rows:
        """Visuals of values in memory. The same path or object is one source: read and checked once."""
        sources: dict[object, Source[Any]] = {}
        visuals: _Rows = []
        for i, value in enumerate(values):
            # `values` holds every object until the end, so that no id is given to another one.
            identity = os.fspath(value) if isinstance(value, _PATHS) else id(value)
            try:
                if identity not in sources:
                    sources[identity] = _source(value, self.media)
                visuals.append(Visual(at(self.argument, i), sources[identity]))
            except ImageError as error:
                self.problems.add(error.at(self.argument, i))
                visuals.append(None)
        return visuals

    def _lazy(self, rows: Any, names: Sequence[str]) -> _Rows:
        """Visuals of rows that are made on demand; only the first is looked at, for its type."""
        visuals: _Rows = [
            Visual(at(self.argument, i), _Row(rows, i, self.media, names)) for i in range(len(rows))
        ]
        try:
            if visuals:
                _Row(rows, 0, self.media, names).fetch()
        except ImageError as error:
            problem = error.at(self.argument, 0)
            if problem.kind is TypeError:  # otherwise that row's own matter, for check or load to report
                self.problems.add(problem)
                return [None] * len(rows)
        return visuals

    def check(
        self, visuals: _Rows, is_stored: Callable[[int], bool] | None, decoders: int | None, progress: bool
    ) -> None:
        """Decode every distinct visual once, in threads or `decoders`, unless a row of it is stored."""
        indices: dict[Source[Any], list[int]] = {}
        for i, visual in enumerate(visuals):
            if visual is not None:
                indices.setdefault(visual.source, []).append(i)
        decoded: set[object] = set()

        def failures(group: list[Source[Any]]) -> list[tuple[Source[Any], ImageError]]:
            unchecked = []
            for source in group:
                if is_stored is None or not any(map(is_stored, indices[source])):
                    unchecked.append(source)
            if decoders:
                # Those that the decoders read are sound: only the others are read here, for their errors.
                unchecked = list(shared_decoders(decoders).unsound(unchecked))
            failed = []
            for source in unchecked:
                try:
                    # Two threads may meet equal bytes at once and decode both: that costs time, nothing else.
                    content = source if source.on_disk else source.key  # which costs a read of a file
                    if content not in decoded:
                        source.decode(reduced=True)
                        decoded.add(content)
                except ImageError as error:
                    failed.append((source, error))
            return failed

        distinct = list(indices)
        # A task costs as much of Python as the check of one visual.
        groups = [distinct[k : k + 8] for k in range(0, len(distinct), 8)]
        disable = None if progress else True  # None: where there is no terminal
        with (
            tqdm(total=len(distinct), desc="checking", unit=self.media[0], disable=disable) as bar,
            ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        ):
            for group, failed in zip(groups, pool.map(failures, groups), strict=True):
                bar.update(len(group))
                for source, error in failed:
                    # One broken file is a problem of each row that it is in.
                    for index in indices[source]:
                        self.problems.add(error.at(self.argument, index))


# ---- other samples


def images_in_rgb(samples: Samples) -> Samples:
    """The same samples, their images converted to RGB."""
    # Images that share a source still do.
    shared = {image.source: imaging.in_rgb(image) for image in samples.images}
    return replace(samples, images=[shared[image.source].at(image.where) for image in samples.images])


def joined(systems: Sequence[Samples]) -> Samples:
    """The samples of several systems, one system after the other."""
    if len(systems) == 1:
        return systems[0]
    columns: dict[str, Any] = {}
    for name, column in vars(systems[0]).items():
        # Systems of one metric have the same columns: all have references, or none has.
        if column is not None:
            columns[name] = list(chain.from_iterable(vars(samples)[name] for samples in systems))
    return replace(systems[0], **columns)


def windows(samples: Samples, texts: int) -> Iterator[Samples]:
    """Consecutive samples of at most so many captions and references together (at least one caption)."""
    for part in parts(text_counts(samples), texts):
        yield samples[part]


def text_counts(samples: Samples) -> list[int]:
    """The number of texts of each row: its caption and its references."""
    return [1 + len(row) for row in samples.references or [[]] * len(samples)]


def parts(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Consecutive items whose sizes add up to at most `limit`, but at least one item."""
    start = 0
    total = 0
    for end, size in enumerate(sizes):
        # An item above the limit is a part of its own: it cannot be divided, and is not left out.
        if end > start and total + size > limit:
            yield slice(start, end)
            start = end
            total = 0
        total += size
    if len(sizes) > start:
        yield slice(start, len(sizes))
