"""Bytes, text and JSON of the user's files."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, did_you_mean, file_error

EXTENSIONS: Mapping[str, AbstractSet[str]] = {
    "image": {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        *(".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
    },
    "video": {".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif"},
    "sound": {".wav", ".mp3", ".flac", ".ogg", ".m4a"},
}
"""By the medium, as in `CaptionMetric.media`. A video may also be a folder of its frames."""
_EXTENSIONS = frozenset().union(*EXTENSIONS.values())


def bare(name: str, medium: str | None = None) -> str:
    """The name without the extension of such a file, None: of any; other dots belong to the name."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    extensions = _EXTENSIONS if medium is None else EXTENSIONS[medium]
    return stem if extension.lower() in extensions else name


def some_of(texts: Iterable[str]) -> str:
    """The first five of these names."""
    names = list(texts)
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


# ---- bytes, text and JSON of a file


@contextmanager
def reading(path: Path, kind: str = "file", fix: str = "") -> Iterator[None]:
    """Let a path that is not there, or that cannot be read, be a FileError."""
    try:
        path.lstat()
        yield
    except FileError:
        raise
    except (FileNotFoundError, ValueError):  # no path has a NUL character
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise file_error(
            path, f"there is no such {kind}{did_you_mean(path.name, siblings)}", fix, sentence=True
        ) from None
    except OSError as error:
        raise file_error(path, f"cannot be read ({error.strerror})") from None


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    check_regular(path)
    with reading(path):
        return path.read_bytes()


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file; FileError. Pipes and devices may never end."""
    with reading(path):
        if stat.S_ISREG(path.stat().st_mode):
            return
    raise file_error(path, "is a folder, a pipe or a device", "name a file, or - for standard input")


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark. Raises FileError."""
    if b"\0" in data[:4096] and encoding_of(data) != "utf-16":
        fix = "save it as UTF-8; if it is UTF-16 without a mark: iconv -f utf-16le -t utf8 FILE"
        raise file_error(path, "is not a text in UTF-8 (it holds \\x00)", fix)
    try:
        return data.decode(encoding_of(data))
    except UnicodeDecodeError as error:
        problem = f"is not a text in {error.encoding.upper()} ({error.reason} at position {error.start})"
        fix = "save it as UTF-8; if it is Latin-1: iconv -f latin1 -t utf8 FILE"
        raise file_error(path, problem, fix) from None


def encoding_of(data: bytes) -> str:
    """UTF-16 is what Excel and PowerShell write."""
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def load_json(path: Path) -> Any:
    """The content of a JSON file. Raises FileError."""
    return parsed(path, decoded(path, contents(path)))


def parsed(path: Path, text: str, first_line: int = 1) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):  # rarely: this is called for each object of the file
            for key, count in Counter(key for key, _ in pairs).items():
                if count > 1:
                    repeated.append(key)
        return result

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        problem = f"not JSON (line {first_line + error.lineno - 1}, column {error.colno}: {error.msg})"
        raise file_error(path, problem, _fix_of(text, error), sentence=True) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise file_error(path, f"JSON that cannot be read ({error})", sentence=True) from None
    if repeated:
        fix = "write it once, with a list where it has several values"
        raise file_error(
            path, f"the key {some_of([*dict.fromkeys(repeated)])} comes twice", fix, sentence=True
        )
    return content


def _fix_of(text: str, error: json.JSONDecodeError) -> str:
    """The advice about a text that is not JSON."""
    before = text[: error.pos].rstrip()[-1:]
    after = text[error.pos :].lstrip()[:1]
    # Python names the comma or the bracket, by its version.
    if after == ",":
        before = after
        after = text[error.pos + 1 :].lstrip()[:1]
    if before == "," and after in ("]", "}"):
        return "remove the comma before the closing bracket"
    if re.match(r"\s*[\[{(]\s*(\{\s*)?'", text):
        return "it was written by str() or repr() of Python: write it with json.dumps(...)"
    return "it may be truncated; if each line is an object, name it .jsonl"
