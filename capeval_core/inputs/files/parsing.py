"""Bytes to text and text to JSON; a complaint says where in the file it went wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from capeval_core.inputs.problems import FileError, has_nul, nul_in


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    if has_nul(path):
        raise FileError(nul_in(None, path))
    try:
        mode = path.stat().st_mode
        data = path.read_bytes() if stat.S_ISREG(mode) else b""
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"{path}: is a folder, expected a file")
    if not stat.S_ISREG(mode):
        raise FileError(f"{path}: is a pipe, a socket or a device: write its content to a file first")
    return data


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, without its byte order mark. Raises FileError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: is not UTF-8 (byte {data[error.start]:#04x} at position {error.start}): convert it"
        ) from None


_ONCE = "for several captions of an image use {image id: [captions]}"


def read_json(path: Path, once: str = _ONCE) -> Any:
    """The content of a JSON file; `once` and errors as for `parse_json`."""
    return parse_json(path, decoded(path, contents(path)), once=once)


def parse_json(path: Path, text: str, first_line: int = 1, once: str = _ONCE) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last.

    Raises FileError, with lines counted from `first_line`; `once` is the mend where a key comes twice.

    >>> parse_json(Path("c.json"), '{"42": "a dog", "42": "a cat"}')
    Traceback (most recent call last):
    capeval_core.inputs.problems.FileError: c.json: the key '42' comes twice; for several captions of an image
    use {image id: [captions]}
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
        mend = ""
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            mend = "; if each line is an object, name it .jsonl"
        line = first_line + error.lineno - 1
        raise FileError(f"{path}: not JSON (line {line}, column {error.colno}: {error.msg}){mend}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise FileError(f"{path}: JSON that cannot be read ({error})") from None
    if repeated:
        keys = ", ".join(map(repr, list(dict.fromkeys(repeated))[:5]))
        raise FileError(f"{path}: the key {keys} comes twice; {once}")
    return content
