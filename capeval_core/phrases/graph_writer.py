"""The model of a textual scene-graph parser: a T5 that writes the graph of a sentence as a string.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing". The
prompt, the beams and the lengths are those of its released package.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

import torch

from capeval_core.models.batching import BatchSize
from capeval_core.models.precision import DTYPES, exact_float32
from capeval_core.weights.folder import TENSORS, WeightsError, check_finite, file_checksum
from capeval_core.weights.hub import download_model

FACTUAL = "lizhuang144/flan-t5-base-VG-factual-sg"
"""Flan-T5 base (Apache 2.0) tuned on Visual Genome's descriptions; `-large-` and `-small-` exist too."""
PROMPT = "Generate Scene Graph: "
BEAMS = 5
LONGEST_INPUT = 64
"""Tokens of a sentence with its prompt and end token that the parser reads."""
LONGEST_OUTPUT = 128
KEPT = 65_536
"""Sentences whose graphs are remembered, so that references that return are parsed once."""


class ParserError(WeightsError):
    """A scene-graph parser that cannot be had or loaded; the message says which, why, and what to do."""


@dataclass(frozen=True)
class ParsedSentence:
    """The graph that the parser wrote, and whether the sentence was longer than it reads."""

    graph: str
    truncated: bool


class GraphWriter:
    """The parser of a folder, and the graphs that it has written, so that texts that return cost nothing.

    Args:
        folder: a parser in transformers' format.
        label: what messages call it.
        device: where it runs.
        dtype: `float32`, `bfloat16` or `float16`.
        beams: width of the beam search; 1 is greedy.

    Raises:
        ParserError: transformers is missing, or the folder does not hold such a parser.
    """

    def __init__(self, folder: Path, label: str, *, device: torch.device, dtype: str, beams: int) -> None:
        self._tokenizer, loaded = _load(folder, label, DTYPES[dtype])
        self._model = loaded.to(device).eval()
        self._device, self._beams = device, beams
        self._known: OrderedDict[str, ParsedSentence] = OrderedDict()

    @classmethod
    def open(
        cls, folder: Path, label: str, *, device: torch.device, dtype: str, beams: int, version: str
    ) -> GraphWriter:
        """The parser of a folder; loaded once per process and setting while it is in use.

        So `hices` and `refhices` share it and what it wrote. Arguments and errors are those of the class;
        `version` changes with the folder's content.
        """
        key = (str(folder.resolve()), version, str(device), dtype, beams)
        writer = _OPENED.get(key)
        if writer is None:
            writer = _OPENED[key] = cls(folder, label, device=device, dtype=dtype, beams=beams)
        return writer

    def write(self, texts: Sequence[str], size: BatchSize) -> list[ParsedSentence]:
        """The graph of each sentence, in batches of a size; those that it remembers are not written again."""
        known = {text: self._known[text] for text in dict.fromkeys(texts) if text in self._known}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known |= dict(zip(new, self._written(new, size), strict=True))
        self._known |= known
        for text in known:
            self._known.move_to_end(text)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return [known[text] for text in texts]

    def _written(self, texts: list[str], size: BatchSize) -> list[ParsedSentence]:
        if not texts:
            return []
        tokenized = self._tokenizer([PROMPT + text.strip() for text in texts], verbose=False)["input_ids"]
        # Like lengths together: little padding, and the longest batch, which needs most memory, comes first.
        order = sorted(range(len(texts)), key=lambda index: -len(tokenized[index]))
        inputs = [_cut(tokenized[index]) for index in order]
        graphs: dict[int, str] = {}
        for part, written in size.run(len(inputs), lambda part: self._generate(inputs[part])):
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


def _cut(tokens: list[int]) -> list[int]:
    """At most as many tokens as the parser reads, the end token among them."""
    return tokens if len(tokens) <= LONGEST_INPUT else [*tokens[: LONGEST_INPUT - 1], tokens[-1]]


_WHAT = "the scene-graph parser"
_WITHOUT = 'To run without it: phrases="chunks" (rules, no model), or hand in phrases, {caption: [phrases]}.'


def find_parser(model: str) -> tuple[Path, str, str]:
    """The folder of a model, its label, and its version: the commit on the Hub, or a checksum."""
    path = Path(model).expanduser()
    if path.is_dir():
        folder, label, version = path, path.resolve().name, ""
    else:
        folder = download_model(
            model, _WHAT, ["*.json", "*.model"], TENSORS, default=FACTUAL, without=_WITHOUT, error=ParserError
        ).path
        label, version = model.partition("@")[0], folder.name
    # Without its files transformers would make up a tokenizer of its own.
    tokenizers = [*folder.glob("tokenizer.json"), *folder.glob("*.model")]
    for found, file in (
        ((folder / TENSORS).is_file(), TENSORS),
        (tokenizers, "tokenizer.json or spiece.model"),
    ):
        if not found:
            raise ParserError(
                f"{_WHAT} {label!r} has no {file} in {folder}: pass one in transformers' "
                f"format, such as {FACTUAL} from the Hub. {_WITHOUT}"
            )
    if not version:
        files = [folder / TENSORS, *sorted(folder.glob("*.json")), *sorted(folder.glob("*.model"))]
        content = "".join(file.name + file_checksum(file) for file in files)
        version = hashlib.sha256(content.encode()).hexdigest()
    return folder, label, version


def _load(folder: Path, label: str, dtype: Any) -> tuple[Any, Any]:
    try:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    except ImportError as error:
        raise _missing(error) from error
    try:
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder)
        model = cast(Any, AutoModelForSeq2SeqLM).from_pretrained(folder, dtype=dtype, use_safetensors=True)
        check_finite(model.state_dict(), "they make no sense of any caption")
    except ImportError as error:
        raise _missing(error) from error
    except Exception as error:  # a damaged file raises whatever its reader raises
        raise ParserError(
            f"{_WHAT} {label!r} in {folder} cannot be loaded ({_said(error)}): download it "
            f"again, or pass another. {_WITHOUT}"
        ) from error
    if tokenizer.pad_token_id is None or len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ParserError(
            f"{_WHAT} {label!r} has a tokenizer that is not its own (no pad token, or more "
            f"tokens than the model knows): download it again, or pass another. {_WITHOUT}"
        )
    return tokenizer, model


def _missing(error: ImportError) -> ParserError:
    return ParserError(
        f"{_WHAT} needs transformers ({error}): pip install transformers sentencepiece. {_WITHOUT}"
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
