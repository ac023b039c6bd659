"""The process that decodes image files for another one: requests on stdin, pixels on stdout.

A request is a line of JSON and the bytes that it announces; an answer is the length of what was asked for of
each image, 0 where it is not sound, and then its pixels, or the digest of its content. The other process does
itself what is not sound, so that errors are those of one place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile

from capeval_core.inputs.decoding import Refused, square_pixels
from capeval_core.inputs.sources import Encoded, InMemory, OnDisk

READY = b"capeval decodes\n"
"""What stdout begins with, after what Python prints where it is set up to."""


def answer(request: dict[str, Any], contents: list[Encoded]) -> bytes:
    """The answer to a request about these images."""
    parts: list[bytes] = []
    for source in contents:
        try:
            if request["check"]:
                source.decode(reduced=True)
                part = bytes.fromhex(source.key.removeprefix("file:"))
            else:
                method = Image.Resampling[request["method"]]
                part = square_pixels(source.decode(), request["size"], method).tobytes()
        except (Refused, ValueError, OSError, MemoryError):
            part = b""
        parts.append(part)
    return b"".join([np.array([len(part) for part in parts], dtype="<u4").tobytes(), *parts])


def read(requests: IO[bytes]) -> tuple[dict[str, Any], list[Encoded]] | None:
    """The next request and its images; None where there is none."""
    line = requests.readline()
    if not line.endswith(b"\n"):
        return None
    request = json.loads(line)
    contents: list[Encoded] = []
    for given in request["images"]:  # a whole path, or how many bytes follow
        contents.append(OnDisk(given) if isinstance(given, str) else InMemory(requests.read(given)))
    return request, contents


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while (found := read(requests)) is not None:
        request, contents = found
        Image.MAX_IMAGE_PIXELS = request["most_pixels"]
        ImageFile.LOAD_TRUNCATED_IMAGES = request["truncated"]
        answers.write(answer(request, contents))
        answers.flush()


def main() -> None:
    """Serve until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one by closing stdin
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what anything else prints is no answer
        try:
            answers.write(READY)
            answers.flush()
            serve(sys.stdin.buffer, answers)
        except BrokenPipeError:  # it was killed
            os._exit(1)
