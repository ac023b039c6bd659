from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from capeval_core.training.recipe import Part, Recipe, descend

RECIPE = Recipe(scenes=1, steps=8, batch=1, foils=0, rate=0.1, warmup=1, scale=1.0)


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
