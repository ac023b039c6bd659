"""FACTUAL, a textual scene-graph parser: a T5 that writes the graph of a sentence as a string.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing". The
prompt, the beams and the lengths are those of its released package.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast, get_args
from weakref import WeakValueDictionary

import torch

from capeval_core.errors import did_you_mean
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, exact_float32, numbered_device
from capeval_core.phrases.english import sentences
from capeval_core.phrases.graph import Style, phrases_of
from capeval_core.phrases.source import Phrases
from capeval_core.weights.folder import TENSORS, WeightsError, check_finite, file_checksum
from capeval_core.weights.foreign import open_foreign

FACTUAL = "lizhuang144/flan-t5-base-VG-factual-sg"
"""Flan-T5 base (Apache 2.0) tuned on Visual Genome's descriptions; `-large-` and `-small-` exist too."""
PROMPT = "Generate Scene Graph: "
BEAMS = 5
LONGEST_INPUT = 64
"""Tokens of a sentence with its prompt and end token that the parser reads."""
LONGEST_OUTPUT = 128
_REVISION = 1  # raise it with any change here that changes a phrase


class ParserError(WeightsError):
    """A scene-graph parser that could not be loaded; the message names it, the reason and a fix."""


@dataclass(frozen=True)
class ParsedSentence:
    """The graph that the parser wrote of a sentence, and whether the sentence was truncated."""

    graph: str
    truncated: bool


class FactualParser:
    """FACTUAL as a PhraseSource; a sentence without a fact is its own phrase.

    Args:
        model: Hub id (`org/name` or `org/name@revision`) or folder of a parser in transformers' format.
        style: `triplet` or `soft-spice`, see `capeval_core.phrases.graph.phrases_of`.
        device: torch device; None: CUDA where there is a GPU.
        dtype: `float32`, `bfloat16` or `float16`.
        batch_size: sentences at once; None: as many as fit into memory.
        beams: width of the beam search; 1 is greedy.

    Raises:
        ParserError: the model could not be loaded or is not a T5-like parser.
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
        on = numbered_device(device)
        folder, label, version = find_parser(fspath(model))
        key = (str(folder.resolve()), version, str(on), dtype, beams)
        self._writer = _OPENED[key] = _OPENED.get(key) or GraphWriter(folder, label, on, dtype, beams)
        settings = [version, PROMPT, beams, LONGEST_INPUT, LONGEST_OUTPUT, dtype, style, _REVISION]
        self.fingerprint = f"factual-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]}"
        self.name = f"{label.split('/')[-1]}@{version[:8]}"
        self._size = BatchSize(batch_size or 32, automatic=batch_size is None)

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, sentence after sentence; equal sentences are parsed once.

        A text without any word is its own phrase.
        """
        split = {text: sentences(text) for text in dict.fromkeys(texts)}
        distinct = list(dict.fromkeys(chain.from_iterable(split.values())))
        parsed = dict(zip(distinct, self.parse(distinct), strict=True))
        phrases = {text: self._phrases_of(text, split[text], parsed) for text in split}
        return [phrases[text] for text in texts]

    def _phrases_of(self, text: str, split: Sequence[str], parsed: Mapping[str, ParsedSentence]) -> Phrases:
        phrases: dict[str, None] = {}
        fallback = 0
        for sentence in split:
            of_sentence = phrases_of(parsed[sentence].graph, self.style)
            fallback += not of_sentence
            phrases |= dict.fromkeys(of_sentence or [sentence])
        if not phrases:
            return Phrases((text,), fallback=1)
        return Phrases(tuple(phrases), sum(parsed[sentence].truncated for sentence in split), fallback)

    def parse(self, texts: Sequence[str]) -> list[ParsedSentence]:
        """The graph of each sentence, as the parser wrote it."""
        return self._writer.write(texts, self._size)


class GraphWriter:
    """The model of a scene-graph parser, with an LRU cache of the graphs that it has written.

    It is loaded once per process and setting while it is in use, so that `hices` and `refhices` share it.
    Arguments and errors are those of `FactualParser`.
    """

    def __init__(self, folder: Path, label: str, device: torch.device, dtype: str, beams: int) -> None:
        self._tokenizer, loaded = _load(folder, label, DTYPES[dtype])
        self._model = loaded.to(device).eval()
        self._device, self._beams = device, beams
        self._graphs: OrderedDict[str, ParsedSentence] = OrderedDict()

    def write(self, texts: Sequence[str], size: BatchSize) -> list[ParsedSentence]:
        """The graph of each sentence, in batches; cached ones are not written again."""
        graphs = {text: self._graphs[text] for text in dict.fromkeys(texts) if text in self._graphs}
        new = [text for text in dict.fromkeys(texts) if text not in graphs]
        graphs |= dict(zip(new, self._written(new, size), strict=True))
        self._graphs |= graphs
        for text in graphs:
            self._graphs.move_to_end(text)
        while len(self._graphs) > LIMITS.graphs:
            self._graphs.popitem(last=False)
        return [graphs[text] for text in texts]

    def _written(self, texts: list[str], size: BatchSize) -> list[ParsedSentence]:
        if not texts:
            return []
        tokenized = self._tokenizer([PROMPT + text.strip() for text in texts], verbose=False)["input_ids"]
        # Sorted by length: little padding, and the longest batch, which needs most memory, comes first.
        order = sorted(range(len(texts)), key=lambda index: -len(tokenized[index]))
        # Of a longer sentence the parser reads the beginning and the end token.
        rows = [tokenized[index] for index in order]
        inputs = [row if len(row) <= LONGEST_INPUT else [*row[: LONGEST_INPUT - 1], row[-1]] for row in rows]
        graphs: dict[int, str] = {}
        for part, written in size.run(inputs, self._generate):
            graphs |= dict(zip(order[part], written, strict=True))
        return [
            ParsedSentence(graphs[index], len(tokenized[index]) > LONGEST_INPUT)
            for index in range(len(texts))
        ]

    def _generate(self, inputs: list[list[int]]) -> list[str]:
        pad = self._tokenizer.pad_token_id
        longest = max(map(len, inputs))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in inputs], device=self._device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in inputs], device=self._device
        )
        with torch.inference_mode(), exact_float32(self._device):
            written = self._model.generate(
                ids,
                attention_mask=mask,
                decoder_start_token_id=pad,
                num_beams=self._beams,
                early_stopping=self._beams > 1,
                max_length=LONGEST_OUTPUT,
                do_sample=False,
            )
        texts = self._tokenizer.batch_decode(
            written, skip_special_tokens=True, clean_up_tokenization_spaces=True
        )
        return [text.replace(PROMPT.strip(), "").strip() for text in texts]


_OPENED: WeakValueDictionary[tuple[str, str, str, str, int], GraphWriter] = WeakValueDictionary()


_WHAT = "the scene-graph parser"
_WITHOUT = 'To run without it: phrases="chunks" (rules, no model), or hand in phrases, {caption: [phrases]}.'


def find_parser(model: str) -> tuple[Path, str, str]:
    """The folder of a parser, its label, and its version: its commit on the Hub, or a checksum."""
    path, name, version = open_foreign(
        model,
        _WHAT,
        ["*.json", "*.model"],
        # Without its files, transformers would make a tokenizer of its own.
        [[TENSORS], ["tokenizer.json", "*.model"]],
        default=FACTUAL,
        without=_WITHOUT,
        error=ParserError,
    )
    if version is None:
        files = [path / TENSORS, *sorted(path.glob("*.json")), *sorted(path.glob("*.model"))]
        content = "".join(file.name + file_checksum(file) for file in files)
        version = hashlib.sha256(content.encode()).hexdigest()
    return path, name, version


def _load(folder: Path, label: str, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    try:
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder)
        model = cast(Any, AutoModelForSeq2SeqLM).from_pretrained(folder, dtype=dtype, use_safetensors=True)
        check_finite(model.state_dict(), "they make no sense of any caption")
    except Exception as error:  # a damaged file raises whatever its reader raises
        raise ParserError(
            f"{_WHAT} {label!r} in {folder} could not be loaded ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}): download it "
            f"again, or pass another. {_WITHOUT}"
        ) from error
    if tokenizer.pad_token_id is None or len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ParserError(
            f"{_WHAT} {label!r} has a tokenizer that is not its own (no pad token, or more "
            f"tokens than the model has): download it again, or pass another. {_WITHOUT}"
        )
    return tokenizer, model
