"""Processes that decode image files, so that decoding does not wait for Python's global lock.

They are plain programs (`decoder.py`) that run until their stdin is closed: nothing is imported from the
user's script or the current folder, nothing is shared or left behind, and a process that may have no
children of `multiprocessing` has them as well. What one of them cannot do, or the last one dies over, is done
in the thread that asked.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from capeval_core.errors import warn
from capeval_core.inputs.decoder import READY
from capeval_core.inputs.sources import Encoded, InMemory, OnDisk, Source

_Process = subprocess.Popen[bytes]
_PIPE = 1 << 20  # bytes that a pipe holds, where the system lets us choose: some images, so that none waits
# Not `-m`: that looks for modules in the current folder first, which may hold what a user has downloaded.
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from capeval_core.inputs.decoder import main
main()
"""
_MOST = 1024  # processes: more threads than that do not ask
_ENDED = "a process that decodes images {}: the others, or this process, decode instead"


class Decoders:
    """Processes that decode; any number of threads may ask.

    number: how many. They are started when they are first needed, which takes a tenth of a second.

    Where none can be started or all have ended, every answer is None.
    """

    def __init__(self, number: int) -> None:
        self._free: LifoQueue[_Process | None] = LifoQueue()
        number = min(number, _MOST)
        for _ in range(number):
            self._free.put(None)  # not started
        self._left, self._lock = number, threading.Lock()
        self._owner = os.getpid()
        self.processes: list[_Process] = []

    def pixels(
        self, sources: Sequence[Source[Any]], size: int, method: Image.Resampling
    ) -> list[NDArray[np.uint8] | None]:
        """What `square_pixels` gives of each image; None: not decoded."""
        answers = self._ask(sources, {"check": False, "size": size, "method": method.name})
        return [
            None if each is None else np.frombuffer(each, np.uint8).reshape(3, size, size) for each in answers
        ]

    def check(self, sources: Sequence[Source[Any]]) -> list[bool]:
        """Whether each image was found to be sound; its key is known then."""
        answers = self._ask(sources, {"check": True})
        for source, digest in zip(sources, answers, strict=True):
            if digest is not None:
                source._key = f"file:{digest.hex()}"
        return [digest is not None for digest in answers]

    def _ask(self, sources: Sequence[Source[Any]], what: dict[str, Any]) -> list[bytearray | None]:
        """The answer about each image that is a file; None where there is none."""
        answers: list[bytearray | None] = [None] * len(sources)
        files = [i for i, source in enumerate(sources) if isinstance(source, Encoded)]
        if not files or not self._left or os.getpid() != self._owner:  # a fork would share the pipes
            return answers
        process = self._free.get()
        if self._left <= 0:
            self._free.put(None)
            return answers
        try:
            if process is None:
                process = _started()
                self.processes.append(process)
                _wait_until_ready(process)
            found = _exchanged(process, [sources[i] for i in files], what)
        except (OSError, ValueError, EOFError) as error:
            status = self._give_up(process)
            why = f"could not be used ({error})" if status is None else f"ended with status {status}"
            warn(_ENDED.format(why))
            return answers
        except BaseException:
            self._give_up(process)
            raise
        self._free.put(process)
        for i, each in zip(files, found, strict=True):
            answers[i] = each
        return answers

    def _give_up(self, process: _Process | None) -> int | None:
        """Go on without a process; its status."""
        with self._lock:
            self._left -= 1
        if self._left <= 0:
            self._free.put(None)  # for a thread that waits already, and does so for the next one
        if process is None:
            return None
        self.processes.remove(process)
        return _ended(process)

    def close(self) -> None:
        """End all processes; nothing may be asked any more."""
        if os.getpid() != self._owner:
            return
        self._left = 0
        for process in self.processes:
            _ended(process)


def _started() -> _Process:
    process = subprocess.Popen(
        [sys.executable or "python", "-c", _PROGRAM, *import_path()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for the process that asks
    )
    if sys.platform == "linux":
        import fcntl

        for pipe in (process.stdin, process.stdout):
            try:
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[arg-type]
            except OSError:  # more than the system lets a user have
                break
    return process


def import_path() -> list[str]:
    """Where this process finds modules, without the current folder; first this package if it is not there."""
    folders = [folder for folder in sys.path if isinstance(folder, str) and os.path.isabs(folder)]  # noqa: PTH117
    own = str(Path(__file__).parents[2])
    return folders if own in folders else [own, *folders]


def _wait_until_ready(process: _Process) -> None:
    start = b""
    while not start.endswith(READY):
        start += _read(process, 1)


def _exchanged(
    process: _Process, sources: Sequence[Source[Any]], what: dict[str, Any]
) -> list[bytearray | None]:
    """The answers of a process about files, None for those that are not sound."""
    contents = [source.data for source in sources if isinstance(source, InMemory)]
    request = {
        **what,
        "images": [
            _place(source.path) if isinstance(source, OnDisk) else len(source.data)  # type: ignore[attr-defined]
            for source in sources
        ],
        "most_pixels": Image.MAX_IMAGE_PIXELS,
        "truncated": ImageFile.LOAD_TRUNCATED_IMAGES,
    }
    assert process.stdin is not None and process.stdout is not None
    data = memoryview(b"".join([json.dumps(request).encode(), b"\n", *contents]))
    while data:
        data = data[process.stdin.write(data) :]
    lengths = np.frombuffer(_read(process, 4 * len(sources)), dtype="<u4").tolist()
    return [_read(process, length) if length else None for length in lengths]


def _place(path: str) -> str:
    """A path that does not depend on the current folder, which may be another one there, or be gone."""
    return path if os.path.isabs(path) else str(Path.cwd() / path)  # noqa: PTH117


def _read(process: _Process, length: int) -> bytearray:
    """So many bytes of an answer."""
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        read = process.stdout.readinto(rest)  # type: ignore[union-attr]
        if not read:
            raise EOFError("no answer")
        rest = rest[read:]
    return data


def _ended(process: _Process) -> int:
    """End a process; its status."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@cache
def shared_decoders(number: int) -> Decoders:
    """The processes of all metrics that want so many."""
    decoders = Decoders(number)
    atexit.register(decoders.close)
    return decoders
