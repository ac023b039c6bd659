"""A caption matched with frames, drawn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from PIL import Image

from capeval_core.inputs.videos import EVERY, InputFrames, Sampling
from capeval_core.reports.frames import FrameMatch, best_frames, draw_frames
from capeval_core.scores.video_explanation import VideoExplanation

COLOURS = ["red", "lime", "blue", "yellow", "fuchsia", "aqua", "white", "black"]
FRAMES = [Image.new("RGB", (60, 40), colour) for colour in COLOURS]


def match(word: str, frame: int) -> FrameMatch:
    return {"word": word, "weight": 1.0, "frame": frame, "cosine": 0.25}


def colours(image: Image.Image) -> set[str]:
    """Which of the plain colours cover a part of a drawing."""
    pixels = np.asarray(image).reshape(-1, 3)
    shares = {
        colour: (pixels == Image.new("RGB", (1, 1), colour).getpixel((0, 0))).all(axis=1).mean()
        for colour in COLOURS
    }
    return {colour for colour, share in shares.items() if share > 0.002} - {"white", "black"}


def explained(words: list[FrameMatch], sampling: Sampling = EVERY, frames: int = 6) -> VideoExplanation:
    content = {"caption": "a caption", "frame_cosines": [0.1] * frames, "words": words}
    return VideoExplanation(content, InputFrames.of(FRAMES[:6]), sampling)


@pytest.mark.parametrize("width", [320, 720, 1440])
@pytest.mark.parametrize("cosines", [[0.3], [-0.5, -0.1], [0.0] * 300])
def test_a_drawing_has_the_asked_width(width: int, cosines: list[float]) -> None:
    words = [match("a long word " * 30, 0), match("two", len(cosines) - 1)]
    assert draw_frames("words " * 80, cosines, words, {0: FRAMES[0]}, width).width == width
    assert draw_frames("", cosines, [], {}, width).width == width


def test_the_best_frames_of_words_are_read_and_drawn() -> None:
    drawn = explained([match("one", 0), match("two", 3), match("three", 3)]).plot(720)
    assert colours(drawn) == {"red", "yellow"}
    frames = explained([match("one", 4)]).frames([4, 0], 30)
    assert {place: (one.width, *colours(one)) for place, one in frames.items()} == {
        0: (30, "red"),
        4: (30, "fuchsia"),
    }
    assert colours(pickle.loads(pickle.dumps(explained([match("one", 4)]))).plot()) == {"fuchsia"}


def test_positions_among_sampled_frames_are_those_frames() -> None:
    # Three of six frames: 0, 2 and 5; nine of six, where several positions are one frame.
    assert colours(explained([match("a", 1), match("b", 2)], Sampling(max_frames=3), 3).plot(720)) == {
        "blue",
        "aqua",
    }
    assert colours(explained([match("a", 8), match("b", 7)], Sampling(max_frames=9), 9).plot(720)) == {
        "aqua",
        "fuchsia",
    }


def test_frames_with_most_words_are_kept() -> None:
    words = [match(str(i), i) for i in range(8)] + [match("again", 7), match("again", 6)]
    assert list(best_frames(words, 3)) == [0, 6, 7]


def test_without_a_score_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no score to draw: broken"):
        VideoExplanation({"caption": "a", "error": "broken"}).plot()
    with pytest.raises(ValueError, match="at least 320 pixels"):
        explained([]).plot(100)
