"""How many images and texts a model really saw, and which files were opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Encoded:
    """What went through the towers.

    images, texts: rows. batches: sizes of the image batches. masked: rows of a ViT, which are pairs of
    image and mask where it has a mask channel; masked_batches: sizes of their batches.
    """

    images: int = 0
    texts: int = 0
    masked: int = 0
    batches: list[int] = field(default_factory=list)
    masked_batches: list[int] = field(default_factory=list)


@contextmanager
def counted(encoder: Any) -> Iterator[Encoded]:
    """Count what runs through the first layer of the image tower and the last one of the text tower."""
    counts = Encoded()

    def image(module: Any, inputs: Any, output: Any) -> None:
        counts.images += len(inputs[0])
        counts.batches.append(len(inputs[0]))

    def masked(module: Any, inputs: Any, output: Any) -> None:
        counts.masked += len(inputs[0])
        counts.masked_batches.append(len(inputs[0]))

    def text(module: Any, inputs: Any, output: Any) -> None:
        counts.texts += len(inputs[0])

    hooks = [
        encoder.model.visual.conv1.register_forward_hook(image),
        encoder.model.ln_final.register_forward_hook(text),
    ]
    if hasattr(encoder.model.visual, "ln_pre"):
        hooks.append(encoder.model.visual.ln_pre.register_forward_hook(masked))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def watched() -> Iterator[list[str]]:
    """Whatever touches the disk: files that are opened, folders that are made."""
    touched: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.mkdir", "sqlite3.connect"):
            touched.append(f"{event} {arguments[0]}")

    sys.addaudithook(watch)  # for good: nothing takes a hook away
    try:
        yield touched
    finally:
        watching = False
