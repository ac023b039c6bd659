"""From a checkpoint of full size to the first number: seconds, and the peak of memory against the file.

    python -m benchmarks.fetching [--name pacs-openclip-vit-l-14] [--out FILE]

A seeded checkpoint in the authors' naming is served on the loopback interface, and `capeval fetch`, then
`capeval score`, run in processes of their own. Peak memory is the resident set of the process, less that of
one that imports the same and converts nothing. GOAL, of files of more than a gigabyte: 1.3 times the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from capeval_core.weights.catalogue import listed
from capeval_core.weights.conversion import clip_preprocessing

GOAL = 1.3
SIZES: dict[str, dict[str, Any]] = {
    "pacs-clip-vit-b-32": {"embed": 512, "vision": (768, 12, 32), "text": (512, 8)},
    "pacs-openclip-vit-l-14": {"embed": 768, "vision": (1024, 24, 14), "text": (768, 12)},
}
"""Embedding; width, layers and patch of the image tower; width and heads of the text tower."""
_CHILD = """
import pathlib, re, sys, time
start = time.monotonic()
from capeval_core.cli import main
import capeval_core.encoders.clip
status = main(sys.argv[1:]) if sys.argv[1:] else 0
# Not ru_maxrss, which begins at the parent's.
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
print(f"\\n{status} {peak} {time.monotonic() - start}")
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def config_of(name: str) -> dict[str, Any]:
    """The architecture of a release."""
    sizes = SIZES[name]
    width, layers, patch = sizes["vision"]
    vision = {"image_size": 224, "patch_size": patch, "width": width, "layers": layers}
    text = {"context_length": 77, "vocab_size": 49408, "width": sizes["text"][0], "heads": sizes["text"][1]}
    architecture = {
        "embed_dim": sizes["embed"],
        "vision": {**vision, "head_width": 64, "mlp_ratio": 4.0},
        "text": {**text, "layers": 12, "mlp_ratio": 4.0},
    }
    return {
        "format": 1,
        "encoder": "clip",
        "architecture": architecture,
        "activation": listed(name).settings["activation"],
        "preprocessing": clip_preprocessing(224),
    }


def write_checkpoint(name: str, folder: Path) -> Path:
    """A seeded checkpoint of the size and in the naming of a release."""
    from capeval_core.registry import network

    shapes = network("clip").empty(config_of(name)).state_dict()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: torch.randn(value.shape, generator=generator) * (0.02 if value.ndim > 1 else 0.1)
        + (value.ndim == 1)
        for key, value in shapes.items()
    }
    path = folder / str(listed(name).checkpoint)
    torch.save({"state_dict": tensors}, path)
    return path


def run(arguments: list[str], cache: Path) -> tuple[int, int, float]:
    """Status, peak of memory and seconds of a command in a process of its own."""
    environment = {**os.environ, "CAPEVAL_CACHE": str(cache), "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}
    outcome = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], env=environment, capture_output=True, text=True
    )
    if outcome.returncode:
        raise RuntimeError(outcome.stderr)
    status, peak, seconds = outcome.stdout.splitlines()[-1].split()
    if int(status):
        raise RuntimeError(outcome.stderr)
    return int(status), int(peak), float(seconds)


def measured(name: str) -> list[str]:
    """The lines of the report."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = write_checkpoint(name, folder)
        size = path.stat().st_size
        handler = partial(_Quiet, directory=place)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (folder / "photos").mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / "a.jpg")
        (folder / "c.json").write_text(json.dumps({"a": "a dog"}))
        cache = folder / "cache"
        _, idle, _ = run([], cache)
        source = f"http://127.0.0.1:{server.server_port}/{path.name}"
        begin = time.monotonic()
        _, peak, fetched = run(["fetch", name, "--accept", "--from", source], cache)
        files = ["--candidates", str(folder / "c.json"), "--images", str(folder / "photos")]
        _, scoring, scored = run(["score", "pacs", *files, "--weights", name], cache)
        seconds = time.monotonic() - begin
        server.shutdown()
    ratio = (peak - idle) / size
    verdict = "" if size < 1e9 else f" (goal {GOAL}) {'ok' if ratio <= GOAL else 'FAIL'}"
    return [
        f"{name}: file {size / 1e6:,.0f} MB",
        f"peak of memory of fetching {(peak - idle) / 1e6:,.0f} MB, {ratio:.2f} of the file{verdict}",
        f"peak of memory of the first score {(scoring - idle) / 1e6:,.0f} MB",
        f"seconds: download and conversion {fetched:.1f}, first score {scored:.1f}, together {seconds:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--name", choices=[*SIZES], action="append")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about = f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    lines = [line for name in arguments.name or SIZES for line in measured(name)]
    listed = [f"- {line}" for line in lines]
    text = "\n".join(["# From a checkpoint to the first number", "", about, "", *listed, ""])
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
