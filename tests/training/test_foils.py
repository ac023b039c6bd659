from __future__ import annotations

from collections import Counter

import numpy as np

from capeval_core.training.foils import one_word_foil, place_table
from capeval_core.training.groups import FOIL, NegativeSampler
from capeval_core.training.tags import open_tagger
from tools.captions import describe
from tools.scenes import sample_scene


def captions_of_scenes(count: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [describe(sample_scene(rng), rng) for _ in range(count)]


def test_a_foil_has_one_other_word_that_stands_in_such_a_place_elsewhere() -> None:
    captions = captions_of_scenes(400)
    tagged = open_tagger("scenes").tags(captions)
    table = place_table(tagged)
    places = {
        (tags[i], *["", "", *words][i : i + 2], [*words, ""][i + 1], words[i])
        for caption in tagged
        for words, tags in [([w for w, _ in caption], [t for _, t in caption])]
        for i in range(len(words))
    }
    rng = np.random.default_rng(0)
    changed: Counter[str] = Counter()
    for caption in tagged:
        words, tags = [w for w, _ in caption], [t for _, t in caption]
        foil = one_word_foil(words, tags, table, rng)
        if foil is None:
            continue
        (place,) = (i for i, pair in enumerate(zip(words, foil, strict=True)) if pair[0] != pair[1])
        assert (
            tags[place],
            *["", "", *words][place : place + 2],
            [*words, ""][place + 1],
            foil[place],
        ) in places
        changed[tags[place]] += 1
    assert {"JJ", "NN", "NNS", "CD", "IN"} <= changed.keys() and not changed.keys() & {"DT", "CC", "TO"}
    assert sum(changed.values()) > 300


def test_the_more_frequent_word_comes_more_often() -> None:
    captions = ["a red star"] * 5 + ["a blue star"] * 3 + ["a pink star"]
    tagged = open_tagger("scenes").tags(captions)
    table, rng = place_table(tagged), np.random.default_rng(1)
    words, tags = ["a", "red", "star"], ["DT", "JJ", "NN"]
    drawn = Counter(" ".join(one_word_foil(words, tags, table, rng) or []) for _ in range(400))
    assert drawn.keys() == {"a blue star", "a pink star"}
    assert abs(drawn["a blue star"] / 400 - 0.75) < 0.08


def test_no_place_no_foil() -> None:
    tagged = open_tagger("scenes").tags(["a red star", "two green hearts"])
    table = place_table(tagged)
    assert one_word_foil(["a", "red", "star"], ["DT", "JJ", "NN"], table, np.random.default_rng(0)) is None


def test_foils_stand_behind_a_group_that_is_otherwise_the_same() -> None:
    captions = captions_of_scenes(60)
    ids = [str(index // 2) for index in range(60)]
    tagged = open_tagger("scenes").tags(captions)
    plain, with_foils = (NegativeSampler(ids, captions, tagged, foils=foils, seed=2) for foils in (0, 3))
    kinds: Counter[str] = Counter()
    for index in range(60):
        group = with_foils.group(1, index)
        assert group.captions[:6] == plain.group(1, index).captions and len(group.captions) == 9
        own = [caption for caption, image in zip(captions, ids, strict=True) if image == ids[index]]
        assert not set(group.captions[6:]) & set(own)
        kinds.update(group.kinds[6:])
    assert kinds.keys() <= {FOIL, "random"} and kinds[FOIL] > 100
