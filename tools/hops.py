"""How many functions of the package stand between `score` and the network, for each kind of item.

    python -m tools.hops

Counted are the functions on the call stack when the network first runs on an item, from `score` down, and
those that prepare it in a thread.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

import capeval_core
from capeval_core.encoders.blip2 import Blip2Encoder

_PACKAGE = Path(capeval_core.__file__).parent
Steps = list[str]


def stack() -> Steps:
    """`file:function` of the package's functions that are running, outermost first."""
    steps = []
    frame = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE):
            steps.append(f"{file.relative_to(_PACKAGE)}:{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return list(dict.fromkeys(reversed(steps)))


@contextmanager
def watched(**places: tuple[Any, str]) -> Iterator[dict[str, Steps]]:
    """Note the stack at the first call of each function, an attribute of something, while it is open."""
    steps: dict[str, Steps] = {}
    originals = {name: getattr(*place) for name, place in places.items()}

    def noting(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            steps.setdefault(name, stack())
            return originals[name](*arguments, **keywords)

        return call

    for name, (owner, attribute) in places.items():
        setattr(owner, attribute, noting(name))
    try:
        yield steps
    finally:
        for name, (owner, attribute) in places.items():
            setattr(owner, attribute, originals[name])


def report(item: str, *stacks: Steps) -> None:
    steps = list(dict.fromkeys(step for each in stacks for step in each))
    files = {step.partition(":")[0] for step in steps}
    print(f"{item}: {len(steps)} functions in {len(files)} files\n    " + "\n    ".join(steps))


def main() -> None:
    warnings.simplefilter("ignore")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8))
    pacs = capeval_core.load("pacs", weights="tiny")
    hices = capeval_core.load("hices", weights="tiny")
    eco = capeval_core.load("eco", weights="tiny")
    blip2 = Blip2Encoder.from_pretrained("tiny")  # open already, so that opening it is not counted
    watching: dict[str, tuple[Any, str]] = {
        "text": (functional, "scaled_dot_product_attention"),
        "image": (torch.nn.Conv2d, "forward"),
        "prepare": (Image.Image, "convert"),
    }
    with watched(**watching) as steps:
        pacs.score(["a red circle"], [image])
    report("a caption of PAC-S", steps["text"])
    report("an image of PAC-S", steps["image"], steps["prepare"])
    with watched(**watching) as steps:
        hices.score(["a red circle"], [image])
    report("a region of HICE-S", steps["image"], steps["prepare"])
    with watched(matching=(type(blip2), "match_logits")) as steps:
        eco.score([["a red circle", "a blue square"]], [image])
    report("a pool of ECO", steps["matching"])


if __name__ == "__main__":
    main()
