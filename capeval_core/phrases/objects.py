"""Objects that a text mentions, as CHAIR's codes find them: words, their singulars, and a list of synonyms.

A list of synonyms has a line for each object: its name, then other words for it, between commas and
blanks. Two readings are known. The first makes words singular by their spelling; the second tags words and
looks up their lemmas in WordNet:

    original   https://github.com/LisaAnne/Hallucination, utils/chair.py: word_tokenize of NLTK, singularize
               of pattern.en; so does https://github.com/Maxlinn/CHAIR-metric-standalone, with recall
    opera      https://github.com/shikiw/OPERA, chair.py: NLTK's word_tokenize, pos_tag and WordNetLemmatizer;
               so do HALC (eval/chair.py) and lmms-eval (coco_cap_chair), with the same list of synonyms

The first needs no package here: a token is only compared with the list, so what matters of NLTK and of
pattern are the tokens and singulars that can be in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capeval_core.errors import file_error
from capeval_core.inputs.files import contents, decoded
from capeval_core.project import needs

Reading = Literal["original", "opera"]


class Token(NamedTuple):
    """A word or a mark of a text in lower case, in the form that is looked up, and its place there."""

    form: str
    start: int
    end: int


class Mention(NamedTuple):
    """A word of a text that means an object, and its place in the text."""

    object: str
    word: str
    start: int
    end: int


# ---- words

_MARK = r"""
    \.{2,} | -- | '' | `+
    | [;@\#$%&?!*()\[\]{}<>"«»“”‘’„\u2012-\u2015]
    | [:,](?!\d)  # but not in 10:30 and 1,000
    | \.(?!\s*“$)(?=[\s"();:*@?!'\[{»”’\])}>] | $)  # the end of a sentence
"""
_CLITIC = rf"'(?:s|m|d|ll|re|ve)?(?=\s|$|{_MARK})"
_QUOTE = r"(?<!\w)'(?!(?:s|m|t|d|n|ll|re|ve)\b)(?=\w)"
# Tokens of the Penn Treebank as NLTK 3.10 finds them in each sentence, but for what is no word of an object:
# abbreviations with their full stop, contractions such as "cannot", and what follows two commas in a row.
_TOKEN = re.compile(
    rf"{_MARK} | {_CLITIC} | {_QUOTE} | (?:(?!{_MARK}|{_CLITIC}|{_QUOTE})\S)+ | \S", re.VERBOSE
)

_IRREGULAR = (
    ("men", "man"),
    ("people", "person"),
    ("children", "child"),
    ("geese", "goose"),
    ("kine", "cow"),
)
_ENDINGS = (
    (r"(.)ae$", r"\1a"),
    (r"^oxen", "ox"),
    (r"([ml])ice$", r"\1ouse"),  # mice, and "police", which is no object either way
    (r"(o|bus|x|ch|ss|sh)es$", r"\1"),
    (r"([^aeiouy]|qu)ies$", r"\1y"),
    (r"([aeo]l)ves$", r"\1f"),  # calves
    (r"([nlw]i)ves$", r"\1fe"),  # knives
    (r"s$", ""),
)
_SINGULARS = tuple(
    (re.compile(pattern), replacement) for pattern, replacement in _ENDINGS
)  # the first counts
_UNCHANGED = re.compile(r"(collie|doggie)s$|^scissors$")


@lru_cache(maxsize=1 << 16)
def singular(word: str) -> str:
    """The singular of a word by its spelling, as `singularize` of pattern.en has it where it names an object.

    It knows no plural from a singular: "bus" becomes "bu", so that the original counts buses alone.

    >>> singular("benches"), singular("policemen"), singular("glass"), singular("bus")
    ('bench', 'policeman', 'glas', 'bu')
    """
    if _UNCHANGED.search(word):
        return word
    for plural, singular in _IRREGULAR:
        if word.endswith(plural):
            return word.removesuffix(plural) + singular
    for pattern, replacement in _SINGULARS:
        if pattern.search(word):
            return pattern.sub(replacement, word)
    return word


def original_tokens(text: str) -> list[Token]:
    """Tokens of a text in lower case, each in the singular.

    >>> [token.form for token in original_tokens("two men's dogs, on benches.")]
    ['two', 'man', "'", 'dog', ',', 'on', 'bench', '.']
    """
    return [Token(singular(match[0]), *match.span()) for match in _TOKEN.finditer(text)]


@lru_cache(maxsize=1 << 15)  # tags take a millisecond, and `why` reads the same texts again
def opera_tokens(text: str) -> list[Token]:
    """Tokens of a text in lower case, each as its lemma in WordNet by the tag of its part of speech."""
    import nltk

    words = nltk.word_tokenize(text)
    tagged = nltk.pos_tag(words)
    lemmatizer = nltk.stem.WordNetLemmatizer()
    tokens = []
    end = 0
    for word, tag in tagged:
        # Double quotes come in another form than the text has, and mention nothing.
        start = max(text.find(word, end), end)
        end = min(start + len(word), len(text))
        part_of_speech = {"J": "a", "V": "v", "R": "r"}.get(tag[0], "n")
        tokens.append(Token(lemmatizer.lemmatize(word, part_of_speech), start, end))
    return tokens


_TOKENS: dict[str, Callable[[str], list[Token]]] = {"original": original_tokens, "opera": opera_tokens}
NLTK_DATA = ("punkt_tab", "averaged_perceptron_tagger_eng", "wordnet")


@cache
def singulariser(reading: Reading) -> tuple[str, str]:
    """The tool that makes words singular in a reading, and its version; ValueError: it is not installed."""
    if reading == "original":
        return "pattern", "3.6"
    with needs("nltk", "chair"):
        import nltk
    try:
        opera_tokens("two dogs")  # NLTK names missing data only when it is read
    except LookupError as error:
        missing = re.search(r"nltk\.download\('([\w]+)'\)", str(error))
        lacking = missing[1] if missing else "its data"
        fix = f"python -m nltk.downloader {' '.join(NLTK_DATA)}"
        raise ValueError(f"the variant opera needs data of NLTK ({lacking} is not here): {fix}") from error
    wordnet: Any = nltk.corpus.wordnet
    return "wordnet", f"{wordnet.get_version()}-nltk-{version('nltk')}"


# ---- the objects of words

_AGES = ("baby", "adult")
_ANIMALS = (
    *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    *("animal", "cub"),
)
_VEHICLES = ("jet", "train")
# Two words that mean another object than one of them, or none.
_PAIRS = {"home plate": "home plate", "train track": "train track", "bow tie": "tie", "toilet seat": "toilet"}


_MOST_WORDS = 4  # of a name; the original's longest has three, and captions have more
# Marks of JSON, tables and code, which people pass by mistake.
_NEVER_IN_WORDS = re.compile(r"[{}\[\]\"\t;=<>]")


class ObjectWords:
    """The words of objects, and the objects that a text mentions.

    text: of a list of synonyms: in each line the name of an object, then other words for it, separated by
    ", ". A word that begins with a blank, as two in the original's list do, is never found, as in all codes.

    >>> words = ObjectWords("dog, puppy\\ntraffic light\\nperson, man")
    >>> [mention.object for mention in words.mentions("Two men and a puppy at the traffic lights.")]
    ['person', 'dog', 'traffic light']
    """

    def __init__(self, text: str, reading: Reading = "original") -> None:
        self.objects: list[str] = []
        self.object_of: dict[str, str] = {}
        for line in text.splitlines():
            if line.strip():
                words = line.strip().split(", ")
                self.objects.append(words[0])
                # A word in two lines means the later object, as in the original's own dict.
                self.object_of |= dict.fromkeys(words, words[0])
        self.reading = reading
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self._pairs = self._pairs_of(self.object_of)
        self._names = {word.strip().lower(): name for word, name in self.object_of.items()}

    @staticmethod
    def _pairs_of(words: Iterable[str]) -> dict[str, str]:
        """The form that each pair of words has as one token."""
        pairs: dict[str, str] = {}
        for word in words:
            if len(word.split()) == 2:
                pairs[word.strip()] = word.strip()
        pairs |= _PAIRS
        # "baby dog" is a dog, where "baby" alone is a person.
        for age in _AGES:
            for animal in _ANIMALS:
                pairs[f"{age} {animal}"] = animal
        for vehicle in _VEHICLES:
            pairs[f"passenger {vehicle}"] = vehicle
        pairs["wine glas"] = "wine glass"  # as the original's singular has it
        return pairs

    @classmethod
    def of_file(cls, path: str | PathLike[str], reading: Reading = "original") -> ObjectWords:
        """The words of a list in a file. FileError where it cannot be read or is not such a list."""
        place = Path(path)
        fix = "write a line for each object: its name, then its synonyms, separated by commas and blanks"
        text = decoded(place, contents(place))
        for number, line in enumerate(text.splitlines(), 1):
            for word in line.strip().split(", "):
                if len(word.split()) > _MOST_WORDS or _NEVER_IN_WORDS.search(word):
                    problem = f"line {number} has {word[:40]!r}, which is not a name of an object"
                    raise file_error(place, problem, fix)
        words = cls(text, reading)
        if not words.objects:
            raise file_error(place, "names no object", fix)
        return words

    def name(self, text: str) -> str | None:
        """The object that a text is a name or a synonym of; None for any other text.

        >>> ObjectWords("bus, coach").name("Bus")
        'bus'
        """
        return self._names.get(text.strip().lower())

    def named(self, text: str) -> list[str]:
        """The objects of a text about an image, which is the name of one or mentions some."""
        name = self.name(text)
        return [mention.object for mention in self.mentions(text)] if name is None else [name]

    def mentions(self, text: str) -> list[Mention]:
        """The objects that a text mentions, in order and as often; places are those in lower case."""
        tokens = self._paired(_TOKENS[self.reading](text.lower()))
        forms = {token.form for token in tokens}
        if {"toilet", "seat"} <= forms:  # "the seat of the toilet" is not a chair
            tokens = [token for token in tokens if token.form != "seat"]
        mentions = []
        for token in tokens:
            object = self.object_of.get(token.form)
            if object is not None:
                mentions.append(Mention(object, token.form, token.start, token.end))
        return mentions

    def _paired(self, tokens: Sequence[Token]) -> list[Token]:
        """The tokens, two of which are one where they are a pair of words."""
        paired = []
        place = 0
        while place < len(tokens):
            token = tokens[place]
            place += 1
            if place < len(tokens):
                form = self._pairs.get(f"{token.form} {tokens[place].form}")
                if form is not None:
                    token = Token(form, token.start, tokens[place].end)
                    place += 1
            paired.append(token)
        return paired
