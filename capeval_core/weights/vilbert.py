"""ViLBERT as it was released, pre-trained or tuned on twelve tasks: sizes and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from capeval_core.errors import wrong_option
from capeval_core.options import option
from capeval_core.weights.conversion import BertConversion, Shapes, count_blocks

_CONTEXT = 37  # ids of a text in the released scorer, marks included
_DECODER, _WORDS = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
_RETRIEVAL = 7  # the task of retrieving COCO images by their captions, which the released scorer chooses


@dataclass(frozen=True, kw_only=True)
class VilbertConversion(BertConversion):
    """ViLBERT of either release; heads of its tasks are left out."""

    encoder = "vilbert"

    text_heads: int | None = option(
        None, "attention heads of the text layers; None: their width / 64", minimum=1
    )
    visual_heads: int | None = option(
        None, "attention heads of the visual layers; None: their width / 128", minimum=1
    )
    co_heads: int | None = option(
        None, "attention heads of the co-attention blocks; None: their width / 128", minimum=1
    )
    text_layers_before: str | None = option(
        None,
        "text layers that run before each co-attention block, as 6,7,8,9,10,11; None: a block before each of "
        "the last ones",
    )
    visual_layers_before: str | None = option(None, "the same of visual layers, as 0,1,2,3,4,5")
    task: int | None = option(
        None, "task whose token is put into texts, by its number; None: COCO retrieval", minimum=0
    )

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        selected = super().select(content, notes)
        decoder = next((name for name in content if name.endswith(_DECODER)), None)
        if decoder and _WORDS in selected and not torch.equal(content[decoder], selected[_WORDS]):
            # One tensor under two names in the original, where the decoder is loaded last.
            selected[_WORDS] = content[decoder]
            notes.append(f"{_DECODER} differs from {_WORDS}, and stands in for it as in the original")
        return selected

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        sizes = config["architecture"]
        text, visual = sizes["text"], sizes["visual"]
        blocks = count_blocks(shapes, r"co_layers\.(\d+)\.")
        for name, own in (("text_layers_before", text), ("visual_layers_before", visual)):
            sizes[name] = self._before(name, own["num_hidden_layers"], blocks)
        sizes["tasks"] = shapes.get("task_embeddings.weight", (0,))[0]
        return {
            **config,
            "task": self._task(sizes["tasks"], notes),
            "context_length": min(_CONTEXT, text["max_position_embeddings"]),
            "vocabulary": self.words(text["vocab_size"], notes),
        }

    def _before(self, name: str, layers: int, blocks: int) -> list[int]:
        given: str | None = getattr(self, name)
        if given is None:
            return [layers - blocks + block for block in range(blocks)]
        numbers = [int(number) for number in re.findall(r"\d+", given)]
        well = re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", given) and len(numbers) == blocks
        if not well or [*numbers, layers] != sorted([*numbers, layers]):
            found = f"there are {blocks} co-attention blocks and {layers} such layers"
            fix = "give each block a number of layers, rising, with commas between"
            raise wrong_option(name, given, found, fix)
        return numbers

    def _task(self, tasks: int, notes: list[str]) -> int | None:
        if tasks:
            task = _RETRIEVAL if self.task is None else self.task
            if task >= tasks:
                raise wrong_option("task", task, f"the checkpoint has tasks 0 to {tasks - 1}")
            return task
        if self.task is not None:
            found = "the checkpoint has no task embeddings, as the pre-trained one"
            raise wrong_option("task", self.task, found, "leave it out")
        notes.append("there are no task embeddings: texts are read without a task token")
        return None
