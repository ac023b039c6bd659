"""How many pictures and texts a model really saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from capeval_core.encoders.clip import ClipEncoder


@dataclass
class Seen:
    """pictures, texts: rows that went through the towers. batches: sizes of the picture batches."""

    pictures: int = 0
    texts: int = 0
    batches: list[int] | None = None


@contextmanager
def counted(encoder: ClipEncoder) -> Iterator[Seen]:
    """Count what runs through the first layer of the picture tower and the last one of the text tower."""
    seen = Seen(batches=[])

    def picture(module: Any, inputs: Any, output: Any) -> None:
        seen.pictures += len(inputs[0])
        assert seen.batches is not None
        seen.batches.append(len(inputs[0]))

    def text(module: Any, inputs: Any, output: Any) -> None:
        seen.texts += len(inputs[0])

    hooks = [
        encoder.model.visual.conv1.register_forward_hook(picture),
        encoder.model.ln_final.register_forward_hook(text),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
