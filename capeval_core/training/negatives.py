"""Negative captions, which UMIC is trained to score below the captions of an image.

Five kinds, from the captions that people wrote: words substituted, a caption of another image, a caption of a
similar image ("hard"), words repeated or removed, and words in another order.

Source: Lee et al., "UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning", ACL 2021,
https://arxiv.org/abs/2106.14019, section 3.2. Where its released code leaves the original caption unchanged,
writes an empty one or never ends, these functions draw from the same law, given that the negative differs
from the original and holds a word; where no such negative exists they return None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from capeval_core.errors import Problem, Problems
from capeval_core.limits import LIMITS
from capeval_core.phrases.ngrams import mean_cider_vectors
from capeval_core.phrases.ptb import ptb_tokens

FOIL = "foil"
"""The kind of the captions with one other word."""
TOP = 3  # similar images of which hard negatives are drawn
CONTENT = ("V", "N", "J")  # how the Penn tags of verbs, nouns and adjectives begin
SUBSTITUTED = 0.30  # of these, as in the paper; the released code takes integers 0 to 99 above 70: 0.29
TOUCHED = 0.30  # of these, which are repeated or removed
REPEATED = 0.5  # of those that are touched; the others are removed
SHUFFLED = 0.5  # of the captions of another word order; of the others words are left out
KEPT = 0.7  # of the words, where words are left out
TRIES = 64  # before what cannot fail is taken; its chance is below 1e-15 for every caption
BEFORE = 2  # words before a word that tell its place; of those behind, one does
_Item = TypeVar("_Item", bound=Hashable)
Tagged = Iterable[Sequence[tuple[str, str]]]
Similar = dict[str, list[str]]  # of each image the most similar ones, in order
Negative = list[str] | None  # None where a caption has none


class WordTable:
    """Words by key, such as a tag, with their counts, from which others are drawn."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        # By key: its words, the end of each word's stretch, and the stretch of each word in any case.
        #
        #     words    Dog    dog      men
        #     counts    1      3        2
        #     ends      1      4        6       a draw of 0 ... 5 falls into one word's stretch
        #     spans   dog: 0 ... 4   men: 4 ... 6
        self._by_key: dict[str, tuple[list[str], list[int], dict[str, tuple[int, int]]]] = {}
        for key, word_counts in counts.items():
            # Words that differ in case only are neighbours, so that all of them are passed over at once.
            words = sorted(word_counts, key=lambda word: (word.casefold(), word))
            ends: list[int] = []
            spans: dict[str, tuple[int, int]] = {}
            end = 0
            for word in words:
                folded = word.casefold()
                start, _ = spans.get(folded, (end, end))
                end += word_counts[word]
                ends.append(end)
                spans[folded] = start, end
            self._by_key[key] = words, ends, spans

    def has_other(self, key: str, word: str) -> bool:
        """True if this key has another word that differs in more than case."""
        _, ends, spans = self._by_key.get(key, ([], [0], {}))
        start, end = spans.get(word.casefold(), (0, 0))
        return end - start < ends[-1]

    def draw(self, key: str, word: str, rng: np.random.Generator) -> str:
        """A word of this key other than `word`, by frequency, where there is one."""
        words, ends, spans = self._by_key[key]
        start, end = spans.get(word.casefold(), (0, 0))
        # Each word is a stretch of 0 ... total, as long as its count; the original's stretch is jumped over.
        place = int(rng.integers(ends[-1] - (end - start)))
        if place >= start:
            place += end - start
        return words[bisect_right(ends, place)]


def _words_by_tag(tagged: Tagged) -> WordTable:
    """Verbs, nouns and adjectives by their tag, without punctuation and numbers in digits."""
    counts: dict[str, Counter[str]] = {}
    for caption in tagged:
        for token, tag in caption:
            if tag.startswith(CONTENT) and any(map(str.isalpha, token)):
                counts.setdefault(tag, Counter())[token] += 1
    return WordTable(counts)


def _words_by_place(tagged: Tagged) -> WordTable:
    """Words by place: their tag, the two words before and the one behind. Places of one word are left out."""
    counts: dict[str, Counter[str]] = {}
    for caption in tagged:
        tokens = [token for token, _ in caption]
        tags = [tag for _, tag in caption]
        for index, place in _places(tokens, tags).items():
            counts.setdefault(place, Counter())[tokens[index]] += 1
    # Of a large set most places have one word, which has no substitute.
    several = {place: words for place, words in counts.items() if len(words) > 1}
    return WordTable(several)


def _places(tokens: Sequence[str], tags: Sequence[str]) -> dict[int, str]:
    """The place of each verb, noun, adjective, number and preposition, by its index."""
    places = {}
    for index, tag in enumerate(tags):
        if tag.startswith((*CONTENT, "CD")) or tag == "IN":
            before = tokens[max(index - BEFORE, 0) : index]
            after = tokens[index + 1 : index + 2]
            # The empty text marks the word's own place: "a dog _" is not "a _ dog". No token has a tab.
            places[index] = "\t".join([tag, *map(str.casefold, before), "", *map(str.casefold, after)])
    return places


def substitution(
    tokens: Sequence[str],
    tags: Sequence[str],
    table: WordTable,
    rng: np.random.Generator,
    *,
    probability: float = SUBSTITUTED,
) -> Negative:
    """The caption with verbs, nouns or adjectives substituted by words of exactly the same tag, by frequency.

    Each that has a substitute in other letters than its own is substituted independently, given that one is.
    """
    # The released code compares the drawn word with its tag, so that the word itself may come again, and
    # ends never where no word is eligible.
    eligible = []
    for index, (token, tag) in enumerate(zip(tokens, tags, strict=True)):
        if tag.startswith(CONTENT) and table.has_other(tag, token):
            eligible.append(index)
    if not eligible:
        return None
    negative = list(tokens)
    for index in _random_subset(eligible, probability, rng):
        negative[index] = table.draw(tags[index], tokens[index], rng)
    return negative


def repetition_removal(tokens: Sequence[str], tags: Sequence[str], rng: np.random.Generator) -> Negative:
    """The caption with verbs, nouns or adjectives doubled or removed, at equal odds.

    Each is touched independently, given that one is, that the caption changes and that a word is left.
    """
    eligible = [index for index, tag in enumerate(tags) if tag.startswith(CONTENT)]
    if not eligible:
        return None
    original = list(tokens)
    # Drawn again where nothing is left, or where "the big big dog" lost one "big" and doubled the other.
    for _ in range(TRIES):
        touched = _random_subset(eligible, TOUCHED, rng)
        draws = rng.random(len(touched)).tolist()
        copies = {}
        for index, draw in zip(touched, draws, strict=True):
            copies[index] = 2 if draw < REPEATED else 0
        negative: list[str] = []
        for index, token in enumerate(tokens):
            negative += [token] * copies.get(index, 1)
        if negative and not _same(negative, original):
            return negative
    # What cannot fail: one of the words is doubled.
    return [*original[: touched[0] + 1], *original[touched[0] :]]


def word_order(tokens: Sequence[str], rng: np.random.Generator) -> Negative:
    """The caption shuffled, so that it differs, or, half of the times, with words left out.

    Each word is left out independently, given that one is and one stays; always where all words are equal.
    """
    if len(tokens) < 2:
        return None
    original = list(tokens)
    if rng.random() < SHUFFLED and not _same(original, [original[0]] * len(original)):
        for _ in range(TRIES):
            negative = [original[index] for index in rng.permutation(len(original)).tolist()]
            if not _same(negative, original):
                return negative
        # What cannot fail, as the words are not all equal: one step round.
        return [*original[1:], original[0]]
    removed = set(_random_subset(range(len(original)), 1 - KEPT, rng, most=len(original) - 1))
    return [token for index, token in enumerate(original) if index not in removed]


def _random_subset(
    items: Sequence[int], probability: float, rng: np.random.Generator, *, most: int | None = None
) -> list[int]:
    """Items drawn independently, at least one: first how many, by the truncated binomial law, then which."""
    most = len(items) if most is None else most
    # The same law as drawing each item until one is drawn, in one step however small the probability is.
    number = 1 + bisect_right(_count_law(len(items), probability, most), rng.random())
    # One item is the usual case, which needs no permutation.
    if number == 1:
        return [items[int(rng.integers(len(items)))]]
    indices = sorted(rng.permutation(len(items))[:number].tolist())
    return [items[index] for index in indices]


@lru_cache(maxsize=4096)
def _count_law(trials: int, probability: float, most: int) -> tuple[float, ...]:
    """P(1), P(1 or 2), ... of a binomial count, given that it is from 1 to `most`; without the last, 1."""
    count = np.arange(1, most + 1)
    log = count * np.log(probability) + (trials - count) * np.log1p(-probability)
    log -= gammaln(count + 1) + gammaln(trials - count + 1)
    # Less the largest, since all of them may underflow for captions of hundreds of words.
    weights = np.exp(log - log.max())
    return tuple((np.cumsum(weights) / weights.sum())[:-1].tolist())


def _same(tokens: Sequence[str], original: Sequence[str]) -> bool:
    """True if two captions have the same words, whatever their case."""
    return [*map(str.casefold, tokens)] == [*map(str.casefold, original)]


def _one_word_foil(
    tokens: Sequence[str], tags: Sequence[str], table: WordTable, rng: np.random.Generator
) -> Negative:
    """The caption with one word replaced by one that other captions have in such a place, by frequency.

    It may mean the same, but few of many foils are true.
    """
    places = _places(tokens, tags)
    eligible = []
    for index, place in places.items():
        if table.has_other(place, tokens[index]):
            eligible.append(index)
    if not eligible:
        return None
    index = eligible[int(rng.integers(len(eligible)))]
    foil = list(tokens)
    foil[index] = table.draw(places[index], tokens[index], rng)
    return foil


class Group(NamedTuple):
    """A caption and its negatives, all for one image, the positive first, and the kind of each."""

    image: str
    captions: tuple[str, ...]
    kinds: tuple[str, ...]


class NegativeSampler:
    """Draws the group of each caption of a training set, from seed, epoch and index alone.

    No negative equals a caption of its image, whatever the white space and case. Where a caption has none
    of a kind, one of another image takes the place, and its kind is "random". For a hard negative one of the
    lists of similar images is drawn, then one of its top 3 that is in the set, then one of its captions.
    """

    def __init__(
        self,
        images: Sequence[str],
        captions: Sequence[str],
        tagged: Sequence[Sequence[tuple[str, str]]],
        *,
        similar: Sequence[Mapping[str, Sequence[str]]] = (),
        random_negatives: int = 1,
        foils: int = 0,
        seed: int = 0,
    ) -> None:
        self.random_negatives = random_negatives
        self.foils = foils
        self.seed = seed
        self._captions = [" ".join(caption.split()) for caption in captions]
        self._ids, self._image = _numbered(images)
        self._captions_of: list[list[int]] = [[] for _ in self._ids]  # by the image's number
        for index, image in enumerate(self._image.tolist()):
            self._captions_of[image].append(index)
        self._text = _numbered(map(_key, captions))[1]
        self._check_others()
        self._table = _words_by_tag(tagged)
        self._places = _words_by_place(tagged) if foils else WordTable({})
        # Flat arrays: millions of tuples would take much memory. Those of a caption i are
        # _tokens[_offsets[i]:_offsets[i + 1]], by their numbers in _words, and its tags alike.
        self._words, self._tokens = _numbered(_column(tagged, 0))
        self._tag_names, self._tags = _numbered(_column(tagged, 1))
        self._offsets = np.cumsum([0, *map(len, tagged)])
        self._similar = list(map(self._numbered_tops, similar))

    def _numbered_tops(self, similar: Mapping[str, Sequence[str]]) -> list[list[int]]:
        """For each image the numbers of the 3 most similar ones, without those that are not in the set."""
        number = {image_id: index for index, image_id in enumerate(self._ids)}
        tops = []
        for image_id in self._ids:
            # The 3 of the whole list, of which a training set may hold fewer: a fourth is not similar enough.
            neighbours = [neighbour for neighbour in similar.get(image_id, ()) if neighbour != image_id]
            tops.append([number[neighbour] for neighbour in neighbours[:TOP] if neighbour in number])
        return tops

    def __len__(self) -> int:
        return len(self._captions)

    def group(self, epoch: int, index: int) -> Group:
        """The positive, random negatives, hard, substitution, word order, repetition or removal, foils."""
        rng = np.random.default_rng([self.seed, epoch, index])
        image = int(self._image[index])
        # What is true of the image is not a negative. Captions of the set are compared by their numbers,
        # changed ones, which have none, by their keys.
        true_texts: set[int] = set()
        true_keys: set[str] = set()
        for caption in self._captions_of[image]:
            true_texts.add(int(self._text[caption]))
            true_keys.add(_key(self._captions[caption]))
        part = slice(self._offsets[index], self._offsets[index + 1])
        tokens = [self._words[word] for word in self._tokens[part]]
        tags = [self._tag_names[tag] for tag in self._tags[part]]
        spelling = _Spelling(self._captions[index], tokens)

        captions = [self._captions[index]]
        kinds = ["positive", *["random"] * self.random_negatives, "hard"]
        for _ in range(self.random_negatives):
            captions.append(self._captions[self._random(true_texts, rng)])
        captions.append(self._captions[self._hard(image, true_texts, rng)])
        changes: list[tuple[str, Callable[[], Negative]]] = [
            ("substitution", lambda: substitution(tokens, tags, self._table, rng)),
            ("word_order", lambda: word_order(tokens, rng)),
            ("repetition_removal", lambda: repetition_removal(tokens, tags, rng)),
            *[(FOIL, lambda: _one_word_foil(tokens, tags, self._places, rng))] * self.foils,
        ]
        for kind, change in changes:
            negative = self._changed(change, spelling, true_keys)
            if negative is None:
                captions.append(self._captions[self._random(true_texts, rng)])
                kinds.append("random")
            else:
                captions.append(negative)
                kinds.append(kind)
        return Group(self._ids[image], tuple(captions), tuple(kinds))

    def _changed(
        self, change: Callable[[], Negative], spelling: _Spelling, true_keys: set[str]
    ) -> str | None:
        """A changed caption that is not a caption of the image, if there is one."""
        for _ in range(TRIES):
            tokens = change()
            if tokens is None:  # there is none of this kind, however often it is drawn
                return None
            text = spelling.text(tokens)
            if _key(text) not in true_keys:
                return text
        return None

    def _random(self, true_texts: set[int], rng: np.random.Generator) -> int:
        """The index of a caption that is not the image's own, uniformly."""
        for _ in range(TRIES):
            index = int(rng.integers(len(self)))
            if int(self._text[index]) not in true_texts:
                return index
        # Nearly all captions are true of this image, as in a set of few images: drawn among the others.
        false_captions = np.flatnonzero(~np.isin(self._text, list(true_texts)))
        return int(false_captions[rng.integers(len(false_captions))])

    def _hard(self, image: int, true_texts: set[int], rng: np.random.Generator) -> int:
        """The index of a caption of a similar image; of any other image where there is none."""
        if self._similar:
            top = self._similar[int(rng.integers(len(self._similar)))][image]
            # The image first and then its caption, so that an image of many captions is not drawn more often.
            candidates = []
            for neighbour in top:
                false_captions = self._false_captions(neighbour, true_texts)
                if false_captions:
                    candidates.append(false_captions)
            if candidates:
                captions = candidates[int(rng.integers(len(candidates)))]
                return captions[int(rng.integers(len(captions)))]
        return self._random(true_texts, rng)

    def _false_captions(self, image: int, true_texts: set[int]) -> list[int]:
        """The captions of an image whose texts are not among the true ones of another image."""
        return [caption for caption in self._captions_of[image] if int(self._text[caption]) not in true_texts]

    def _check_others(self) -> None:
        """Refuse images for which no caption of another image differs from their own."""
        total = np.bincount(self._text)
        problems = Problems()
        for image, name in enumerate(self._ids):
            texts_of_image = np.unique(self._text[self._captions_of[image]])
            if total[texts_of_image].sum() == len(self):
                problem = f"have no caption of another image than {name!r} that differs from its own"
                problems.add(Problem("captions", problem, "add images with other captions"))
        problems.raise_if_any()


class _Spelling:
    """The spaces between the tokens of a caption, which "a man's" lacks, also where tokens are reordered."""

    def __init__(self, caption: str, tokens: Sequence[str]) -> None:
        self._pairs: dict[tuple[str, str], bool] = {}  # whether the second touches the first
        # Punctuation that touches the word before or after it does so wherever it is put.
        self._before: set[str] = set()
        self._after: set[str] = set()
        end = 0
        previous = ""
        for token in tokens:
            start = caption.index(token, end)
            touches = start == end
            if previous:
                self._pairs.setdefault((previous, token), touches)
                if touches and not token[0].isalnum():
                    self._before.add(token)
                elif touches and not previous[-1].isalnum():
                    self._after.add(previous)
            end = start + len(token)
            previous = token

    def text(self, tokens: Sequence[str]) -> str:
        """The tokens as a text."""
        text = ""
        previous = ""
        for token in tokens:
            touches = self._pairs.get((previous, token), token in self._before or previous in self._after)
            text += token if touches or not previous else f" {token}"
            previous = token
        return text


def similar_by_features(images: Sequence[str], features: ArrayLike, *, top: int = TOP) -> Similar:
    """For each image the `top` ones of the highest cosine of features (n, d), without equal features."""
    vectors = np.asarray(features, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    # A copy of an image under another id is not a similar image: its captions are true of both.
    _, equal = _numbered(row.tobytes() for row in vectors)
    return _lists(list(images), equal.astype(np.int64), lambda rows: unit[rows] @ unit.T, top)


def similar_by_captions(images: Sequence[str], captions: Sequence[str], *, top: int = TOP) -> Similar:
    """For each image the `top` ones of the highest mean CIDEr of its captions with theirs, if not the same.

    The rarity of an n-gram is measured by the images whose captions hold it.
    """
    pools: dict[str, list[tuple[str, ...]]] = {}
    for image, caption in zip(images, captions, strict=True):
        pools.setdefault(image, []).append(tuple(ptb_tokens(caption)))
    vectors = mean_cider_vectors(list(pools.values())).tocsc()
    # N-grams of many images make up most of the work, which is less in a dense product.
    frequent = np.diff(vectors.indptr) * LIMITS.frequent > len(pools)
    dense = vectors[:, frequent].toarray().astype(np.float32)
    rare = vectors[:, ~frequent].astype(np.float32).tocsr()
    across = rare.T.tocsr()

    def similarity(rows: slice) -> NDArray[np.float32]:
        products: NDArray[np.float32] = (rare[rows] @ across).toarray()
        products += dense[rows] @ dense.T
        products[products <= 0] = -np.inf  # no n-gram in common: not similar, even where nothing else is
        return products

    sorted_pools = [tuple(sorted(pool)) for pool in pools.values()]
    _, equal = _numbered(sorted_pools)
    return _lists(list(pools), equal.astype(np.int64), similarity, top)


def _lists(
    images: list[str], equal: NDArray[np.int64], similarity: Callable[[slice], NDArray[np.float32]], top: int
) -> Similar:
    """The most similar images of each; of equals the earlier. equal: a number that the same images share."""
    # So many rows at a time: the whole matrix of 100,000 images would be 40 GB.
    size = max(1, LIMITS.similarities // max(1, len(images)))
    lists = {}
    for start in range(0, len(images), size):
        rows = slice(start, start + size)
        scores = similarity(rows)
        scores[equal[rows, None] == equal] = -np.inf
        for image, row in zip(images[rows], scores, strict=True):
            # All that are at least as similar as the last one of the list, then in order.
            least = np.partition(row, -top)[-top] if top < len(row) else -np.inf
            nearest = np.flatnonzero((row >= least) & (row > -np.inf))
            # Stable, so that equals come in the order of the images on every processor.
            order = nearest[np.argsort(-row[nearest], kind="stable")][:top]
            lists[image] = [images[index] for index in order.tolist()]
    return lists


def _column(tagged: Tagged, place: int) -> Iterator[str]:
    """The tokens (0) or the tags (1) of all captions, one after the other."""
    for caption in tagged:
        for pair in caption:
            yield pair[place]


def _numbered(items: Iterable[_Item]) -> tuple[list[_Item], NDArray[np.int32]]:
    """Different items, and the number of each item."""
    numbers: dict[_Item, int] = {}
    # A generator: millions of tokens never lie in a list of Python's integers.
    flat = np.fromiter((numbers.setdefault(item, len(numbers)) for item in items), dtype=np.int32)
    return list(numbers), flat


def _key(text: str) -> str:
    """A text that equal captions share, whatever their white space and case."""
    return "".join(text.split()).casefold()
