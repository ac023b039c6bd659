from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tools.tiny.training import Part, Recipe, caption_contrast, descend, wording_contrast

RECIPE = Recipe(scenes=1, steps=8, batch=1, foils=0, rate=0.1, warmup=1, scale=1.0)
WRONG, RIGHT = np.exp(0.0), np.exp(2.0)
PLAIN = -np.log(RIGHT / (RIGHT + WRONG))


def falling(*parameters: nn.Parameter) -> Tensor:
    return sum((parameter.sum() for parameter in parameters), torch.zeros(()))


def test_parts_learn_at_their_pace_and_decay_where_they_shall() -> None:
    slow, fast, drawn, kept = (nn.Parameter(torch.ones(3)) for _ in range(4))
    parts = [
        Part([slow], 1.0, False),
        Part([fast], 3.0, False),
        Part([drawn], 1.0, True),
        Part([kept], 1.0, False),
    ]
    descend(RECIPE, parts, lambda done: (falling(slow, fast) + 0 * falling(drawn, kept), {}))
    torch.testing.assert_close(1 - fast, 3 * (1 - slow))
    assert (slow < 1).all() and (drawn < 1).all() and torch.equal(kept, torch.ones(3))


def test_the_losses_of_all_steps_come_back_and_they_know_how_far_it_is() -> None:
    parameter = nn.Parameter(torch.ones(1))
    asked: list[float] = []

    def losses(done: float) -> tuple[Tensor, dict[str, Tensor]]:
        asked.append(done)
        return falling(parameter) * 0 + done, {}

    assert descend(RECIPE, [Part([parameter], 1.0, False)], losses) == asked
    assert asked == [step / 8 for step in range(8)]


def test_long_gradients_are_cut_over_all_parts_together() -> None:
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    lengths: list[float] = []

    def losses(done: float) -> tuple[Tensor, dict[str, Tensor]]:
        if first.grad is not None and second.grad is not None:  # that of the step before
            lengths.append(float(torch.cat([first.grad, second.grad]).norm()))
        return 100 * falling(first, second), {}

    descend(RECIPE, [Part([first], 1.0, False), Part([second], 2.0, True)], losses)
    assert lengths == pytest.approx([1.0] * 7)


def test_images_and_captions_find_each_other() -> None:
    images = torch.eye(2)
    captions = torch.eye(2)
    foils = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])
    alike = torch.eye(2, dtype=torch.bool)
    present = torch.tensor([[True], [False]])
    first = -np.log(RIGHT / (RIGHT + 2 * WRONG))  # one other caption and one foil against the right one
    expected = 0.5 * ((first + PLAIN) / 2 + PLAIN)
    assert caption_contrast(images, captions, foils, present, alike, 2.0).item() == pytest.approx(
        expected, abs=1e-6
    )
    everything = torch.ones(2, 2, dtype=torch.bool)
    absent = present & False
    assert caption_contrast(images, captions, foils, absent, everything, 2.0).item() == pytest.approx(0)


def test_a_wording_finds_the_other_one_of_its_scene() -> None:
    words = torch.eye(2)
    apart, one_way = torch.eye(2, dtype=torch.bool), torch.tensor([[True, True], [False, True]])
    assert wording_contrast(words, words, apart, 2.0).item() == pytest.approx(PLAIN, abs=1e-6)
    assert wording_contrast(words, words, one_way, 2.0).item() == pytest.approx(0), "either may be true"
