"""The functions of the package between `score` and the network, of a caption, an image, a region and a pool.

python -m tools.hops
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

import capeval_core

ROOT = str(Path(capeval_core.__file__).parent)
CASES = {
    "caption": ("pacs", False),
    "image": ("pacs", True),
    "region": ("hices", True),
    "pool": ("eco", True),
}
"""The metric of each, and True if it goes through the engine, as images do."""


def hops(metric: str, engine: bool) -> list[str]:
    """The names of these functions, in the order of their calls."""
    paths: list[list[str]] = []

    def note(module: Any, _: Any) -> None:
        frame: Any = sys._getframe(1)
        names: list[str] = []
        while frame is not None and frame.f_code.co_name != "score":
            if frame.f_code.co_filename.startswith(ROOT):
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        if frame is not None and ("encode_stream" in names) == engine and "canary" not in " ".join(names):
            paths.append(names[:0:-1])  # without the network's own

    # New images each time: none is in the cache.
    pixels = np.random.default_rng().integers(0, 255, (2, 64, 64, 3), dtype=np.uint8)
    captions: list[Any] = ["a dog", "two cats on a mat"]
    opened = capeval_core.load(metric, weights="tiny", device="cpu")
    with register_module_forward_pre_hook(note):
        opened.score([captions] * 2 if metric == "eco" else captions, list(map(Image.fromarray, pixels)))
    return min(paths, key=len)


if __name__ == "__main__":
    for case, (metric, engine) in CASES.items():
        functions = hops(metric, engine)
        print(f"{case}: {len(functions)}  {' > '.join(functions)}")
