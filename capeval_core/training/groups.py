"""Groups for a ranking loss: a caption of an image, and the negatives that the image should prefer it to.

Source: Lee et al., "UMIC", ACL 2021, https://arxiv.org/abs/2106.14019, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.errors import Problem, Problems, wrong_option
from capeval_core.limits import LIMITS
from capeval_core.phrases.consensus import mean_cider_vectors
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.training.negatives import (
    TRIES,
    WordTable,
    one_word_foil,
    place_table,
    repetition_removal,
    substitution,
    word_order,
)
from capeval_core.training.tags import tag_word_counts

TOP = 3
"""Similar images of which hard negatives are drawn."""


def similar_by_features(
    images: Sequence[str], features: ArrayLike, *, top: int = TOP
) -> dict[str, list[str]]:
    """The images of the highest cosine to each image.

    Args:
        images: ids, each once.
        features: of each image, (n, d), finite.
        top: images per list.

    Returns:
        Image id -> ids, the most similar first; of equal cosines (but for rounding) the earlier image.
        An image with exactly the same features is not similar but the same, and left out. Fewer ids where
        there are fewer others.

    Raises:
        ValueError: other lengths, an id twice, features that are not finite.

    >>> similar_by_features("abc", [[1, 0], [1, 0.1], [0, 1]], top=2)
    {'a': ['b', 'c'], 'b': ['a', 'c'], 'c': ['b', 'a']}
    """
    vectors = np.asarray(features, dtype=np.float32)
    problems = Problems()
    if vectors.ndim != 2 or len(vectors) != len(images):
        found = f"of shape {vectors.shape}"
        problems.add(Problem("features", None, found, f"expected one row for each of {len(images)} images"))
    else:
        for index in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            problems.add(Problem("features", index, "not finite", "compute the features of this image again"))
    first: dict[str, int] = {}
    for index, image in enumerate(images):
        if first.setdefault(image, index) != index:
            problems.add(Problem("images", index, f"{image!r} again", "give each image once"))
    problems.raise_if_any()
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    equal = _numbered(row.tobytes() for row in vectors)[1].astype(np.int64)
    return _lists(list(images), equal, lambda rows: unit[rows] @ unit.T, top)


def similar_by_captions(
    images: Sequence[str], captions: Sequence[str], *, top: int = TOP
) -> dict[str, list[str]]:
    """The images whose captions have the highest CIDEr with those of each image.

    The similarity of two images is the mean CIDEr (from 0 to 10) of each caption of one with each caption of
    the other; how rare an n-gram is, is measured by the images whose captions hold it.

    Args:
        images: the id of the image of each caption; those of an image need not follow each other.
        captions: the captions.
        top: images per list.

    Returns:
        Image id -> ids, the most similar first; of equal similarities (but for rounding) the earlier
        image. An image with exactly the same captions is left out, and so are images without any n-gram in
        common.

    >>> captions = ["two dogs run", "dogs run fast", "a red bus", "a red train"]
    >>> similar_by_captions("abcd", captions, top=1)
    {'a': ['b'], 'b': ['a'], 'c': ['d'], 'd': ['c']}
    """
    if len(images) != len(captions):
        found = f"len(images)={len(images)} but len(captions)={len(captions)}: give the image of each caption"
        raise Problems([found]).error()
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
        products[products <= 0] = -np.inf
        return products

    equal = _numbered(tuple(sorted(pool)) for pool in pools.values())[1].astype(np.int64)
    return _lists(list(pools), equal, similarity, top)


def _lists(
    images: list[str],
    equal: NDArray[np.int64],
    similarity: Callable[[slice], NDArray[np.float32]],
    top: int,
) -> dict[str, list[str]]:
    """The most similar images of each image, block by block.

    equal: a number per image, which only equal images share.
    similarity: of the images of a slice to all, (m, n); -inf where there is none.
    """
    size = max(1, LIMITS.similarities // max(1, len(images)))
    lists = {}
    for start in range(0, len(images), size):
        rows = slice(start, start + size)
        scores = similarity(rows)
        scores[equal[rows, None] == equal] = -np.inf
        for image, row in zip(images[rows], scores, strict=True):
            # All that are at least as similar as the last one of the list, then in order.
            least = np.partition(row, -top)[-top] if top < len(row) else -np.inf
            near = np.flatnonzero((row >= least) & (row > -np.inf))
            order = near[np.argsort(-row[near], kind="stable")][:top]
            lists[image] = [images[index] for index in order.tolist()]
    return lists


KINDS = ("random", "hard", "substitution", "word_order", "repetition_removal")
"""The kinds of negative, in the order of a group."""
FOIL = "foil"
"""The kind of the captions with one other word."""


class Group(NamedTuple):
    """A caption and its negatives, all for one image.

    image: the image's id. captions: the positive, then the negatives; one space between words at most.
    kinds: of each caption; "positive", then those of `KINDS`.
    """

    image: str
    captions: tuple[str, ...]
    kinds: tuple[str, ...]


class NegativeSampler:
    """Draws the group of each caption of a training set.

    A group depends on (seed, epoch, index) alone, so that a training goes on exactly where it was stopped, in
    any number of workers. No negative equals a caption of its image, whatever the white space and case. Where
    a caption has no negative of a kind (none of its words can be substituted, say), a caption of another
    image takes the place, and `Group.kinds` says "random" there.

    Args:
        images: the id of the image of each caption.
        captions: the captions; those of an image need not follow each other.
        tagged: their tokens with Penn tags, from a `Tagger`.
        similar: lists of similar images, image id -> ids, the most similar first (`similar_by_features`,
            `similar_by_captions`). One of the lists is drawn with equal odds for each hard negative, of its
            top 3 images one that is in the training set, of that image a caption. Without such an image it
            is a caption of any other image.
        random_negatives: how many captions of other images a group has, besides the hard one.
        foils: how many captions with one other word a group has, besides those of the paper.
        seed: from 0.

    Raises:
        ValueError: lengths that differ, a caption without a word, tags of other captions, an image for which
            no caption of another image differs from its own.

    >>> from capeval_core.training.tags import open_tagger
    >>> captions = ["a red star", "two blue stars", "a green heart"]
    >>> sampler = NegativeSampler("abc", captions, open_tagger("scenes").tags(captions), seed=1)
    >>> sampler.group(epoch=0, index=0).captions
    ('a red star', 'two blue stars', 'two blue stars', 'a blue heart', 'a red', 'a red red')
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
        if random_negatives < 0:
            raise wrong_option("random_negatives", random_negatives, "", "expected 0 or more", verb="")
        if seed < 0:
            raise wrong_option("seed", seed, "", "expected 0 or more", verb="")
        _check(images, captions, tagged)
        self.random_negatives, self.foils = random_negatives, foils
        self.seed = seed
        self._captions = [" ".join(caption.split()) for caption in captions]
        self._ids = list(dict.fromkeys(images))
        number = {image: index for index, image in enumerate(self._ids)}
        self._image = np.array([number[image] for image in images], dtype=np.int32)
        self._by_image = np.argsort(self._image, kind="stable").astype(np.int32)
        self._starts = np.searchsorted(self._image[self._by_image], np.arange(len(self._ids) + 1))
        texts: dict[str, int] = {}
        self._text = np.array([texts.setdefault(_key(text), len(texts)) for text in captions], dtype=np.int32)
        self._check_others()
        self._table = WordTable(tag_word_counts(tagged))
        self._places = place_table(tagged) if foils else WordTable({})
        # Flat arrays: lists of millions of tuples would be copied into every worker.
        self._words, self._tokens = _numbered(token for caption in tagged for token, _ in caption)
        self._tag_names, self._tags = _numbered(tag for caption in tagged for _, tag in caption)
        self._offsets = np.cumsum([0, *map(len, tagged)])
        self._similar = [self._top(images, number) for images in similar]

    def __len__(self) -> int:
        """Number of captions, each of which is the positive of one group per epoch."""
        return len(self._captions)

    def group(self, epoch: int, index: int) -> Group:
        """The group of caption `index` in an epoch, both from 0: 5 + `random_negatives` + `foils` captions.

        Order: the positive, random negatives, hard, substitution, word order, repetition or removal, foils.
        """
        rng = np.random.default_rng([self.seed, epoch, index])
        image = int(self._image[index])
        own = {int(self._text[other]) for other in self._of(image)}
        own_keys = {_key(self._captions[other]) for other in self._of(image)}
        part = slice(self._offsets[index], self._offsets[index + 1])
        tokens = [self._words[word] for word in self._tokens[part]]
        tags = [self._tag_names[tag] for tag in self._tags[part]]
        spelling = _Spelling(self._captions[index], tokens)

        captions = [self._captions[index]]
        kinds = ["positive", *["random"] * self.random_negatives, "hard"]
        captions += [self._captions[self._random(own, rng)] for _ in range(self.random_negatives)]
        captions.append(self._captions[self._hard(image, own, rng)])
        changes: dict[str, Callable[[], list[str] | None]] = {
            "substitution": lambda: substitution(tokens, tags, self._table, rng),
            "word_order": lambda: word_order(tokens, rng),
            "repetition_removal": lambda: repetition_removal(tokens, tags, rng),
        }
        foil = (FOIL, lambda: one_word_foil(tokens, tags, self._places, rng))
        for kind, change in [*changes.items(), *[foil] * self.foils]:
            negative = self._changed(change, spelling, own_keys)
            captions.append(self._captions[self._random(own, rng)] if negative is None else negative)
            kinds.append("random" if negative is None else kind)
        return Group(self._ids[image], tuple(captions), tuple(kinds))

    def _changed(
        self, change: Callable[[], list[str] | None], spelling: _Spelling, own: set[str]
    ) -> str | None:
        """A changed caption that is no caption of the image, if there is one."""
        for _ in range(TRIES):
            tokens = change()
            if tokens is None:
                return None
            text = spelling.text(tokens)
            if _key(text) not in own:
                return text
        return None

    def _random(self, own: set[int], rng: np.random.Generator) -> int:
        """The index of a caption that is not the image's own, uniformly."""
        for _ in range(TRIES):
            index = int(rng.integers(len(self)))
            if int(self._text[index]) not in own:
                return index
        others = np.flatnonzero(~np.isin(self._text, list(own)))
        return int(others[rng.integers(len(others))])

    def _hard(self, image: int, own: set[int], rng: np.random.Generator) -> int:
        """The index of a caption of a similar image; of any other image where there is none."""
        if self._similar:
            top = self._similar[int(rng.integers(len(self._similar)))][image]
            captions = [[i for i in self._of(other) if int(self._text[i]) not in own] for other in top]
            captions = list(filter(None, captions))
            if captions:
                chosen = captions[int(rng.integers(len(captions)))]
                return chosen[int(rng.integers(len(chosen)))]
        return self._random(own, rng)

    def _of(self, image: int) -> list[int]:
        """The indices of the captions of an image."""
        indices: list[int] = self._by_image[self._starts[image] : self._starts[image + 1]].tolist()
        return indices

    def _top(self, similar: Mapping[str, Sequence[str]], number: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Per image those of its top similar images that are in the training set."""
        tops = ([other for other in similar.get(image, ()) if other != image][:TOP] for image in self._ids)
        return [tuple(number[other] for other in top if other in number) for top in tops]

    def _check_others(self) -> None:
        """Refuse images for which no caption of another image differs from their own."""
        total = np.bincount(self._text)
        problems = Problems()
        for image, name in enumerate(self._ids):
            own = np.unique(self._text[self._of(image)])
            if total[own].sum() == len(self):
                found = f"no caption of another image than {name!r} that differs from its own"
                problems.add(Problem("captions", None, found, "add images with other captions", verb="have"))
        problems.raise_if_any()


class _Spelling:
    """How the tokens of a caption stand beside each other: with a space, or without as in "a sink, a man's".

    >>> _Spelling("a cat, a dog.", ["a", "cat", ",", "a", "dog", "."]).text(["dog", ",", "a", "."])
    'dog, a.'
    """

    def __init__(self, caption: str, tokens: Sequence[str]) -> None:
        self._pairs: dict[tuple[str, str], bool] = {}
        # Punctuation that touches the word before or after it does so wherever it is put.
        self._before: set[str] = set()
        self._after: set[str] = set()
        at, previous = 0, ""
        for token in tokens:
            start = caption.index(token, at)
            touches = start == at
            if previous:
                self._pairs.setdefault((previous, token), touches)
                if touches and not token[0].isalnum():
                    self._before.add(token)
                elif touches and not previous[-1].isalnum():
                    self._after.add(previous)
            at, previous = start + len(token), token

    def text(self, tokens: Sequence[str]) -> str:
        text, previous = "", ""
        for token in tokens:
            touches = self._pairs.get((previous, token), token in self._before or previous in self._after)
            text += token if touches or not previous else f" {token}"
            previous = token
        return text


def _check(
    images: Sequence[str], captions: Sequence[str], tagged: Sequence[Sequence[tuple[str, str]]]
) -> None:
    problems = Problems()
    for name, given in (("images", images), ("tagged", tagged)):
        if len(given) != len(captions):
            problems.add(f"len({name})={len(given)} but len(captions)={len(captions)}: give one per caption")
    problems.raise_if_any()
    for index, (caption, tokens) in enumerate(zip(captions, tagged, strict=True)):
        if not caption.split():
            problems.add(Problem("captions", index, "empty", "leave it out"))
        elif "".join(caption.split()) != "".join(token for token, _ in tokens):
            found = "the tokens of another caption"
            problems.add(Problem("tagged", index, found, "tag these captions, in this order", verb="has"))
    problems.raise_if_any()


def _numbered(items: Iterable[Hashable]) -> tuple[list[Any], NDArray[np.int32]]:
    """Different items, and the number of each item."""
    numbers: dict[Hashable, int] = {}
    flat = np.fromiter((numbers.setdefault(item, len(numbers)) for item in items), dtype=np.int32)
    return list(numbers), flat


def _key(text: str) -> str:
    """What equal captions share, whatever their white space and case."""
    return "".join(text.split()).casefold()
