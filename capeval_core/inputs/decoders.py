"""Plain programs that decode image files, so that decoding does not wait for Python's global lock.

They import nothing of the user's, share nothing, and end when their stdin is closed. What one of them cannot
do is done in the thread that asked.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from capeval_core.errors import InputError, Problem, warn
from capeval_core.inputs.images import (
    File,
    ImageError,
    Resize,
    Source,
    Upright,
    image_source,
    short_reason,
    square_pixels,
)
from capeval_core.inputs.videos import video_source
from capeval_core.limits import LIMITS

Square = tuple[int, Image.Resampling, Resize]
"""The arguments of `square_pixels` behind the image."""
_Process = subprocess.Popen[bytes]
_Request = tuple[str, bytes | None, bool]
"""The path and the bytes of a file of an image, and whether it is turned upright."""
# Not `-m`: that looks for modules in the current folder first, which may hold what a user has downloaded.
_PROGRAM = "import sys; sys.path[:] = sys.argv[{}:]; from capeval_core.inputs import decoders; decoders.{}()"
_READY = b"capeval decodes\n"
"""The first line on stdout, after what Python prints where it is set up to."""
_MOST_PROCESSES = 1024  # more threads than that do not ask


class Decoders:
    """So many processes that decode, started when they are first needed; any number of threads may ask."""

    def __init__(self, number: int) -> None:
        self._idle: LifoQueue[_Process | None] = LifoQueue()
        for _ in range(min(number, _MOST_PROCESSES)):
            self._idle.put(None)  # not started
        # The last one used is the next one asked: with little to do the others are never started.
        self._owner = os.getpid()

    def pixels(self, sources: Sequence[Source[Any]], square: Square) -> list[NDArray[np.uint8] | None]:
        """The result of `square_pixels` for each image, whose traits are known then; None: not decoded."""
        return self._ask(sources, square)

    def unsound(self, sources: Sequence[Source[Any]]) -> list[Source[Any]]:
        """The images that were not found to be sound; keys and traits of the others are known then."""
        unsound = []
        for source, key in zip(sources, self._ask(sources, None), strict=True):
            if key is None:
                unsound.append(source)
            else:
                source._key = key
        return unsound

    def _ask(self, sources: Sequence[Source[Any]], square: Square | None) -> list[Any]:
        """The key, or the pixels, of each image that is a file; None where there is no answer."""
        answers: list[Any] = [None] * len(sources)
        files: dict[int, File] = {}
        for i, source in enumerate(sources):
            file = source.source if isinstance(source, Upright) else source
            if isinstance(file, File):
                files[i] = file
        if not files or os.getpid() != self._owner:  # a fork would share the pipes
            return answers
        process = self._idle.get()
        is_complete = False
        try:
            process = process or _started()
            assert process.stdin is not None and process.stdout is not None
            folder = os.getcwd()  # noqa: PTH109  (which may be another one there)
            requests: list[_Request] = []
            for i, file in files.items():
                path = os.path.join(folder, file.path)  # noqa: PTH118
                requests.append((path, file.data, isinstance(sources[i], Upright)))
            # What the user set in Pillow holds there as well: they decode what this process would.
            limits = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
            pickle.dump((requests, square, *limits), process.stdin)
            process.stdin.flush()
            for i, answer in zip(files, pickle.load(process.stdout), strict=True):
                if answer is not None:
                    answers[i], sources[i].traits = answer
            is_complete = True
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
            problem = f"a process that decodes images could not be used ({short_reason(error)})"
            warn(f"{problem}: this one decodes what was asked of it")
        finally:  # instead of one that was stopped within an answer, another is started for the next request
            if not is_complete:
                _end(process)
            self._idle.put(process if is_complete else None)
        return answers

    def close(self) -> None:
        """End all processes; nothing may be asked any more."""
        while os.getpid() == self._owner and not self._idle.empty():
            _end(self._idle.get())


def _started() -> _Process:
    process = subprocess.Popen(
        [sys.executable or "python", "-c", _PROGRAM.format(1, "main"), *_import_path()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the process that asks
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).endswith(_READY):
        if not line:
            _end(process)
            raise EOFError("no answer")
    return process


def _import_path() -> list[str]:
    """Where this process finds modules, without the current folder; first this package if it is not there."""
    folders = []
    for folder in sys.path:
        if isinstance(folder, str) and os.path.isabs(folder):  # noqa: PTH117
            folders.append(folder)
    package_folder = str(Path(__file__).parents[2])
    return folders if package_folder in folders else [package_folder, *folders]


def _end(process: _Process | None) -> None:
    if process is not None:
        process.kill()
        process.communicate()  # closes its pipes and waits, so that no zombie is left


@cache
def shared_decoders(number: int) -> Decoders:
    """The processes of all metrics that want so many."""
    decoders = Decoders(number)
    atexit.register(decoders.close)
    return decoders


def main() -> None:
    """Answer requests on stdin until it is closed: the program of these processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one by closing stdin
    # A decoder of C may print to stdout by its number; so the pipe gets another one.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what anything else prints is no answer
        answers.write(_READY)
        answers.flush()
        with suppress(EOFError, BrokenPipeError):
            while True:
                requests, square, most_pixels, load_truncated = pickle.load(sys.stdin.buffer)
                Image.MAX_IMAGE_PIXELS = most_pixels
                ImageFile.LOAD_TRUNCATED_IMAGES = load_truncated
                pickle.dump([_answer(request, square) for request in requests], answers)
                answers.flush()


def _answer(request: _Request, square: Square | None) -> Any:
    """The key, or the pixels, of an image, with its traits; None where it cannot be decoded."""
    path, data, upright = request
    file = File(path, data)
    source = Upright(file) if upright else file
    try:
        if square is not None:
            return square_pixels(source.decode(), *square), source.traits
        source.decode(reduced=True)
        return source.key, source.traits
    except (ImageError, ValueError, OSError, MemoryError):
        return None  # the thread that asked decodes it again, for the message


# ---- a process that reads the file of a stranger first, with bounds


def frames_within_limits(path: Path, medium: str) -> int:
    """The number of frames of a video, 1 of an image, read whole by another process. Raises InputError."""
    request = json.dumps([str(path), medium, vars(LIMITS)])
    command = [sys.executable, "-c", _PROGRAM.format(2, "measure"), request, *_import_path()]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=LIMITS.page_seconds).stdout
    except subprocess.TimeoutExpired:
        answer = b""
    if not answer:  # stopped by a limit, or by a decoder that broke
        bounds = f"{LIMITS.page_seconds:g} s and {LIMITS.page_memory >> 20:,} MB of memory"
        fix = "save it again, or make it smaller"
        raise InputError(Problem(f"the {medium}", f"cannot be read in {bounds}", fix))
    frames, *problem = json.loads(answer)
    if problem:
        text, fix, sentence = problem
        raise InputError(Problem(f"the {medium}", text, fix, sentence=sentence))
    return int(frames)


def measure() -> None:
    """Read a file whole, in a process of its own, and print how many frames it has, or what is wrong."""
    path, medium, limits = json.loads(sys.argv[1])
    with suppress(ImportError):  # Windows has no such limits; the other process counts the seconds
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits["page_memory"], limits["page_memory"]))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limits["page_seconds"]) + 1,) * 2)
    Image.MAX_IMAGE_PIXELS = limits["page_image_pixels"]
    try:
        content = {"bytes": Path(path).read_bytes(), "path": Path(path).name}
        images = video_source(content) if medium == "video" else [image_source(content).decode()]
        frames = 0
        pixels = 0
        for image in images:
            frames += 1
            pixels += image.width * image.height
            if frames > limits["page_frames"] or pixels > limits["page_pixels"]:
                most = f"{limits['page_frames']:,} frames or {limits['page_pixels'] / 1e6:,.0f} megapixels"
                raise InputError(Problem("", f"has more than {most}", "cut it or scale it down"))
        print(json.dumps([frames]))
    except InputError as error:
        problem = error.problems[0]
        print(json.dumps([0, problem.text, problem.fix, problem.sentence]))
