"""The pictures that a user hands in: a list of them of any make, and whether each decodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image

from capeval_core.inputs.columns import UndecodedColumn, is_dataset_column
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.pictures import Picture, PictureError, Row
from capeval_core.inputs.problems import Problems, described
from capeval_core.inputs.sequences import as_list, how_to_list, is_table, shape_of
from capeval_core.inputs.sources import OnDisk, Source

CHECKED_AT_ONCE = 1024  # pictures queued for the threads; bounds what waits, not what is decoded
NAMED_PLACES = 3


def check_images(images: Any, problems: Problems) -> list[Picture | None] | None:
    """One entry per picture, None where the value can be none; None if `images` itself is unfit."""
    if images is None:
        problems.add("images is missing: pass a list of pictures")
        return None
    if _is_single_picture(images):
        problems.add("images is a single picture: pass a list, images=[picture]", kind=TypeError)
        return None
    if is_dataset_column(images):
        return _lazy_rows(UndecodedColumn.of(images), problems)
    if isinstance(images, (list, tuple)) or (shape_of(images) is not None and not is_table(images)):
        # A list, an array or tensor whose first axis counts pictures (rows are views), a Series.
        return _listed_pictures(list(images), problems)
    if hasattr(images, "to_pylist") and (rows := as_list(images)) is not None:
        return _listed_pictures(rows, problems)
    if isinstance(images, Sequence) and not isinstance(images, range):
        return _lazy_rows(images, problems)
    problems.add(
        f"images is {described(images)}: expected a list of pictures{how_to_list(images)}", TypeError
    )
    return None


def _is_single_picture(value: Any) -> bool:
    if isinstance(value, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, Picture)):
        return True
    if isinstance(value, Mapping):
        return bool(value.keys() & {"bytes", "path"})
    shape = shape_of(value)
    if shape is None or str(getattr(value, "dtype", "object")) in ("object", "str", "string"):
        return False
    if len(shape) == 3:  # (N, H, W) counts pictures; a colour axis tells a single one
        return shape[-1] in (1, 3, 4) or shape[0] in (1, 3)
    return len(shape) in (0, 2)


def _listed_pictures(values: list[Any], problems: Problems) -> list[Picture | None]:
    """Pictures of values that are at hand. The same path or object is one source: read and checked once."""
    sources: dict[object, Source] = {}
    pictures: list[Picture | None] = []
    for i, value in enumerate(values):
        where = f"images[{i}]"
        identity = _identity(value)
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


def _identity(value: Any) -> object:
    """What equal paths and the same object have in common."""
    try:
        return os.fspath(value) if isinstance(value, (str, os.PathLike)) else id(value)
    except Exception:  # a path of the user's own, which Picture.of refuses
        return id(value)


def _lazy_rows(rows: Sequence[Any], problems: Problems) -> list[Picture | None]:
    """Pictures of rows that are made when asked for; only the first is looked at, for its type."""
    if len(rows):
        try:
            Row(rows, 0).fetch()
        except Refused as refused:
            if refused.kind is TypeError:  # otherwise that row's own matter, for check or load to report
                problems.add(refused.at("images[0]"), kind=TypeError)
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
        problems.add(f"{error}{_also(places[source][1:])}", kind=PictureError)


def _also(places: list[str]) -> str:
    if not places:
        return ""
    more = len(places) - NAMED_PLACES
    return f" (also {', '.join(places[:NAMED_PLACES])}{f' and {more:,} more' if more > 0 else ''})"
