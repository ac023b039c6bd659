"""Drawn clips: what happens in them, and captions that are true or false of them."""

from __future__ import annotations

import numpy as np
import pytest

from tools.captions import holds
from tools.clips import (
    EVENTS,
    THEN,
    Clip,
    describe_clip,
    foils_of_clip,
    holds_of_clip,
    sample_clip,
    with_wrong_moment,
)


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    rng = np.random.default_rng(0)
    return [sample_clip(rng) for _ in range(120)]


def test_each_event_happens_as_it_says(clips: list[Clip]) -> None:
    assert {clip.event for clip in clips} == set(EVENTS)
    for clip in clips:
        first, last = clip.moments
        kinds = [{(thing.colour, thing.shape) for thing in scene.objects} for scene in clip.moments]
        more = len(last.objects) - len(first.objects)
        assert (more > 0, more < 0) == (clip.event == "appear", clip.event == "vanish")
        assert (kinds[0] == kinds[1]) == (clip.event == "move")
        assert first.background == last.background and first != last
        scenes = list(clip.scenes())
        assert scenes[: clip.still] == [first] * clip.still and scenes[-clip.still :] == [last] * clip.still
        assert 4 <= len(scenes) == 2 * clip.still + clip.between


def test_what_moves_is_on_its_way_between_the_moments(clips: list[Clip]) -> None:
    clip = next(clip for clip in clips if clip.event == "move" and clip.between == 2)
    places = [scene.objects[0].centre for scene in clip.scenes()][clip.still - 1 : -clip.still + 1]
    steps = np.diff(np.array(places), axis=0)
    assert np.abs(steps).max() > 0 and steps == pytest.approx(np.tile(steps[0], (3, 1)))
    assert [frame.size for frame in clip.frames(32)] == [(32, 32)] * len(list(clip.scenes()))


def test_captions_are_true_and_wrong_ones_false(clips: list[Clip]) -> None:
    rng = np.random.default_rng(1)
    captions = [describe_clip(clip, rng) for clip in clips]
    assert len(set(captions)) == len(captions)
    assert captions == [describe_clip(clip, again) for again in [np.random.default_rng(1)] for clip in clips]
    for place, (clip, caption, other) in enumerate(zip(clips, captions, captions[1:], strict=False)):
        assert holds_of_clip(clip, caption) and len(caption.split(THEN)) == 2
        for kind, text in foils_of_clip(clip, caption):
            words, changed = caption.split(), text.split()
            assert sum(a != b for a, b in zip(words, changed, strict=True)) == 1, kind
            assert not holds_of_clip(clip, text)
        wrong = with_wrong_moment(clip, caption, other, place % 2)
        if wrong is not None:
            part = wrong.split(THEN)[place % 2]
            assert part in other and not any(holds(moment, part, 0.0) for moment in clip.moments)
            assert wrong.split(THEN)[1 - place % 2] == caption.split(THEN)[1 - place % 2]
