"""ViLBERT as it was released, pre-trained or tuned on twelve tasks: names, sizes and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from capeval_core.errors import wrong_option
from capeval_core.options import option
from capeval_core.weights.conversion import Conversion, Shapes, count_blocks, heads_of, required_words

CONTEXT = 37
"""Ids of a text in the released scorer, marks included."""
_TEXT_HEAD, _WIDE_HEAD = 64, 128
"""Widths of the heads of the released models: of text layers, and of visual and co-attention layers."""
_DECODER, _WORDS = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
_RETRIEVAL = 7
"""The task of retrieving COCO images by their captions, which the released scorer chooses."""


@dataclass(frozen=True, kw_only=True)
class VilbertConversion(Conversion):
    """ViLBERT of either release; heads of its tasks are left out."""

    encoder = "vilbert"
    title = "ViLBERT"
    anchors = ("bert.v_embeddings.image_embeddings.weight",)
    # Heads of tasks, and two linear layers of each co-attention block that nothing runs.
    unused = (
        r"cls\.|vil_|vision_logit\.|linguisic_logit\.|bert\.encoder\.c_layer\.\d+\.biOutput\.q_dense|"
        r"bert\.embeddings\.position_ids$"
    )
    names = (
        (r"^bert\.embeddings\.task_embeddings\.", "task_embeddings."),
        (r"^bert\.embeddings\.", "embeddings."),
        (r"^bert\.v_embeddings\.image_embeddings\.", "region_embeddings.feature."),
        (r"^bert\.v_embeddings\.image_location_embeddings\.", "region_embeddings.location."),
        (r"^bert\.v_embeddings\.LayerNorm\.", "region_embeddings.norm."),
        (r"^bert\.encoder\.layer\.", "text_layers."),
        (r"^bert\.encoder\.v_layer\.", "visual_layers."),
        (r"^bert\.encoder\.c_layer\.", "co_layers."),
        (r"\.biattention\.(query|key|value)1\.", r".visual.\1."),
        (r"\.biattention\.(query|key|value)2\.", r".text.\1."),
        (r"\.biOutput\.(dense|LayerNorm)1\.", r".visual.merge.\1."),
        (r"\.biOutput\.(dense|LayerNorm)2\.", r".text.merge.\1."),
        (r"\.v_(intermediate|output)\.", r".visual.\1."),
        (r"\.t_(intermediate|output)\.", r".text.\1."),
        (r"^bert\.t_pooler\.dense\.", "text_pooler."),
        (r"^bert\.v_pooler\.dense\.", "visual_pooler."),
        (r"\.gamma$", ".weight"),  # of norms, in checkpoints of the first versions of BERT's code
        (r"\.beta$", ".bias"),
    )
    default_licence = "MIT"  # of their code

    vocabulary: str | None = option(
        None, "vocab.txt of bert-base-uncased, whose tokenizer the model was trained with"
    )
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
        decoder = next((name for name in content if name.endswith(_DECODER)), None)
        words = next((name for name in content if name.endswith(_WORDS)), None)
        selected = super().select(content, notes)
        if decoder and words and not torch.equal(content[decoder], content[words]):
            # One tensor under two names in the original, where the decoder is loaded last.
            selected[_WORDS] = content[decoder]
            notes.append(f"{_DECODER} differs from {_WORDS}, and stands in for it as in the original")
        return selected

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        rows, hidden = shapes["embeddings.word_embeddings.weight"]
        wide, region_size = shapes["region_embeddings.feature.weight"]
        width = shapes["co_layers.0.text.query.weight"][0]
        text, visual = (count_blocks(shapes, rf"{stream}_layers\.(\d+)\.") for stream in ("text", "visual"))
        blocks = count_blocks(shapes, r"co_layers\.(\d+)\.")
        tasks = shapes.get("task_embeddings.weight", (0, 0))[0]
        words = required_words(self.vocabulary, "google-bert/bert-base-uncased", rows, notes)
        return {
            "architecture": {
                "text": {
                    "vocab_size": rows,
                    "hidden_size": hidden,
                    "num_hidden_layers": text,
                    "num_attention_heads": heads_of(hidden, self.text_heads, _TEXT_HEAD, "text_heads"),
                    "intermediate_size": shapes["text_layers.0.intermediate.dense.weight"][0],
                    "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
                },
                "visual": {
                    "region_size": region_size,
                    "hidden_size": wide,
                    "num_hidden_layers": visual,
                    "num_attention_heads": heads_of(wide, self.visual_heads, _WIDE_HEAD, "visual_heads"),
                    "intermediate_size": shapes["visual_layers.0.intermediate.dense.weight"][0],
                },
                "co_attention": {
                    "hidden_size": width,
                    "num_attention_heads": heads_of(width, self.co_heads, _WIDE_HEAD, "co_heads"),
                },
                "text_layers_before": self._before("text_layers_before", text, blocks),
                "visual_layers_before": self._before("visual_layers_before", visual, blocks),
                "tasks": tasks,
            },
            "task": self._task(tasks, notes),
            "context_length": min(CONTEXT, shapes["embeddings.position_embeddings.weight"][0]),
            "vocabulary": words,
            "lowercase": True,
        }

    def _before(self, name: str, layers: int, blocks: int) -> list[int]:
        given: str | None = getattr(self, name)
        if given is None:
            given = ",".join(str(layers - blocks + block) for block in range(blocks))
        numbers = [int(number) for number in re.findall(r"\d+", given)]
        well = re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", given) and numbers == sorted(numbers)
        if not well or len(numbers) != blocks or numbers[-1] > layers:
            found = f"there are {blocks} co-attention blocks and {layers} such layers"
            fix = "give each block a number of layers, rising, with commas between"
            raise wrong_option(name, getattr(self, name), found, fix, verb="")
        return numbers

    def _task(self, tasks: int, notes: list[str]) -> int | None:
        if not tasks:
            if self.task is not None:
                found = "the checkpoint has no task embeddings, as the pre-trained one"
                raise wrong_option("task", self.task, found, "leave it out", verb="")
            notes.append("there are no task embeddings: texts are read without a task token")
            return None
        task = _RETRIEVAL if self.task is None else self.task
        if task >= tasks:
            found = f"the checkpoint has tasks 0 to {tasks - 1}"
            raise wrong_option("task", task, found, verb="")
        return task
