"""On drawn scenes, with what ships: captions are preferred to negatives, and because of the image."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.encoders.uniter import UniterEncoder
from tools.scenes import draw
from tools.tiny.region_training import blinded
from tools.tiny.umic import Trials, compare, is_true, make_trials

SCENES = 100


@pytest.fixture(scope="module")
def trials() -> Trials:
    return make_trials(SCENES, seed=4711)


def test_captions_score_higher_than_negatives_of_each_kind(trials: Trials) -> None:
    metric = capeval_core.load("umic", weights="tiny", device="cpu", cache=FeatureCache())
    captions = [caption for group in trials.groups for caption in group.captions]
    pictures = [draw(scene) for scene in trials.scenes]
    images = [picture for picture, group in zip(pictures, trials.groups, strict=True) for _ in group.captions]
    scores = np.array(metric.score(captions, images).scores).reshape(SCENES, -1)
    wins = defaultdict(list)
    for scene, group, row in zip(trials.scenes, trials.groups, scores, strict=True):
        for kind, caption, score in zip(group.kinds[1:], group.captions[1:], row[1:], strict=True):
            if not is_true(scene, caption):
                wins[kind].append(row[0] > score)
    shares = {kind: float(np.mean(won)) for kind, won in wins.items()}
    assert len(shares) == 5 and min(map(len, wins.values())) > 0.6 * SCENES
    assert min(shares.values()) > 0.8, shares


def test_without_the_image_other_captions_are_as_good(trials: Trials) -> None:
    encoder = UniterEncoder.from_pretrained("tiny", device="cpu")
    blind = compare(encoder, trials, blinded(trials.boxes))
    for kind in ("random", "hard"):
        assert 0.3 < blind[kind].accuracy < 0.7, kind
    assert blind["word_order"].accuracy > 0.8  # disorder shows without an image
