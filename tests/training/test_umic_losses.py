from __future__ import annotations

import numpy as np
import pytest
import torch

from capeval_core.training.objective import matching_loss
from capeval_core.training.umic import UmicTraining, ranking_loss


def test_the_ranking_loss_is_the_papers_pair_by_pair() -> None:
    logits = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    losses = ranking_loss(logits, group_size=6, margin=0.3)
    assert losses.shape == (4, 5)
    scores = 1 / (1 + np.exp(-logits.numpy().reshape(4, 6)))
    for group in range(4):
        for negative in range(1, 6):
            expected = max(0.0, 0.3 - (scores[group, 0] - scores[group, negative]))
            assert losses[group, negative - 1].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("shape", "size"), [((7,), 6), ((2, 6), 6), ((6,), 1)])
def test_logits_that_are_no_groups_are_refused(shape: tuple[int, ...], size: int) -> None:
    with pytest.raises(ValueError, match="are no groups of"):
        ranking_loss(torch.zeros(shape), size)


def test_the_matching_loss_wants_the_first_of_each_group_to_match() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0], [1.0, -1.0], [3.0, 0.0]])
    right, wrong = np.log1p(np.exp(-2.0)), np.log1p(np.exp(2.0))
    expected = [[right, wrong], [wrong, np.log1p(np.exp(-3.0))]]
    np.testing.assert_allclose(matching_loss(logits, 2), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": ""}, "start='' is missing: pass the weights to start from"),
        ({"warmup": 50, "steps": 50}, "warmup=50 is not below the 50 of steps: pass fewer"),
        (
            {"warmup": 9, "word_steps": 8, "matching_steps": 9, "steps": 10},
            r"2 problems with .*\n  warmup=9 is not below the 8 of word_steps.*\n.* 9 of matching_steps",
        ),
        ({"dropout": 1.0}, "dropout=1.0: expected less than 1"),
        ({"masked": 1.5}, "masked=1.5: expected less than 1"),
        ({"hard": "cider"}, "hard='cider': expected 'both' or 'features' or 'captions' or 'none'"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UmicTraining(**{"start": "tiny", **settings})


def test_each_phase_has_its_own_rise_and_fall_of_the_learning_rate() -> None:
    training = UmicTraining(
        start="tiny",
        word_steps=20,
        matching_steps=30,
        steps=40,
        warmup=5,
        pretraining_rate=1.0,
        learning_rate=2.0,
    )
    assert [phase.name for phase in training.phases()] == ["words", "matching", "ranking"]
    for phase, peak in zip(training.phases(), (1.0, 1.0, 2.0), strict=True):
        rates = [training.rate_at(phase.start + step) for step in range(phase.steps)]
        assert rates[0] == pytest.approx(peak / 5) and max(rates) == pytest.approx(peak)
        assert rates.index(max(rates)) in (4, 5)
        falls = -np.diff(rates[5:])
        assert falls == pytest.approx([peak / (phase.steps - 5)] * len(falls))
        assert rates[-1] == pytest.approx(peak / (phase.steps - 5))
