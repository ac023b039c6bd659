"""JSON and JSON lines: bytes to text, text to values, and the forms that captions have in the field."""

from __future__ import annotations

import codecs
import json
import os
import stat
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, did_you_mean, file_problem, refuse_nul
from capeval_core.inputs.file_texts import Gatherer
from capeval_core.values import described

FORMS = (
    '{image id: caption}, {image id: [captions or references]}, {image id: [{"caption": ...}]}, '
    'COCO results [{"image_id": ..., "caption": ...}], COCO annotations {"images": [...], '
    '"annotations": [...]} and Karpathy\'s {"images": [{"sentences": [...]}]}'
)


def read_json(data: bytes, gatherer: Gatherer) -> None:
    """A JSON file in any of these forms, or JSON lines under the name of JSON."""
    text = decoded(gatherer.path, data)
    if _is_json_lines(text):
        read_json_lines(data, gatherer)
        return
    content = parse_json(gatherer.path, text)
    if isinstance(content, dict) and _is_list_of_objects(content.get("annotations")):
        _read_annotations(content, gatherer)
    elif isinstance(content, dict) and _is_karpathy(content.get("images")):
        _read_karpathy(content["images"], gatherer)
    elif isinstance(content, dict) and (not content or any(map(_is_text_or_list, content.values()))):
        _read_mapping(content, gatherer)
    elif _is_list_of_objects(content):
        for i, row in enumerate(content):
            gatherer.row(row, f"entry {i}")
    else:
        gatherer.complain(None, f"unknown form, found {_outlined(content)}; read are {FORMS}", verb="")


def _is_json_lines(text: str) -> bool:
    """Whether the first line is an object of its own, and another line follows."""
    line, _, rest = text.lstrip().partition("\n")
    if not line.startswith("{") or not rest.strip():
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_karpathy(images: Any) -> bool:
    return _is_list_of_objects(images) and any("sentences" in image for image in images)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_text_or_list(value: Any) -> bool:
    return isinstance(value, (str, list))


def _read_mapping(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Captions by image id. Values of another kind, but null, are reported alone."""
    unfit = any(value is not None and not _is_text_or_list(value) for value in content.values())
    for image_id, value in content.items():
        if not _is_text_or_list(value):
            found = described(value, none="null")
            gatherer.complain(f"id {image_id!r}", found, "expected a caption or a list of them")
        elif not unfit and gatherer.image_id(image_id, "an image id") is not None:
            gatherer.add(image_id, value, f"id {image_id!r}")


def _read_annotations(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Rows under `annotations`, and from `images` the file names of their ids."""
    for i, row in enumerate(content["annotations"]):
        gatherer.row(row, f"annotation {i}")
    images = content.get("images", [])
    if not isinstance(images, list):
        gatherer.complain("images", described(images, none="null"), "expected a list, or leave it out")
        return
    for i, image in enumerate(images):
        if not isinstance(image, dict):
            gatherer.complain(f"image {i}", described(image, none="null"), "expected an object with an id")
            continue
        if "file_name" not in image:
            continue
        name = image["file_name"]
        if not isinstance(name, str) or not name:
            found = "empty" if name == "" else described(name, none="null")
            gatherer.complain(f"image {i}: file_name", found, "expected a file's name, or leave it out")
        else:
            image_id = gatherer.image_id(image.get("id"), f"image {i}: id")
            if image_id is not None:
                gatherer.file_name(image_id, name, f"image {i}")


def _read_karpathy(images: list[dict[str, Any]], gatherer: Gatherer) -> None:
    """Images with their sentences. The number of COCO is the id where there is one, else the file's name."""
    for i, image in enumerate(images):
        row = dict(image)
        if "cocoid" in image:
            row.setdefault("image_id", image["cocoid"])
        folder, name = image.get("filepath"), image.get("filename")
        if isinstance(folder, str) and isinstance(name, str):
            row.setdefault("file_name", f"{folder}/{name}")
        gatherer.row(row, f"image {i}")


def _outlined(content: Any) -> str:
    """The form of a JSON value in a few words."""
    if isinstance(content, dict):
        key, value = next(iter(content.items()))
        return f"an object with {key!r}: {described(value)}"
    if isinstance(content, list):
        return f"a list with {described(content[0])}" if content else "an empty list"
    return described(content, none="null")


def read_json_lines(data: bytes, gatherer: Gatherer) -> None:
    """One object a line."""
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(decoded(gatherer.path, data).split("\n"), start=1):
        if line.strip():
            try:
                row = parse_json(gatherer.path, line, first_line=number)
            except FileError as error:
                gatherer.problems.extend(error.problems)
            else:
                gatherer.row(row, f"line {number}")


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    refuse_nul(path)
    try:
        mode = path.stat().st_mode
        data = path.read_bytes() if stat.S_ISREG(mode) else b""
    except FileNotFoundError:
        found = "there is no such file"
        raise FileError(file_problem(path, found + did_you_mean(path.name, _beside(path)))) from None
    except OSError as error:
        raise FileError(file_problem(path, f"cannot be read ({error.strerror})")) from None
    if stat.S_ISDIR(mode):
        raise FileError(file_problem(path, "is a folder, expected a file"))
    if not stat.S_ISREG(mode):
        found = "is a pipe, a socket or a device"
        fix = "write its content to a file first, or send captions to standard input and name it -"
        raise FileError(file_problem(path, found, fix))
    return data


def _beside(path: Path) -> list[str]:
    """The names in the folder of a path, the first thousand."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry, _ in zip(entries, range(1000), strict=False)]
    except OSError:
        return []


_PICTURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n": "PNG"}
"""What files of images begin with, neither of which is UTF-8."""


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark, without that mark.

    Raises FileError.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as Excel and PowerShell write
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError as error:
            raise FileError(file_problem(path, f"is not UTF-16 ({error.reason})", "write it again")) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = next((kind for start, kind in _PICTURES.items() if data.startswith(start)), None)
        if kind is not None:
            fix = "expected a file of text, such as captions by image id"
            raise FileError(file_problem(path, f"an image ({kind})", fix, verb="is")) from None
        found = f"is not UTF-8 (byte {data[error.start]:#04x} at position {error.start})"
        raise FileError(file_problem(path, found, "convert it")) from None
    if "\0" in text[:100]:
        found = "holds NUL characters, as UTF-16 without a byte order mark does"
        raise FileError(file_problem(path, found, "convert it to UTF-8"))
    return text


_ONCE = "for several captions of an image use {image id: [captions]}"


def load_json(path: Path, once: str = _ONCE) -> Any:
    """The content of a JSON file; `once` and errors as for `parse_json`."""
    return parse_json(path, decoded(path, contents(path)), once=once)


def parse_json(path: Path, text: str, first_line: int = 1, once: str = _ONCE) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last.

    Raises FileError, with lines counted from `first_line`; `once` is the fix where a key comes twice.

    >>> parse_json(Path("c.json"), '{"42": "a dog", "42": "a cat"}')
    Traceback (most recent call last):
    capeval_core.errors.FileError: c.json: the key '42' comes twice; for several captions of an image use
    {image id: [captions]}
    """
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                repeated.append(key)
            result[key] = value
        return result

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        fix = ""
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            fix = "; if each line is an object, name it .jsonl"
        if error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()):
            fix = "; the file is truncated: create it again"
        line = first_line + error.lineno - 1
        found = f"not JSON (line {line}, column {error.colno}: {error.msg}){fix}"
        raise FileError(file_problem(path, found)) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise FileError(file_problem(path, f"JSON that cannot be read ({error})")) from None
    if repeated:
        keys = ", ".join(map(repr, list(dict.fromkeys(repeated))[:5]))
        raise FileError(file_problem(path, f"the key {keys} comes twice; {once}"))
    return content
