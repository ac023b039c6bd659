"""A process that reads the file of a stranger first, with bounds on seconds, memory, pixels and frames."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from capeval_core.errors import InputError, Problem
from capeval_core.inputs.decoders import import_path
from capeval_core.limits import LIMITS

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from capeval_core.inputs.trial import main; main()"


def frames_within_limits(path: Path, medium: str) -> int:
    """The number of frames of a video, 1 of an image, read whole by another process. Raises InputError."""
    names = ("page_seconds", "page_memory", "page_image_pixels", "page_pixels", "page_frames")
    asked = {"path": str(path), "medium": medium, **{name: getattr(LIMITS, name) for name in names}}
    command = [sys.executable, "-c", _PROGRAM, json.dumps(asked), *import_path()]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=LIMITS.page_seconds).stdout
    except subprocess.TimeoutExpired:
        answer = b""
    if not answer:  # stopped by a limit, or by a decoder that broke
        found = f"cannot be read in {LIMITS.page_seconds:g} s and {LIMITS.page_memory >> 20:,} MB of memory"
        raise InputError(Problem(f"the {medium}", found, "save it again, or make it smaller"))
    frames, *problem = json.loads(answer)
    if problem:
        raise InputError(Problem(f"the {medium}", *problem))
    return int(frames)


def main() -> None:
    """Read a file whole, in a process of its own, and print how many frames it has, or what is wrong."""
    asked = json.loads(sys.argv[1])
    try:
        import resource
    except ImportError:  # Windows has no such limits; the other process counts the seconds
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (asked["page_memory"], asked["page_memory"]))
        resource.setrlimit(resource.RLIMIT_CPU, (int(asked["page_seconds"]) + 1,) * 2)
    from capeval_core.inputs.samples import MEDIA

    Image.MAX_IMAGE_PIXELS = asked["page_image_pixels"]
    path = Path(asked["path"])
    try:
        visual = MEDIA[asked["medium"]].of({"bytes": path.read_bytes(), "path": path.name})
        frames = pixels = 0
        for image in [visual.load()] if asked["medium"] == "image" else visual.load():
            frames, pixels = frames + 1, pixels + image.width * image.height
            if frames > asked["page_frames"] or pixels > asked["page_pixels"]:
                most = f"{asked['page_frames']:,} frames or {asked['page_pixels'] / 1e6:,.0f} megapixels"
                raise InputError(Problem("", f"has more than {most}", "cut it or scale it down"))
        print(json.dumps([frames]))
    except InputError as error:
        problem = next(iter(error.problems))
        print(json.dumps([0, problem.found, problem.fix]))
