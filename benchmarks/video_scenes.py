"""PAC-S for videos on drawn clips: right captions against others, one-word foils and wrong moments.

    python -m benchmarks.video_scenes [--weights tiny] [--clips 1000] [--seed 1]

Clips are those of `tools.clips`: in a scene of coloured shapes a group of objects moves, appears, vanishes or
changes its colour or shape; all of another seed than the scenes of the training, which showed single images
with captions of one moment, without "then". A right caption names both moments in order. Against it stand:

- the caption of another clip, false of this one;
- a foil, one word of which is changed, so that it is true of neither moment;
- a wrong moment: one moment of the caption is replaced by that of another clip, true of neither moment;
- the moments in the wrong order, where that is false: frames are compared without regard to their order.

References, for RefPAC-S, are another right caption. The idf is that of the right captions, for all. Shares
have Wilson's intervals, mean changes Student's, at 95%. Output: benchmarks/video_scenes.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.umic_scenes import share
from capeval_core.result import Result
from capeval_core.scores.video import VideoOptions, VideoPacS, VideoRefPacS
from tools.captions import KINDS
from tools.clips import (
    THEN,
    Clip,
    describe_clip,
    foils_of_clip,
    holds_of_clip,
    sample_clip,
    with_wrong_moment,
)
from tools.tiny.command import Comparison

Doubles = NDArray[np.float64]
PARTS = ("coarse", "fine", "precision", "recall")
FOIL = "one-word foil"


@dataclass(frozen=True)
class Trial:
    """A wrong caption of a clip: its kind, the clip's number, and the text."""

    kind: str
    clip: int
    text: str


def make_trials(clips: Sequence[Clip], captions: Sequence[str], rng: np.random.Generator) -> list[Trial]:
    """Of each clip one wrong caption of every kind that there is for it; the foil is of any kind."""
    trials = []
    for number, (clip, caption) in enumerate(zip(clips, captions, strict=True)):
        other = captions[(number + 1) % len(clips)]
        if not holds_of_clip(clip, other):
            trials.append(Trial("another clip", number, other))
        if found := foils_of_clip(clip, caption):
            kinds = sorted({kind for kind, _ in found})
            kind = kinds[int(rng.integers(len(kinds)))]
            texts = [text for own, text in found if own == kind]
            trials.append(Trial(f"{FOIL}, {kind}", number, texts[int(rng.integers(len(texts)))]))
        if wrong := with_wrong_moment(clip, caption, other, int(rng.integers(2))):
            trials.append(Trial("wrong moment", number, wrong))
        swapped = THEN.join(reversed(caption.split(THEN)))
        if not holds_of_clip(clip, swapped):
            trials.append(Trial("wrong order", number, swapped))
    return trials


def values_of(result: Result) -> dict[str, Doubles]:
    return {"score": np.array(result.scores), **{part: np.array(result.parts[part]) for part in PARTS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = np.random.default_rng([given.seed, 3])
    clips = [sample_clip(rng) for _ in range(given.clips)]
    captions, references = ([describe_clip(clip, rng) for clip in clips] for _ in range(2))
    trials = make_trials(clips, captions, rng)
    rows = list(range(len(clips))), [trial.clip for trial in trials]
    texts = captions, [trial.text for trial in trials]
    videos = [clip.frames() for clip in clips]
    found: dict[str, tuple[dict[str, Doubles], dict[str, Doubles]]] = {}
    for kind in (VideoPacS, VideoRefPacS):
        options: dict[str, Any] = {"weights": given.weights, "device": "cpu"}
        table = kind(VideoOptions.of(kind.name, options)).prepare(captions)
        metric = kind(VideoOptions.of(kind.name, {**options, "statistics": table}))
        right, wrong = (
            values_of(
                metric.score(
                    own_texts,
                    videos=[videos[clip] for clip in own],
                    references=[[references[clip]] for clip in own] if metric.needs_references else None,
                )
            )
            for own, own_texts in zip(rows, texts, strict=True)
        )
        found[metric.title] = {name: own[rows[1]] for name, own in right.items()}, wrong
    command = f"--weights {given.weights} --clips {given.clips} --seed {given.seed}"
    print(f"`python -m benchmarks.video_scenes {command}`, {datetime.now(UTC):%Y-%m-%d},")
    print(f"weights {metric.encoder.fingerprint[:8]}, {len(clips):,} clips of {_frames(clips)} frames:\n")
    report(trials, found)


def _frames(clips: Sequence[Clip]) -> str:
    counts = [len(list(clip.scenes())) for clip in clips]
    return f"{min(counts)} to {max(counts)}"


def report(trials: Sequence[Trial], found: dict[str, tuple[dict[str, Doubles], dict[str, Doubles]]]) -> None:
    """Two tables: shares of preferred captions, and how much each part falls."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, trial in enumerate(trials):
        groups[trial.kind.split(",")[0]].append(number)
        groups[trial.kind].append(number)
    order = ["another clip", FOIL, *(f"{FOIL}, {kind}" for kind in KINDS), "wrong moment", "wrong order"]
    print(f"| against | pairs | {' | '.join(f'{title} prefers the right caption' for title in found)} |")
    print("| --- | --- |" + " --- |" * len(found))
    for kind in order:
        chosen = sorted(set(groups[kind]))
        cells = [
            share(Comparison.of(right["score"][chosen].tolist(), wrong["score"][chosen].tolist()))
            for right, wrong in found.values()
        ]
        print(f"| {kind} | {len(chosen):,} | {' | '.join(cells)} |")
    right, wrong = next(iter(found.values()))
    print(f"\n| change by | score | {' | '.join(PARTS)} |")
    print("| --- |" + " --- |" * (1 + len(PARTS)))
    means = [f"{right[part].mean():.3f}" for part in ("score", *PARTS)]
    print(f"| (right captions have) | {' | '.join(means)} |")
    for kind in ("another clip", FOIL, "wrong moment", "wrong order"):
        chosen = sorted(set(groups[kind]))
        cells = [change(wrong[part][chosen] - right[part][chosen]) for part in ("score", *PARTS)]
        print(f"| {kind} | {' | '.join(cells)} |")


def change(values: Doubles) -> str:
    """A mean with its interval."""
    low, high = stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values))
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    main()
