"""FACTUAL, a textual scene-graph parser: a T5 that writes the graph of a sentence as a string.

A graph is a string of facts in brackets, `( dog , is , brown ) , ( dog , run in , park )`: three fields
relate a subject to an object, `is` gives an attribute or, with digits, a quantity; one field names an entity
alone. Parsers that generate text also write strings that are unfinished or nested, so any string can be read.
Facts stay in the order in which they were written, which follows the caption.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing". The
prompt, the beams and the lengths are those of its released package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, exact_float32, resolve_device
from capeval_core.models.model import OpenedLater, opened_once
from capeval_core.phrases.chunks import sentences
from capeval_core.phrases.spans import Phrases
from capeval_core.weights.folder import TENSORS, WeightsError, check_finite, file_checksum, open_foreign
from capeval_core.weights.lock import hold

Style = Literal["triplet", "soft-spice"]
Kind = Literal["entity", "attribute", "relation"]
# Flan-T5 base (Apache 2.0) tuned on Visual Genome's descriptions; `-large-` and `-small-` exist too.
FACTUAL = "lizhuang144/flan-t5-base-VG-factual-sg"
_PROMPT = "Generate Scene Graph: "
_BEAMS = 5
# Tokens of a sentence with its prompt and end token that the parser reads.
_LONGEST_INPUT = 64
_LONGEST_OUTPUT = 128
_REVISION = 1  # raised with any change here that changes a phrase
_WHAT = "the scene-graph parser"
_WITHOUT = 'To run without it: phrases="chunks" (rules, no model), or hand in phrases, {caption: [phrases]}.'


class _Triplet(NamedTuple):
    """One fact. The predicate of an attribute is `is`; an entity alone has neither predicate nor object."""

    subject: str
    predicate: str = ""
    object: str = ""


def triplets(graph: str) -> list[_Triplet]:
    """The facts of a graph in its order, without marks and duplicates.

    Facts without a closing bracket are dropped, unless there is no other: then the first field is an entity.
    A fact of two fields has no object; of more than three, the middle is the predicate; one without a
    subject or object gives the other as an entity. An entity that occurs in another fact is not repeated.
    """
    closed: list[str] = re.findall(r"\(([^()]*)\)", graph)
    if not closed:  # generation stopped at its longest output, inside the first fact
        closed = re.split(r"[(),]", graph.strip(" ,()"))[:1]
    facts = []
    for fields in closed:
        facts.append(_triplet([without_mark(field.strip()) for field in fields.split(",")]))
    related: set[str] = set()
    for fact in facts:
        if fact.predicate:
            related |= {fact.subject, fact.object}
    distinct: dict[_Triplet, None] = {}
    for fact in facts:
        if fact.subject and (fact.predicate or fact.subject not in related):
            distinct.setdefault(fact)
    return list(distinct)


def _triplet(fields: list[str]) -> _Triplet:
    """The fact of so many fields, however many the parser wrote."""
    subject = fields[0]
    object = fields[-1]
    if len(fields) == 2:
        return _Triplet(subject, object) if subject else _Triplet(object)
    predicate = " ".join(filter(None, fields[1:-1]))
    if len(fields) == 1 or not subject or not object:
        return _Triplet(subject or object)
    return _Triplet(subject, predicate, object)


def phrases_of(graph: str, style: Style = "triplet") -> list[str]:
    """The facts of a graph as phrases, without duplicates.

    There are none where the graph has entities alone, as the caption itself says more.

    `triplet`: "subject predicate object", with attributes as "dog is brown". `soft-spice`: as the FACTUAL
    package.
    """
    facts = triplets(graph)
    if style == "soft-spice":
        return list(soft_spice_phrases(map(_fields, facts)))
    phrases: dict[str, None] = {}  # in order, each once
    has_predicate = False
    for fact in facts:
        has_predicate |= bool(fact.predicate)
        phrases[" ".join(filter(None, fact))] = None
    return list(phrases) if has_predicate else []


def _fields(fact: _Triplet) -> list[str]:
    return [field.strip() for field in fact if field]


def without_mark(field: str) -> str:
    """A field without the marks of `-id` models: `v:` and `pv:` before verbs, `:1` after repeated nouns."""
    return re.sub(r"^(\s*)p?v:(?!\d)|(?<=[^\W\d]):\d+(?=\s*$)", r"\1", field)


def soft_spice_phrases(facts: Iterable[Sequence[str]]) -> dict[str, Kind]:
    """The phrases of FACTUAL's Soft-SPICE, each with its kind, from the fields of each fact."""
    phrases: dict[str, Kind] = {}
    for fields in facts:
        subject = fields[0]
        if len(fields) == 2:
            phrases[f"{fields[1]} {subject}"] = "attribute"
        elif len(fields) > 2 and fields[1] == "is":
            phrases[f"{fields[2]} {subject}"] = "attribute"
        elif len(fields) > 2:
            phrases[" ".join(fields)] = "relation"
            phrases[fields[-1]] = "entity"
        phrases[subject] = "entity"
    return phrases


class FactualParser:
    """FACTUAL as a `PhraseSource`, from a Hub id or a folder in transformers' format.

    A sentence without a fact is its own phrase.
    """

    def __init__(
        self,
        model: str | PathLike[str] = FACTUAL,
        *,
        style: Style = "triplet",
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | None = None,
        beams: int = _BEAMS,
        later: bool = False,
    ) -> None:
        self.style = style
        resolved = resolve_device(device)
        folder, label, version = _find_parser(fspath(model))
        key = ("factual", str(folder.resolve()), version, str(resolved), dtype, beams)
        self._writer = OpenedLater(
            lambda: opened_once(key, lambda: _GraphWriter(folder, label, resolved, dtype, beams))
        )
        if not later:
            _ = self._writer.model  # opened now: damaged weights are an error here, not at the first text
        settings = [version, _PROMPT, beams, _LONGEST_INPUT, _LONGEST_OUTPUT, dtype, style, _REVISION]
        self.fingerprint = f"factual-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]}"
        self.name = f"{label.split('/')[-1]}@{version[:8]}"
        self._size = BatchSize(batch_size or 32, automatic=batch_size is None)

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, sentence after sentence; equal sentences are parsed once."""
        sentences_of = {text: sentences(text) for text in dict.fromkeys(texts)}
        # Sentence by sentence: the parser was trained on single ones, and captions share many.
        distinct = list(dict.fromkeys(chain.from_iterable(sentences_of.values())))
        graphs = dict(zip(distinct, self._writer.model.write(distinct, self._size), strict=True))
        phrases_by_text = {}
        for text, text_sentences in sentences_of.items():
            phrases_by_text[text] = self._phrases_of_text(text, text_sentences, graphs)
        return [phrases_by_text[text] for text in texts]

    def _phrases_of_text(
        self, text: str, text_sentences: Sequence[str], graphs: Mapping[str, tuple[str, bool]]
    ) -> Phrases:
        """The phrases of a text, by the graph of each sentence, with whether that was truncated."""
        if not text_sentences:  # a text without any word
            return Phrases((text,), fallback=1)
        phrases: dict[str, None] = {}
        truncated = 0
        fallback = 0
        for sentence in text_sentences:
            graph, was_truncated = graphs[sentence]
            facts = phrases_of(graph, self.style)
            if was_truncated:
                truncated += 1
            if not facts:
                fallback += 1
                facts = [sentence]
            phrases.update(dict.fromkeys(facts))
        return Phrases(tuple(phrases), truncated, fallback)


class _GraphWriter:
    """The model of a scene-graph parser, with an LRU cache.

    The cache holds the graph of each sentence, and whether the sentence was truncated.
    """

    def __init__(self, folder: Path, label: str, device: torch.device, dtype: str, beams: int) -> None:
        self._tokenizer, model = _load(folder, label, DTYPES[dtype])
        self._model = model.to(device).eval()
        self._device = device
        self._beams = beams
        self._graphs: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    def write(self, texts: Sequence[str], size: BatchSize) -> list[tuple[str, bool]]:
        """The graph of each sentence, in batches; cached ones are not written again."""
        graphs: dict[str, tuple[str, bool]] = {}
        new: list[str] = []
        for text in dict.fromkeys(texts):
            if text in self._graphs:
                graphs[text] = self._graphs[text]
            else:
                new.append(text)
        graphs |= dict(zip(new, self._written(new, size), strict=True))
        self._graphs |= graphs
        # All of these are the latest now; what has not been read for longest goes first.
        for text in graphs:
            self._graphs.move_to_end(text)
        while len(self._graphs) > LIMITS.graphs:
            self._graphs.popitem(last=False)
        return [graphs[text] for text in texts]

    def _written(self, texts: list[str], size: BatchSize) -> list[tuple[str, bool]]:
        """The graphs of sentences that the cache lacks."""
        if not texts:
            return []
        tokenized = self._tokenizer([_PROMPT + text.strip() for text in texts], verbose=False)["input_ids"]
        # Sorted by length: little padding, and the longest batch, which needs most memory, comes first.
        order = sorted(range(len(texts)), key=lambda index: -len(tokenized[index]))
        inputs = []
        for index in order:
            *tokens, end = tokenized[index]
            # Of a longer sentence the parser reads the beginning and the end token.
            inputs.append([*tokens[: _LONGEST_INPUT - 1], end])
        graphs: dict[int, tuple[str, bool]] = {}
        for part, written in size.run(inputs, self._generate):
            for index, graph in zip(order[part], written, strict=True):
                graphs[index] = (graph, len(tokenized[index]) > _LONGEST_INPUT)
        return [graphs[index] for index in range(len(texts))]

    def _generate(self, inputs: list[list[int]]) -> list[str]:
        """The graphs of one batch of token ids."""
        pad = self._tokenizer.pad_token_id
        rows = [torch.tensor(row) for row in inputs]
        # Not `ids != pad`: a sentence may hold the padding's own token, as T5's text "<pad>".
        is_token = [torch.ones_like(row) for row in rows]
        ids = pad_sequence(rows, batch_first=True, padding_value=pad).to(self._device)
        mask = pad_sequence(is_token, batch_first=True, padding_value=0).to(self._device)
        with torch.inference_mode(), exact_float32(self._device):
            written = self._model.generate(
                ids,
                attention_mask=mask,
                decoder_start_token_id=pad,  # as T5 was trained
                num_beams=self._beams,
                early_stopping=self._beams > 1,
                max_length=_LONGEST_OUTPUT,
                do_sample=False,
            )
        texts = self._tokenizer.batch_decode(
            written, skip_special_tokens=True, clean_up_tokenization_spaces=True
        )
        return [text.replace(_PROMPT.strip(), "").strip() for text in texts]


def _find_parser(model: str) -> tuple[Path, str, str]:
    """The folder of a parser, its label, and its version: its commit on the Hub, or a checksum."""
    path, name, version = open_foreign(
        model,
        _WHAT,
        ["*.json", "*.model"],
        # Without its files, transformers would make a tokenizer of its own.
        [[TENSORS], ["tokenizer.json", "*.model"]],
        default=FACTUAL,
        without=_WITHOUT,
    )
    hold(name, version, path / TENSORS)
    if version is None:
        # A folder of the user's: its tokenizer and settings change phrases as its tensors do.
        files = [path / TENSORS, *sorted(path.glob("*.json")), *sorted(path.glob("*.model"))]
        content = "".join(file.name + file_checksum(file) for file in files)
        version = hashlib.sha256(content.encode()).hexdigest()
    return path, name, version


def _load(folder: Path, label: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The tokenizer and the model of a folder."""
    import transformers

    auto: Any = transformers
    fix = f"download it again, or pass another. {_WITHOUT}"
    try:
        tokenizer = auto.AutoTokenizer.from_pretrained(folder)
        model = auto.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        check_finite(model.state_dict(), "they make no sense of any caption")
    except Exception as error:  # a damaged file can raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise WeightsError(f"{_WHAT} {label!r} in {folder} could not be loaded ({reason}): {fix}") from error
    if tokenizer.pad_token_id is None or len(tokenizer) > model.get_input_embeddings().num_embeddings:
        problem = "has a tokenizer that is not its own (no pad token, or more tokens than the model has)"
        raise WeightsError(f"{_WHAT} {label!r} {problem}: {fix}")
    return tokenizer, model
