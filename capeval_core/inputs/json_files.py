"""Text and JSON of files: bytes of a regular file, decoded, and JSON in which no key repeats."""

from __future__ import annotations

import codecs
import json
import os
import stat
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, did_you_mean, file_problem, refuse_nul

_PICTURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n": "PNG"}
"""What files of images begin with, neither of which is UTF-8."""
_ONCE = "for several captions of an image use {image id: [captions]}"


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    refuse_nul(path)
    try:
        mode = path.stat().st_mode
        data = path.read_bytes() if stat.S_ISREG(mode) else b""
    except FileNotFoundError:
        found = "there is no such file" + did_you_mean(path.name, _beside(path))
        raise FileError(file_problem(path, found)) from None
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


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark, without that mark.

    Raises FileError.
    """
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as Excel and PowerShell write
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if wide:
            raise FileError(file_problem(path, f"is not UTF-16 ({error.reason})", "write it again")) from None
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


def load_json(path: Path, once: str = _ONCE) -> Any:
    """The content of a JSON file; `once` and errors as for `parse_json`."""
    return parse_json(path, decoded(path, contents(path)), once=once)


def parse_json(path: Path, text: str, first_line: int = 1, once: str = _ONCE) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last.

    Raises FileError, with lines counted from `first_line`; `once` is the fix where a key comes twice.
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
