"""Part-of-speech tags of captions: Penn Treebank tags by spaCy, by NLTK, or of the words of drawn scenes.

Tokens of every tagger spell their caption: joined by spaces they are its text, up to white space next to
punctuation, which BERT's tokenizers do not see. So a caption made of tokens cannot betray itself by them.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from capeval_core.errors import Problem, Problems, at, did_you_mean, wrong_option
from capeval_core.project import install_command

TaggedCaption = list[tuple[str, str]]  # tokens with their tags, in order
SPACY_MODEL = "en_core_web_sm"
NLTK_DATA = "averaged_perceptron_tagger_eng"


class Tagger(ABC):
    """A tagger of captions. fingerprint: changes with everything that tags depend on."""

    fingerprint: str

    @abstractmethod
    def tags(self, captions: Sequence[str]) -> list[TaggedCaption]:
        """The tokens of each caption with their Penn tags; no token has white space."""


def open_tagger(name: str) -> Tagger:
    """Open a tagger: `spacy`, `spacy:PIPELINE` (a package or a folder), `nltk`, or `scenes`."""
    kind, colon, model = name.partition(":")
    if kind not in _TAGGERS or (colon and (not model or kind != "spacy")):
        names = ", ".join(map(repr, _TAGGERS))
        expected = f"expected {names}, or 'spacy:' with the name or folder of a pipeline"
        raise wrong_option("tagger", name, "", expected + did_you_mean(kind, _TAGGERS))
    # Opened in whatever way the package does it, and its errors told apart by their kinds.
    try:
        tagger: Tagger = _TAGGERS[kind](model) if model else _TAGGERS[kind]()
        return tagger
    except ImportError as error:
        fix = install_command("train")
        raise wrong_option("tagger", name, f"needs the package {kind}", fix) from error
    except (LookupError, OSError, ValueError) as error:  # its data, a package or a folder
        problem = f"needs data that cannot be opened ({' '.join(str(error).split())[:300]})"
        fix = f"python -m nltk.downloader {NLTK_DATA}"
        if kind == "spacy":
            download = f"`python -m spacy download {model or SPACY_MODEL}`"
            fix = f"{download}, or the folder of a saved one in 'spacy:FOLDER'"
        raise wrong_option("tagger", name, problem, fix) from error


class _SpacyTagger(Tagger):
    """Tags by a pipeline of spaCy: an installed package, or a folder."""

    def __init__(self, model: str = SPACY_MODEL) -> None:
        import spacy

        # Parts that tags do not need would take most of the time.
        unneeded = ["parser", "senter", "ner", "lemmatizer", "entity_linker"]
        self._pipeline: Any = spacy.load(model, exclude=unneeded)
        # Pipelines without one, such as blank ones, tag every word with "" and say nothing.
        if not any(token.tag_ for token in self._pipeline("A dog runs.")):
            raise ValueError("the pipeline has no tagger")
        meta = self._pipeline.meta
        # Its content, as a folder of one's own may have a released name and version.
        content = self._pipeline.to_bytes(exclude=["vocab"])
        digest = hashlib.sha256(content).hexdigest()[:16]
        self.fingerprint = (
            f"spacy {version('spacy')} {meta['lang']}_{meta['name']} {meta['version']} {digest}"
        )

    def tags(self, captions: Sequence[str]) -> list[TaggedCaption]:
        tagged = []
        for document in self._pipeline.pipe(captions, batch_size=256):
            spans = []
            for token in document:
                spans.append((token.idx, token.idx + len(token), token.tag_))
            tagged.append(_joined_words(document.text, spans))
        return tagged


class _NltkTagger(Tagger):
    """Tags by NLTK's averaged perceptron, of tokens by its Treebank rules, which need no data."""

    def __init__(self) -> None:
        from nltk.tag.perceptron import PerceptronTagger
        from nltk.tokenize import NLTKWordTokenizer

        self._tagger: Any = PerceptronTagger()
        self._tokenizer: Any = NLTKWordTokenizer()
        # Sorted: a dict of the same weights may be in another order where it was read otherwise.
        weights = sorted((name, sorted(row.items())) for name, row in self._tagger.model.weights.items())
        model = repr((weights, sorted(self._tagger.tagdict.items())))
        digest = hashlib.sha256(model.encode()).hexdigest()[:16]
        self.fingerprint = f"nltk {version('nltk')} {NLTK_DATA} {digest}"

    def tags(self, captions: Sequence[str]) -> list[TaggedCaption]:
        tagged = []
        for caption in captions:
            # Spans, as the tokenizer's own tokens are rewritten: quotes become `` and ''.
            spans = list(self._tokenizer.span_tokenize(caption))
            tokens = [caption[start:end] for start, end in spans]
            tagged_spans = []
            for (start, end), (_, tag) in zip(spans, self._tagger.tag(tokens), strict=True):
                tagged_spans.append((start, end, tag))
            tagged.append(_joined_words(caption, tagged_spans))
        return tagged


class _SceneTagger(Tagger):
    """Tags of the words of drawn scenes: "two small red stars on the left and a blue circle above ..."."""

    fingerprint = "scenes 1"

    def tags(self, captions: Sequence[str]) -> list[TaggedCaption]:
        problems = Problems()
        tagged = []
        for index, caption in enumerate(captions):
            tokens = _WORD.findall(caption)
            words = [token.lower() for token in tokens]
            tags = list(map(_scene_tag, words, [*words[1:], ""]))  # each with the word behind it
            if "" in tags:
                unknown = tokens[tags.index("")]
                problem = f"has the word {unknown!r}, which the tagger of drawn scenes does not know"
                fix = "tag other captions by 'spacy' or 'nltk'"
                problems.add(Problem(at("captions", index), problem, fix))
            tagged.append(list(zip(tokens, tags, strict=True)))
        problems.raise_if_any()
        return tagged


_TAGGERS: dict[str, Any] = {"spacy": _SpacyTagger, "nltk": _NltkTagger, "scenes": _SceneTagger}
_WORD = re.compile(r"\w+|[^\w\s]")
_SCENE_WORDS = {
    "CC": "and",
    "CD": "one two three four five six",
    "DT": "a an the",
    "EX": "there",
    "IN": "of on in at near with above below",
    "JJ": "red yellow green blue purple pink brown black white small little large big plain",
    "NN": "circle square triangle star heart cross picture image drawing background middle corner side",
    "NNS": "circles squares triangles stars hearts crosses",
    "TO": "to",
    "VBP": "are",
    "VBZ": "is",
    ",": ",",
    ".": ". !",
}
"""The words of drawn scenes by their tag, without sides, whose tag depends on the next word."""
_SCENE_TAGS: dict[str, str] = {}
for _tag, _words in _SCENE_WORDS.items():
    _SCENE_TAGS.update(dict.fromkeys(_words.split(), _tag))
_SIDES = frozenset(["left", "right", "top", "bottom"])


def _scene_tag(word: str, following: str) -> str:
    """The tag of a word; "" for an unknown one. A side is an adjective in "the top left corner"."""
    if word in _SIDES:
        return "JJ" if following in _SIDES or following in ("corner", "side") else "NN"
    return _SCENE_TAGS.get(word, "")


def _joined_words(caption: str, spans: Iterable[tuple[int, int, str]]) -> TaggedCaption:
    """Tokens with tags from (start, end, tag); a word that was split between letters is joined again.

    `don't` is `do` and `n't` to taggers, not to BERT: a space between would show that tokens were joined.
    """
    tagged: list[tuple[int, int, str]] = []
    for start, end, tag in spans:
        if caption[start:end].isspace():  # to spaCy a second blank is a token
            continue
        if tagged and caption[start - 1].isalnum() and caption[start].isalnum():
            first, _, tag = tagged.pop()  # the tag of the stem: `do`, not `n't`
            tagged.append((first, end, tag))
        else:
            tagged.append((start, end, tag))
    return [(caption[start:end], tag) for start, end, tag in tagged]
