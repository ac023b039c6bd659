"""The visuals that a user hands in: lists of images, videos or box features; whether each decodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from capeval_core.errors import Problem, Problems
from capeval_core.inputs.boxes import REQUIRED, InputBoxes, StoredBoxes
from capeval_core.inputs.decoders import shared_decoders
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.sequences import (
    UndecodedColumn,
    as_list,
    how_to_list,
    is_dataset_column,
    is_table,
    shape_of,
)
from capeval_core.inputs.sources import OnDisk, Source
from capeval_core.inputs.video_file import EXTENSIONS
from capeval_core.inputs.videos import InputFrames, StoredVideo
from capeval_core.inputs.visual import InputImage, InputVisual
from capeval_core.values import described

CHECKED_AT_ONCE = 1024  # visuals queued for the threads; bounds what waits, not what is decoded
CHECKED_TOGETHER = 8  # of those by one task, which costs as much of Python as a visual
CHECKING = 16  # threads that check at most
MEDIA: dict[str, type[InputVisual[Any]]] = {
    kind.medium: kind for kind in (InputImage, InputFrames, InputBoxes)
}
"""The kinds of visuals by their names in `CaptionMetric.media`."""
ARGUMENTS = ("images", "videos")
"""Every argument of `CaptionMetric.score` that takes visuals."""
_MANY = {
    "image": "images",
    "video": "videos (paths, arrays, lists of frames)",
    "boxes": "dicts of boxes",
}
_FILES = (OnDisk, StoredVideo, StoredBoxes)
_PATHS = (str, os.PathLike)

Rows = list[InputVisual[Any] | None]


def argument_of(media: Sequence[str]) -> str | None:
    """The argument of `CaptionMetric.score` that takes visuals of these media; None for texts alone."""
    return ("videos" if media[0] == "video" else "images") if media else None


def medium_of(name: str) -> str:
    """The medium that an argument or a column of visuals names, be it for one or for many."""
    return name.removesuffix("s")


def check_visuals(values: Any, problems: Problems, media: Sequence[str] = ("image",)) -> Rows | None:
    """One visual of the kinds `media` per value, None where the value can be none; None if all are unfit."""
    argument = str(argument_of(media))
    many = " or ".join(_MANY[medium] for medium in media)
    if values is None:
        problems.add(Problem(argument, None, "missing", f"pass a list of {many}"))
        return None
    if (medium := _single_medium(values, media)) is not None:
        single = "dict of boxes" if medium == "boxes" else medium
        fix = f"pass a list, {argument}=[{medium}]"
        problems.add(Problem(argument, None, f"a single {single}", fix, kind=TypeError))
        return None
    if is_dataset_column(values):
        return _lazy_rows(UndecodedColumn.of(values), problems, media)
    if isinstance(values, (list, tuple)) or (shape_of(values) is not None and not is_table(values)):
        # A list, an array or tensor whose first axis counts visuals (rows are views), a Series.
        return _listed(list(values), problems, media)
    if hasattr(values, "to_pylist") and (rows := as_list(values)) is not None:
        return _listed(rows, problems, media)
    if isinstance(values, Sequence) and not isinstance(values, range):
        return _lazy_rows(values, problems, media)
    fix = f"expected a list of {many}{how_to_list(values)}"
    problems.add(Problem(argument, None, described(values), fix, kind=TypeError))
    return None


def _single_medium(value: Any, media: Sequence[str]) -> str | None:
    """The medium of a value that is one visual and not a list of them."""
    if isinstance(value, InputVisual):
        return value.medium
    if isinstance(value, (*_PATHS, bytes, bytearray, memoryview, Image.Image)):
        return media[0]
    if isinstance(value, Mapping):
        if "boxes" in media and value.keys() & set(REQUIRED):
            return "boxes"
        return (media[0] if media[0] == "video" else "image") if value.keys() & {"bytes", "path"} else None
    shape = shape_of(value)
    if shape is None or str(getattr(value, "dtype", "object")) in ("object", "str", "string"):
        return None
    if "video" in media and len(shape) == 4:
        return "video"
    if len(shape) == 3:  # (N, H, W) counts images; a colour axis tells a single one
        return "image" if shape[-1] in (1, 3, 4) or shape[0] in (1, 3) else None
    return "image" if len(shape) in (0, 2) else None


def source_of(value: Any, media: Sequence[str]) -> tuple[type[InputVisual[Any]], Source[Any]]:
    """The kind and the source of a value that is one of these media, or Refused."""
    given = value.medium if isinstance(value, InputVisual) else None
    medium = given or (media[0] if len(media) == 1 or value is None else _medium_by_value(value))
    if medium not in media:
        one = {"image": "an image", "video": "a video"}.get(medium, medium)
        expected = " or ".join(_MANY[name] for name in media)
        raise Refused(one, f"this metric takes {expected}", verb="is", kind=TypeError)
    return MEDIA[medium], MEDIA[medium].source_of(value)


def _medium_by_value(value: Any) -> str:
    """What a value is, as far as that shows without reading it."""
    if isinstance(value, Mapping):
        return "image" if value.keys() & {"bytes", "path"} else "boxes"
    if isinstance(value, _PATHS):
        path = os.fsdecode(value)
        if path.endswith(".npz"):
            return "boxes"
        return "video" if path.lower().endswith(EXTENSIONS) or Path(path).is_dir() else "image"
    return "video" if isinstance(value, (list, tuple)) or len(shape_of(value) or ()) == 4 else "image"


def _listed(values: list[Any], problems: Problems, media: Sequence[str]) -> Rows:
    """Visuals of values that are at hand. The same path or object is one source: read and checked once."""
    argument = argument_of(media)
    first: dict[object, InputVisual[Any]] = {}
    visuals: Rows = []
    for i, value in enumerate(values):
        identity = os.fspath(value) if isinstance(value, _PATHS) else id(value)
        try:
            if identity not in first:
                kind, source = source_of(value, media)
                first[identity] = kind("", source)
            visuals.append(first[identity].at(f"{argument}[{i}]"))
        except Refused as refused:
            problems.add(refused.problem(str(argument), i))
            visuals.append(None)
    return visuals


@dataclass(eq=False, slots=True)
class Row(Source[Any]):
    """A row of something that makes its visuals when they are needed, such as a column of a dataset."""

    rows: Any
    index: int
    media: Sequence[str]

    @property
    def name(self) -> str:
        return f"row {self.index}"

    def compute_key(self) -> str:
        return self.fetch().key

    def decode(self, reduced: bool = False) -> Any:
        return self.fetch().decode(reduced)

    def fetch(self) -> Source[Any]:
        """The source of the row's value, or Refused."""
        try:
            value = self.rows[self.index]
        except Exception as error:  # the rows' own code may fail in any way, and costs this row only
            raise Refused(f"({type(error).__name__}: {error})", verb="cannot be fetched") from None
        return source_of(value, self.media)[1]


def _lazy_rows(rows: Any, problems: Problems, media: Sequence[str]) -> Rows:
    """Visuals of rows that are made on demand; only the first is looked at, for its type."""
    argument = str(argument_of(media))
    if len(rows):
        try:
            Row(rows, 0, media).fetch()
        except Refused as refused:
            problem = refused.problem(argument, 0)
            if problem.kind is TypeError:  # otherwise that row's own matter, for check or load to report
                problems.add(problem)
                return [None] * len(rows)
    return [MEDIA[media[0]](f"{argument}[{i}]", Row(rows, i, media)) for i in range(len(rows))]


def check_decodable(
    visuals: Sequence[InputVisual[Any] | None],
    problems: Problems,
    media: Sequence[str] = ("image",),
    decoders: int | None = None,
    *,
    kept: Callable[[int], bool] | None = None,
    progress: bool = False,
) -> None:
    """Decode every distinct visual once, in threads (Pillow decodes outside the interpreter lock).

    decoders: processes that decode image files, None for these threads. kept: whether the visual at an index
    was decoded by an earlier run, as its rows show. progress: show a bar, on a terminal only.
    """
    indices: dict[Source[Any], list[int]] = {}
    for i, visual in enumerate(visuals):
        if visual is not None:
            indices.setdefault(visual.source, []).append(i)
    distinct = list(indices)
    sound: set[str] = set()

    def failure(source: Source[Any]) -> Refused | None:
        try:
            # A file is read whole for its key and again to decode it: paths are distinct already.
            if isinstance(source, _FILES) or source.key not in sound:
                source.decode(reduced=True)
                sound.add(source.key)
        except Refused as refused:
            return refused
        return None

    def failures(group: list[Source[Any]]) -> list[Refused | None]:
        rest = [source for source in group if kept is None or not any(map(kept, indices[source]))]
        done = shared_decoders(decoders).check(rest) if decoders and rest else [False] * len(rest)
        unknown = {source for ok, source in zip(done, rest, strict=True) if not ok}
        return [failure(source) if source in unknown else None for source in group]

    bar = tqdm(total=len(distinct), desc="checking", unit=media[0], disable=None if progress else True)
    with bar, ThreadPoolExecutor(min(CHECKING, os.cpu_count() or 1)) as pool:
        for start in range(0, len(distinct), CHECKED_AT_ONCE):
            window = distinct[start : start + CHECKED_AT_ONCE]
            groups = [window[k : k + CHECKED_TOGETHER] for k in range(0, len(window), CHECKED_TOGETHER)]
            for source, refused in zip(window, chain.from_iterable(pool.map(failures, groups)), strict=True):
                bar.update()
                if refused is not None:
                    for index in indices[source]:
                        problems.add(refused.problem(str(argument_of(media)), index))
