"""FACTUAL, the textual scene-graph parser: from captions to the facts that their sentences state.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from os import PathLike, fspath
from typing import get_args

from capeval_core.errors import did_you_mean
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.phrases.graph import Style, phrases_of
from capeval_core.phrases.graph_writer import (
    BEAMS,
    FACTUAL,
    LONGEST_INPUT,
    LONGEST_OUTPUT,
    PROMPT,
    GraphWriter,
    ParsedSentence,
    find_parser,
)
from capeval_core.phrases.phrases import Phrases
from capeval_core.phrases.sentences import sentences


class FactualParser:
    """Phrases from the scene graph of each sentence; a sentence without a fact is its own phrase.

    Args:
        model: Hub id (`org/name` or `org/name@revision`) or folder of a parser in transformers' format.
        style: `triplet` or `soft-spice`, see `capeval_core.phrases.graph.phrases_of`.
        device: torch device; None: CUDA where there is a GPU.
        dtype: `float32`, `bfloat16` or `float16`.
        batch_size: sentences at once; None: as many as fit into memory.
        beams: width of the beam search; 1 is greedy.

    Raises:
        ParserError: transformers is missing, the model cannot be had, read, or is no T5-like parser.
        ValueError: an unknown style, dtype or device.
    """

    def __init__(
        self,
        model: str | PathLike[str] = FACTUAL,
        *,
        style: Style = "triplet",
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | None = None,
        beams: int = BEAMS,
    ) -> None:
        if style not in get_args(Style):
            raise ValueError(
                f"style={style!r}: expected 'triplet' or 'soft-spice'{did_you_mean(style, get_args(Style))}"
            )
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: expected {' or '.join(map(repr, DTYPES))}")
        self.style = style
        self.beams = beams
        self.dtype = dtype
        self.device = resolve_device(device)
        self.folder, self._label, self._version = find_parser(fspath(model))
        self._writer = GraphWriter.open(
            self.folder,
            self._label,
            device=self.device,
            dtype=dtype,
            beams=beams,
            version=self._version,
        )
        self._size = BatchSize(batch_size or 32, automatic=batch_size is None)

    @property
    def name(self) -> str:
        """E.g. `flan-t5-base-VG-factual-sg@1f3c9a2b`."""
        return f"{self._label.split('/')[-1]}@{self._version[:8]}"

    @property
    def fingerprint(self) -> str:
        """Covers the weights, the tokenizer, the settings and the style."""
        settings = [
            self._version,
            PROMPT,
            self.beams,
            LONGEST_INPUT,
            LONGEST_OUTPUT,
            self.dtype,
            self.style,
            1,
        ]
        return f"factual-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]}"

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, sentence after sentence; equal sentences are parsed once.

        A text without any word is its own phrase.
        """
        split = {text: sentences(text) for text in dict.fromkeys(texts)}
        parsed = self.parse([sentence for found in split.values() for sentence in found])
        remaining = iter(parsed)
        made = {
            text: self._assemble(text, found, [next(remaining) for _ in found])
            for text, found in split.items()
        }
        return [made[text] for text in texts]

    def _assemble(self, text: str, found: list[str], parsed: list[ParsedSentence]) -> Phrases:
        phrases: dict[str, None] = {}
        fallback = 0
        for sentence, graph in zip(found, parsed, strict=True):
            said = phrases_of(graph.graph, self.style)
            fallback += not said
            phrases |= dict.fromkeys(said or [sentence])
        if not phrases:
            return Phrases((text,), fallback=1)
        return Phrases(tuple(phrases), sum(graph.truncated for graph in parsed), fallback)

    def parse(self, texts: Sequence[str]) -> list[ParsedSentence]:
        """The graph of each sentence, as the parser wrote it."""
        return self._writer.write(texts, self._size)
