"""Pools of candidate captions for a scene: some right, the others each with a fault of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capeval_core.synthetic.captions import KINDS, describe, foil, holds
from capeval_core.synthetic.scenes import Scene

RIGHT, TERSE, WORDY, FOILED, JUMBLED, UNRELATED = "right", "terse", "wordy", "foiled", "jumbled", "unrelated"
COUNTS = {RIGHT: 3, TERSE: 2, WORDY: 2, FOILED: 3, JUMBLED: 1, UNRELATED: 1}
"""How many of each kind make a pool."""
_BEFORE = ("what we can all see here is that", "this is an image of a drawing in which", "i think that maybe")
_AFTER = (
    "and it is really a very nice thing to look at",
    "as far as anybody who looks at it can tell",
    "which somebody must have drawn with great care",
)


@dataclass(frozen=True)
class ScenePool:
    """Captions in an order by lot. kinds: what each of them is, one of `COUNTS`."""

    captions: list[str]
    kinds: list[str]


def describe_pool(scene: Scene, other: Scene, rng: np.random.Generator) -> ScenePool | None:
    """A pool of candidates for a scene; None if it cannot have one.

    Right captions are true and name everything. Terse ones name one thing, wordy ones say more than there is
    to say, foiled ones have one wrong word, a jumbled one has its words in disorder, and the unrelated one is
    true of the other scene.

    >>> from capeval_core.synthetic.scenes import sample_scene
    >>> rng = np.random.default_rng(0)
    >>> pool = describe_pool(sample_scene(rng), sample_scene(rng), rng)
    >>> len(pool.captions), pool.kinds.count("right")
    (12, 3)
    """
    right: list[str] = []
    for _ in range(20):
        caption = describe(scene, rng)
        if caption not in right and len(caption.split()) >= 5:
            right.append(caption)
        if len(right) == COUNTS[RIGHT] + 2:
            break
    else:
        return None
    unrelated = describe(other, rng)
    if holds(scene, unrelated):
        return None
    words = right[3].split()
    jumbled = " ".join(words[int(place)] for place in rng.permutation(len(words)))
    told = {
        RIGHT: right[:3],
        TERSE: [f"a {thing.shape}" for thing in (scene.objects[0], scene.objects[-1])],
        WORDY: [
            f"{_BEFORE[int(i)]} {right[3 + k]} {_AFTER[int(i)]}" for k, i in enumerate(rng.integers(0, 3, 2))
        ],
        FOILED: _foils(scene, right, rng),
        JUMBLED: [jumbled],
        UNRELATED: [unrelated],
    }
    if any(len(told[kind]) != count for kind, count in COUNTS.items()):
        return None
    listed = [(caption, kind) for kind, captions in told.items() for caption in captions]
    order = rng.permutation(len(listed))
    return ScenePool([listed[int(i)][0] for i in order], [listed[int(i)][1] for i in order])


def _foils(scene: Scene, captions: list[str], rng: np.random.Generator) -> list[str]:
    found: list[str] = []
    for caption in captions:
        for place in rng.permutation(len(KINDS)):
            try:
                found.append(foil(scene, caption, KINDS[int(place)], rng))
                break
            except ValueError:  # the caption says nothing of this kind
                continue
    return found[: COUNTS[FOILED]]
