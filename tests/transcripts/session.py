"""Transcripts: read, played in a folder of their own, and compared.

A line that begins with `$ ` is a command line (`capeval` runs in this process, the rest in a shell), one
with three `>` is Python, of one session; the last value of a block is shown. Others are headings and
notes. Then come, indented, what stdout shows, without its empty lines; after `!` what stderr shows; in
brackets the status that is not 0; after `+` the files that were written.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from capeval_core.cli import main
from tests.transcripts.world import write_world

_FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in _FOLDER.glob("*.txt"))
_PROMPTS = ("$ ", ">>> ")
_MANY = 6
"""Files of a folder that are counted instead of named."""
_WITHOUT = "  # without "
_VARYING = [
    (r"http://127\.0\.0\.1:\d+", "http://HUB"),
    (r"\b[0-9a-f]{40}\b", "COMMIT"),
    (r"\d[\d,.]* pairs/s", "N pairs/s"),
    (r"pairs in [\d.,]+ (s|min|h)", r"pairs in N \1"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\|v:[\w.+-]+", "|v:N"),
    (r"[\d,]+ bytes", "N bytes"),
    (r"\d{20}-[0-9a-f]{32}", "ROWS"),
]
"""What is another on other days and machines."""
_NUMBER = re.compile(r"(\d+\.\d+)")


def path_of(name: str) -> Path:
    return _FOLDER / f"{name}.txt"


def steps_of(text: str) -> list[tuple[list[str], list[str]]]:
    """The notes before each step, and what is typed in it.

    >>> steps_of("== list\\n$ capeval list\\n    pacs\\n>>> a = 1\\n>>> a\\n    1")
    [(['== list'], ['$ capeval list']), ([], ['>>> a = 1', '>>> a'])]
    """
    steps: list[tuple[list[str], list[str]]] = []
    notes: list[str] = []
    typed: list[str] = []
    for line in [*text.splitlines(), ""]:
        goes_on = line.startswith(">>> ") and typed and typed[-1].startswith(">>> ")
        if typed and not goes_on:
            steps.append((notes, typed))
            notes, typed = [], []
        if line.startswith(_PROMPTS):
            typed.append(line)
        elif not line.startswith("  "):
            notes.append(line)
    return steps


def played(name: str, folder: Path) -> str:
    """The transcript as it is now, played in an empty folder."""
    session = _Session(folder)
    write_world(folder, name)
    with session.inside():
        blocks = [
            line
            for notes, typed in steps_of(path_of(name).read_text(encoding="utf-8"))
            for line in [*notes, *typed, *session.play(typed)]
        ]
    return "\n".join(blocks) + "\n"


def difference(expected: str, found: str) -> str:
    """The lines that differ, apart from numbers by one in their last digit."""
    before, after = expected.splitlines(), found.splitlines()
    if len(before) == len(after) and all(map(_alike, before, after)):
        return ""
    return "\n".join(difflib.unified_diff(before, after, "stored", "now", n=4, lineterm=""))


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    (words, numbers), (others, found) = (
        (parts[::2], parts[1::2]) for parts in map(_NUMBER.split, (one, other))
    )
    return words == others and all(map(_close, numbers, found))


def _close(one: str, other: str) -> bool:
    decimals = len(one.partition(".")[2])
    close = abs(float(one) - float(other)) < 1.5 * 10**-decimals
    return len(other.partition(".")[2]) == decimals and close


class _Session:
    """A folder, and a session of Python in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self.cache = folder.with_name(f"{folder.name}-cache")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in the folder, where `capeval` is this Python's and no Hub is asked."""
        bin_folder = self.folder.with_name(f"{self.folder.name}-bin")
        bin_folder.mkdir()
        (bin_folder / "capeval").write_text(f'#!/bin/sh\nexec {sys.executable} -m capeval_core "$@"\n')
        (bin_folder / "capeval").chmod(0o755)
        path = f"{bin_folder}:{os.environ['PATH']}"
        changed = {"COLUMNS": "80", "PATH": path, "PYTHONPATH": str(_FOLDER.parents[1])}
        changed |= {"CAPEVAL_FETCH": "", "CAPEVAL_CACHE": str(self.cache)}  # as new users have it
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, changed),
            mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),
        ):
            yield

    def play(self, typed: list[str]) -> list[str]:
        """What there is to read after a step."""
        before = self._files()
        lines, _, package = "\n".join(typed).partition(_WITHOUT)
        with _not_installed(package):
            if lines.startswith("$ "):
                out, err, status = _command(lines[2:])
            else:
                out, err, status = self._python(re.sub("^>>> ", "", lines, flags=re.MULTILINE))
        read = [f"    {line}" for line in out.splitlines() if line.strip()]
        read += [f"  ! {line}" for line in err.splitlines() if line.strip()]
        read += [f"  [{status}]"] if status else []
        written = [path for path, state in self._files().items() if before.get(path) != state]
        read += [f"  + {', '.join(_shortened(written))}"] if written else []
        return [self._same_everywhere(line).rstrip() for line in read]

    def _files(self) -> dict[Path, tuple[int, int]]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {
            path.relative_to(self.folder): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths
        }

    def _same_everywhere(self, line: str) -> str:
        line = line.replace(str(self.cache), "CACHE").replace(str(self.folder), "HERE")
        for pattern, name in _VARYING:
            line = re.sub(pattern, name, line)
        return re.sub(r"\d+\.\d{5,}", lambda match: f"{float(match[0]):.4f}", line)

    def _python(self, lines: str) -> tuple[str, str, int]:
        """Run lines as a notebook's cell: the value of the last one is shown."""
        tree = ast.parse(lines)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # as Python does: of what other tests left
            warnings.showwarning = lambda message, kind, *_: print(f"{kind.__name__}: {message}", file=err)
            try:
                exec(compile(tree, "<cell>", "exec"), self._names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self._names)
                    print(value if value is not None else "")
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=err)
        return out.getvalue(), err.getvalue(), 0


def _command(line: str) -> tuple[str, str, int]:
    """What a command line gives on stdout and stderr, and its status."""
    line, piped, rest = line.partition(" | ")
    if not line.startswith("capeval"):
        return _shell(line + piped + rest)
    out, err, status = _in_process(line.removesuffix(" > /dev/null"))
    if line.endswith(" > /dev/null"):
        return "", err, status
    return (_shell(rest, out)[0] if piped else out), err, status


def _shell(line: str, given: str = "") -> tuple[str, str, int]:
    command = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr, done.returncode


def _in_process(line: str) -> tuple[str, str, int]:
    words, _, source = line.partition(" < ")
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(Path(source).read_bytes() if source else b""))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", stdin),
    ):
        status = main(shlex.split(words)[1:])
    return out.getvalue(), err.getvalue(), status


@contextlib.contextmanager
def _not_installed(package: str) -> Iterator[None]:
    """Let imports of a package fail, as where it is not installed."""
    if not package:
        yield
        return
    ours = ("capeval_core.integrations.", "capeval_core.commands.")
    hidden = {name: None for name in sys.modules if name.startswith(ours) or name.split(".")[0] == package}
    kept = {name: sys.modules.pop(name) for name in hidden}
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(kept)


def _shortened(written: list[Path]) -> list[str]:
    """Names of files; of a folder with many their number.

    >>> _shortened([Path("a.csv"), *(Path("b", f"{i}.png") for i in range(9))])
    ['a.csv', 'b/ (9 files)']
    """
    names: dict[str, None] = {}
    # A slow run keeps its rows in more shards.
    written = [*dict.fromkeys(Path(re.sub(r"\d{20}-[0-9a-f]{32}", "ROWS", str(path))) for path in written)]
    for path in written:
        folder = path.parts[0]
        inside = sum(other.parts[0] == folder for other in written)
        names[f"{folder}/ ({inside} files)" if inside > _MANY else path.as_posix()] = None
    return [*names]
