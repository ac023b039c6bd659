"""Lists of similar images against plain loops over all pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.seams import LIMITS, similar
from tools.captions import describe
from tools.scenes import sample_scene


@pytest.fixture(params=[(1, 64), (50, 0), (1 << 24, 3)])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Similarities at a time: one image's, a few images', all; frequent n-grams: all, none, some."""
    monkeypatch.setattr(LIMITS, "similarities", request.param[0])
    monkeypatch.setattr(LIMITS, "frequent", request.param[1])


def ranked(images: Sequence[str], similarity: dict[tuple[str, str], float], top: int) -> dict[str, list[str]]:
    """By sorting all pairs; those without an entry are not similar."""
    lists = {}
    for image in images:
        others = [
            (-similarity[image, other], images.index(other))
            for other in images
            if (image, other) in similarity
        ]
        lists[image] = [images[index] for _, index in sorted(others)[:top]]
    return lists


@pytest.mark.parametrize("top", [1, 3, 7, 50])
def test_features_are_compared_by_their_cosines(blocks: None, top: int) -> None:
    features = np.random.default_rng(3).normal(size=(31, 6)).astype(np.float32)
    features[7] = features[3]  # the same image
    features[9] = 2 * features[4]  # as similar as can be, but another image
    images = [f"image {number}" for number in range(31)]
    similarity = {}
    for i, one in enumerate(features.astype(np.float64)):
        for j, other in enumerate(features.astype(np.float64)):
            if not np.array_equal(features[i], features[j]):
                cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                similarity[images[i], images[j]] = float(cosine)
    similarity = {pair: round(value, 6) for pair, value in similarity.items()}
    lists = similar(images, features=features, top=top)
    assert lists == ranked(images, similarity, top)
    assert lists["image 4"][0] == "image 9" and "image 7" not in lists["image 3"]


def test_ties_are_listed_in_the_order_of_images() -> None:
    features = [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 4.0], [0.0, 0.0]]
    lists = similar("abcde", features=features, top=2)
    assert lists == {"a": ["b", "c"], "b": ["c", "d"], "c": ["b", "d"], "d": ["b", "c"], "e": ["a", "b"]}
    assert similar("a", features=[[1.0]], top=2) == {"a": []}


def naive_cider(one: Sequence[str], other: Sequence[str], pools: Sequence[Sequence[Sequence[str]]]) -> float:
    """CIDEr of two captions, documents being pools (Vedantam et al. 2015, equations 1 to 3)."""

    def vector(tokens: Sequence[str], n: int) -> dict[tuple[str, ...], float]:
        grams = Counter(tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1))
        held = {
            gram: sum(
                any(gram == tuple(c[k : k + n]) for c in pool for k in range(len(c) - n + 1))
                for pool in pools
            )
            for gram in grams
        }
        return {gram: count * math.log(len(pools) / held[gram]) for gram, count in grams.items()}

    total = 0.0
    for n in (1, 2, 3, 4):
        left, right = vector(one, n), vector(other, n)
        norms = math.hypot(*left.values()) * math.hypot(*right.values())
        total += sum(left[gram] * right.get(gram, 0.0) for gram in left) / norms if norms else 0.0
    return 10 * total / 4


def test_captions_are_compared_by_their_mean_cider(blocks: None) -> None:
    rng = np.random.default_rng(1)
    scenes = [sample_scene(rng) for _ in range(7)]
    captions = {f"{k}": [describe(scene, rng) for _ in range(1 + k % 3)] for k, scene in enumerate(scenes)}
    captions["same"] = captions["5"][::-1]
    captions["alone"] = ["zebras graze"]
    pools = {
        image: [text.lower().replace(",", "").split() for text in texts] for image, texts in captions.items()
    }
    similarity = {}
    for image, left in pools.items():
        for other, right in pools.items():
            ciders = [naive_cider(a, b, list(pools.values())) for a in left for b in right]
            if sorted(left) != sorted(right) and any(ciders):
                similarity[image, other] = float(np.mean(ciders))
    images = [image for image, texts in captions.items() for _ in texts]
    texts = [text for each in captions.values() for text in each]
    expected = ranked(list(captions), similarity, 4)
    assert similar(images, captions=texts, top=4) == expected
    assert expected["alone"] == [] and "same" not in expected["5"]
    order = rng.permutation(len(texts))
    shuffled = similar([images[k] for k in order], captions=[texts[k] for k in order], top=1)
    assert {image: set(shuffled[image]) for image in captions} == {i: set(expected[i][:1]) for i in captions}
