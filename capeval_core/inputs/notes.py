"""Notes: what is odd about input that is scored as it is, one sentence each, with a count.

A note changes no number. It is a `Note`, a warning of a category of its own, so that Python shows it without
any setup and a user can silence or catch it by that category; the command line prints `note: ...`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from capeval_core.errors import note, setting, warn
from capeval_core.inputs.images import DEEP, TURNED, Source, Upright
from capeval_core.inputs.samples import Samples

_FEWEST = 3  # captions that are equal by chance no more
_TOKENS = re.compile(
    r"<\|[^<>|\s][^<>|]{0,40}\|>"  # <|im_end|>, <|endoftext|>
    r"|</?(?:s|think|answer|unk|pad|bos|eos|mask|image|video|im_start|im_end|startoftext|endoftext"
    r"|start_of_turn|end_of_turn|end_of_utterance|fake_token_around_image)>"
    r"|<0x[0-9A-F]{2}>|<loc_?\d+>|<<SYS>>|\[/?INST\]|\[unused\d+\]|\[(?:CLS|SEP|PAD|UNK|MASK)\]"
    r"|\bASSISTANT:|^\s*(?:###\s*)?(?:[Aa]ssistant|Response)\s*[:\n]"
    r"|^\s*\{\s*\"\w{1,40}\"\s*:"  # an answer in JSON, as text
    r"|```|▁|(?<=[a-z])Ġ(?=[a-z])"
)
"""Marks of chat templates and of tokenizers, which no reader of a caption is to see."""
_MARKED = re.compile(r"[<\[{`Ġ▁]|assistant|response", re.IGNORECASE)
"""What a text with a mark has, found faster."""
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"  # Japanese, Chinese
    "|[\U00020000-\U0003ffff]"
)
"""Characters of scripts that put no blanks between words."""
_LONGEST_WORD = 8  # characters; of a segmented text the mean of its words lies far below
_FIRST_FOREIGN = "\u0250"  # the letters before it are Latin
_LATIN = re.compile("[\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a]")  # of Vietnamese, and of full width


class Notes:
    """Counts of what is odd about captions, references and images, over any number of batches.

    metrics: the classes that score them (`CaptionMetric`). `tell()` says what was counted, once.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._of_words: list[str] = []
        self._readers: dict[str, Sequence[str]] = {}
        for metric in metrics:
            if metric.counts_words:
                self._of_words.append(metric.title)
            if metric.languages:
                self._readers[metric.title] = metric.languages
        self._captions = _EqualTexts()
        self._references = _EqualTexts()
        self._foreign_count = 0
        self._marked_count = 0
        self._marks: Counter[str] = Counter()
        self._unspaced: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()
        self._images: dict[str | Source[Any], set[str]] = {}

    def add(self, samples: Samples) -> None:
        """Count samples, whose images have been read."""
        self.add_texts(samples.captions, samples.references or [])
        self.add_images(samples)

    def add_images(self, samples: Samples) -> None:
        """Count images that have been read; equal ones, and one that several metrics share, once."""
        sources = set()  # which captions of one image share
        for image in samples.images:
            if image.medium == "image":
                sources.add(image.source)
        for source in sources:
            # An image and its upright view are one file: several metrics may take either.
            stored = source.source if isinstance(source, Upright) else source
            self._images.setdefault(stored.known_key or stored, set()).update(source.traits)

    def add_texts(self, captions: Sequence[str], references: Iterable[Sequence[str]] = ()) -> None:
        """Count captions, and the references of each."""
        for caption in captions:
            self._captions.add(caption)
            if _MARKED.search(caption):
                marks = set(map(str.strip, _TOKENS.findall(caption)))
                self._marks.update(marks)
                self._marked_count += bool(marks)
            if self._readers and not caption.isascii():
                self._foreign_count += _is_foreign(caption)
        # References only matter to metrics that count words: others read them as they read captions.
        if self._of_words:
            for texts in references:
                for text in texts:
                    self._references.add(text)
                self._count_unspaced("references", texts)
            self._count_unspaced("captions", captions)

    def _count_unspaced(self, kind: str, texts: Sequence[str]) -> None:
        self._texts[kind] += len(texts)
        for text in texts:
            if not text.isascii():
                self._unspaced[kind] += _is_unspaced(text)

    def tell(self, whose: str = "") -> None:
        """Note what was counted; `whose`: of which system, where there are several."""
        for text in self._about_texts():
            note(f"{whose}{text}")
        tell_of_images(Counter(chain.from_iterable(self._images.values())), len(self._images))

    def _about_texts(self) -> list[str]:
        notes = []
        caption_count = self._captions.count
        for kind, texts in (("captions", self._captions), ("references", self._references)):
            if texts.count >= _FEWEST and texts.are_equal and texts.first:
                notes.append(f"all {texts.count:,} {kind} are the same text, {_shortened(texts.first)}")
        if self._marked_count:
            most_common = [f"{mark!r} in {count:,}" for mark, count in self._marks.most_common(5)]
            marks = ", ".join(most_common)
            hold = f"{self._marked_count:,} of {caption_count:,} captions hold"
            notes.append(f"{hold} marks of a chat template or a tokenizer, scored as text ({marks})")
        unspaced = []
        for kind, count in sorted(self._unspaced.items()):
            if count:
                unspaced.append(f"{count:,} of {self._texts[kind]:,} {kind}")
        if unspaced:
            compare = "compare" if len(self._of_words) > 1 else "compares"
            why = f"{', '.join(self._of_words)} {compare} words between blanks"
            are = f"{' and '.join(unspaced)} are Chinese, Japanese or Thai without blanks"
            notes.append(f"{are}, and {why}: segment them first, captions and references alike")
        if self._foreign_count:
            languages = dict.fromkeys(chain.from_iterable(self._readers.values()))
            are = f"{self._foreign_count:,} of {caption_count:,} captions are in another script than Latin"
            reads = f"the text encoder of {', '.join(self._readers)} reads {' and '.join(languages)}"
            notes.append(f"{are}, and {reads}")
        return notes


@dataclass
class _EqualTexts:
    """A count of texts, with the first one and whether all are equal to it."""

    count: int = 0
    first: str | None = None
    are_equal: bool = True

    def add(self, text: str) -> None:
        self.count += 1
        if self.first is None:
            self.first = text.strip()
        elif self.are_equal:
            self.are_equal = text.strip() == self.first


def tell_of_images(traits: Mapping[str, int], total: int) -> None:
    """Say how many of so many images lie on their side, or have more bits than are scored."""
    turned_count = traits.get(TURNED, 0)
    deep_count = traits.get(DEEP, 0)
    if turned_count:
        count = f"{turned_count:,} of {total:,} images lie on their side or head by their EXIF orientation"
        fix = setting("exif", "turn", "turn them with ")
        note(f"{count}, and are scored as they are stored: {fix}")
    if deep_count:
        count = f"{deep_count:,} of {total:,} images have 16 bits a channel"
        fix = "scale them to 8 bits if they do not use all 16"
        warn(f"{count}, of which the upper 8 are scored: {fix}")


def _is_unspaced(text: str) -> bool:
    """Whether a text has words without blanks between, by their mean length in such characters."""
    character_count = 0
    word_count = 0
    for word in text.split():
        length = len(_UNSPACED.findall(word))
        character_count += length
        word_count += length > 0  # names in Latin letters are between blanks anyway
    return character_count >= _LONGEST_WORD * word_count > 0


def _is_foreign(text: str) -> bool:
    """Whether most letters of a text are of another script than Latin."""
    letters = list(filter(str.isalpha, text))
    foreign_count = 0
    for letter in letters:
        foreign_count += letter >= _FIRST_FOREIGN and not _LATIN.match(letter)
    return 2 * foreign_count > len(letters)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
