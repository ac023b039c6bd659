from __future__ import annotations

import numpy as np

from tools.captions import KINDS
from tools.tiny.clip_model import CELLS, SIDE, CaptionCodec
from tools.tiny.lessons import Captions, choose_foils, make_lessons


def test_foils_that_there_are_come_first_and_some_kinds_seldom() -> None:
    lengths = np.full((400, 1 + len(KINDS)), 7)
    lengths[:, 3:5] = 0
    rng = np.random.default_rng(1)
    there = len(KINDS) - 2
    chosen = choose_foils(lengths, there, rng)
    assert (np.take_along_axis(lengths, chosen, axis=1) == 7).all()
    assert set(chosen[:, 0]) == {foil for foil in range(1, 1 + len(KINDS)) if lengths[0, foil]}
    first = choose_foils(lengths, 1, rng, seldom=(KINDS[0],))[:, 0]
    counts = [int((first == foil).sum()) for foil in (1, 2)]
    assert 0 < counts[0] < counts[1] / 2


def test_captions_of_a_step_are_those_of_the_lessons() -> None:
    lessons = make_lessons(12, np.random.default_rng(2), CaptionCodec(), SIDE, CELLS)
    rows = np.array([7, 2, 11])
    captions = Captions.choose(lessons, rows, 1, 4, np.random.default_rng(3))
    tokens, lengths = captions.of(lessons.tokens), captions.of(lessons.lengths)
    assert len(tokens) == len(lengths) == 3 + 3 + 3 * 4
    np.testing.assert_array_equal(tokens[:3], lessons.tokens[rows, 1, 0])
    np.testing.assert_array_equal(tokens[3:6], lessons.tokens[rows, 0, 0])
    for row in range(3):
        for column, foil in enumerate(captions.foils[row]):
            np.testing.assert_array_equal(tokens[6 + 4 * row + column], lessons.tokens[rows[row], 1, foil])
    np.testing.assert_array_equal(captions.present.reshape(-1), lengths[6:] > 0)
    assert captions.alike.diagonal().all()
