"""The images that a user hands in: a list of them of any make, and whether each decodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image

from capeval_core.inputs.columns import UndecodedColumn, is_dataset_column
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.problems import Problems, described
from capeval_core.inputs.sequences import as_list, how_to_list, is_table, shape_of
from capeval_core.inputs.sources import OnDisk, Source
from capeval_core.inputs.visual import ImageError, InputImage, Row

CHECKED_AT_ONCE = 1024  # images queued for the threads; bounds what waits, not what is decoded
NAMED_PLACES = 3


def check_images(images: Any, problems: Problems) -> list[InputImage | None] | None:
    """One entry per image, None where the value can be none; None if `images` itself is unfit."""
    if images is None:
        problems.add("images is missing: pass a list of images")
        return None
    if _is_single_image(images):
        problems.add("images is a single image: pass a list, images=[image]", kind=TypeError)
        return None
    if is_dataset_column(images):
        return _lazy_rows(UndecodedColumn.of(images), problems)
    if isinstance(images, (list, tuple)) or (shape_of(images) is not None and not is_table(images)):
        # A list, an array or tensor whose first axis counts images (rows are views), a Series.
        return _listed_images(list(images), problems)
    if hasattr(images, "to_pylist") and (rows := as_list(images)) is not None:
        return _listed_images(rows, problems)
    if isinstance(images, Sequence) and not isinstance(images, range):
        return _lazy_rows(images, problems)
    problems.add(f"images is {described(images)}: expected a list of images{how_to_list(images)}", TypeError)
    return None


def _is_single_image(value: Any) -> bool:
    if isinstance(value, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, InputImage)):
        return True
    if isinstance(value, Mapping):
        return bool(value.keys() & {"bytes", "path"})
    shape = shape_of(value)
    if shape is None or str(getattr(value, "dtype", "object")) in ("object", "str", "string"):
        return False
    if len(shape) == 3:  # (N, H, W) counts images; a colour axis tells a single one
        return shape[-1] in (1, 3, 4) or shape[0] in (1, 3)
    return len(shape) in (0, 2)


def _listed_images(values: list[Any], problems: Problems) -> list[InputImage | None]:
    """Images of values that are at hand. The same path or object is one source: read and checked once."""
    sources: dict[object, Source] = {}
    images: list[InputImage | None] = []
    for i, value in enumerate(values):
        where = f"images[{i}]"
        identity = _identity(value)
        if identity in sources:
            images.append(InputImage(where, sources[identity]))
            continue
        try:
            image = InputImage.of(value, where)
        except (ImageError, TypeError) as error:
            problems.add(str(error), kind=type(error))
            images.append(None)
        else:
            sources[identity] = image.source
            images.append(image)
    return images


def _identity(value: Any) -> object:
    """What equal paths and the same object have in common."""
    try:
        return os.fspath(value) if isinstance(value, (str, os.PathLike)) else id(value)
    except Exception:  # a path of the user's own, which InputImage.of refuses
        return id(value)


def _lazy_rows(rows: Sequence[Any], problems: Problems) -> list[InputImage | None]:
    """Images of rows that are made when asked for; only the first is looked at, for its type."""
    if len(rows):
        try:
            Row(rows, 0).fetch()
        except Refused as refused:
            if refused.kind is TypeError:  # otherwise that row's own matter, for check or load to report
                problems.add(refused.at("images[0]"), kind=TypeError)
                return [None] * len(rows)
    return [InputImage(f"images[{i}]", Row(rows, i)) for i in range(len(rows))]


def check_decodable(images: Sequence[InputImage], problems: Problems) -> None:
    """Decode every distinct image once, in a few threads (Pillow decodes outside the interpreter lock)."""
    first: dict[Source, InputImage] = {}
    for image in images:
        first.setdefault(image.source, image)
    distinct = list(first.values())
    sound: set[str] = set()

    def failure(image: InputImage) -> ImageError | None:
        try:
            # A file is read whole for its key and again to decode it: paths are distinct already.
            if not isinstance(image.source, OnDisk) and image.key in sound:
                return None
            image.check()
            sound.add(image.key)
        except ImageError as error:
            return error
        return None

    failures: dict[Source, ImageError] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(distinct), CHECKED_AT_ONCE):
            window = distinct[start : start + CHECKED_AT_ONCE]
            for image, error in zip(window, pool.map(failure, window), strict=True):
                if error is not None:
                    failures[image.source] = error
    if not failures:
        return
    places: dict[Source, list[str]] = {source: [] for source in failures}
    for image in images:
        if image.source in places:
            places[image.source].append(image.where)
    for source, error in failures.items():
        problems.add(f"{error}{_also(places[source][1:])}", kind=ImageError)


def _also(places: list[str]) -> str:
    if not places:
        return ""
    more = len(places) - NAMED_PLACES
    return f" (also {', '.join(places[:NAMED_PLACES])}{f' and {more:,} more' if more > 0 else ''})"
