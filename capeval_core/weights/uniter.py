"""UMIC's released scorer and the UNITER it was tuned from: sizes and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capeval_core.options import option
from capeval_core.weights.conversion import BertConversion, Shapes, Tensors


@dataclass(frozen=True, kw_only=True)
class UniterConversion(BertConversion):
    """UMIC's scorer, or a UNITER with its matching head, whose row for a match becomes the ranking head."""

    encoder = "uniter"
    keeps_type = True  # of UMIC float16: half the size, no loss

    heads: int | None = option(None, "attention heads; None: the width / 64", minimum=1)

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        if "ranking_head.weight" not in tensors:
            for part in ("weight", "bias"):
                head = tensors[f"matching_head.{part}"]
                if not head.ndim:
                    raise ValueError(f"itm_output.{part} is a single number, expected a row for a match")
                tensors[f"ranking_head.{part}"] = head[1:].clone()
            start = "so this is not UMIC but what its training starts from"
            notes.append(f"no ranking head, {start}: the matching head's row for a match stands in")
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        return {**config, "vocabulary": self.words(config["architecture"]["vocab_size"], notes)}
