"""ECO on small models: weights, pools, and what runs while members open and close."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.scores.eco.metric import Eco
from tests.support.seeded import blip2_weights
from tests.support.seeded import encoder as seeded_clip
from tools.captions import describe
from tools.scenes import draw, sample_scene

CANARY = 2
"""Images that run whenever weights are loaded."""


@pytest.fixture(scope="module")
def matcher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a seeded BLIP-2."""
    return str(blip2_weights(tmp_path_factory.mktemp("eco")))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a seeded CLIP, which as a member is called by its folder."""
    folder = tmp_path_factory.mktemp("eco") / "Seeded"
    seeded_clip().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def scenes() -> tuple[list[list[str]], list[Image.Image]]:
    """Five pools of 1 to 7 candidates of several kinds."""
    rng = np.random.default_rng(1)
    shown = [sample_scene(rng) for _ in range(5)]
    pools = [
        [describe(scene, rng) + f" w{i}" for i in range(2 + number)] for number, scene in enumerate(shown)
    ]
    pools[0] = pools[0][:1]
    pools[2] += ["a dog w3", "a, b, c, d, and e on a plain background"]
    pools[4].append(pools[4][0])
    return pools, [draw(scene) for scene in shown]


def opened(matcher: str, members: Any = ("pacs-tiny", "blip2-itc"), **options: Any) -> Eco:
    given = {"weights": matcher, "members": members, "device": "cpu", "cache": FeatureCache(), **options}
    return Eco(Eco.Options.of("eco", given))


class Runs:
    """What runs while members open and close: images per kind of encoder, and how many are open at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.images: Counter[str] = Counter()
        self.texts: Counter[str] = Counter()
        self.opened: list[weakref.ref[Any]] = []
        self.most = 0
        for kind in (ClipEncoder, Blip2Encoder):
            self._watch(kind, patch)

    def _watch(self, kind: Any, patch: pytest.MonkeyPatch) -> None:
        built = kind.build

        def build(encoder: Any, *given: Any) -> Any:
            model = built(encoder, *given)
            alive = [ref for ref in self.opened if ref() is not None]
            self.opened = [*alive, weakref.ref(model)]
            self.most = max(self.most, len(self.opened))
            image_layer = model.visual.conv1 if kind is ClipEncoder else model.vision_model.embeddings
            text_layer = model.ln_final if kind is ClipEncoder else model.embeddings.word_embeddings
            image_layer.register_forward_hook(lambda *out: self.images.update({kind.kind: len(out[2])}))
            text_layer.register_forward_hook(lambda *out: self.texts.update({kind.kind: len(out[2])}))
            return model

        patch.setattr(kind, "build", build)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    # What other tests hold open would be shared, and not be built where it can be watched.
    monkeypatch.setattr("capeval_core.models.model._OPENED", WeakValueDictionary())
    return Runs(monkeypatch)
