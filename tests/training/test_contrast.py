from __future__ import annotations

import numpy as np
import pytest
import torch

from capeval_core.training.contrast import caption_contrast, wording_contrast

WRONG, RIGHT = np.exp(0.0), np.exp(2.0)
PLAIN = -np.log(RIGHT / (RIGHT + WRONG))


def test_images_and_captions_find_each_other() -> None:
    images = torch.eye(2)
    captions = torch.eye(2)
    foils = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])
    alike = torch.eye(2, dtype=torch.bool)
    told = torch.tensor([[True], [False]])
    first = -np.log(RIGHT / (RIGHT + 2 * WRONG))  # one other caption and one foil against the right one
    expected = 0.5 * ((first + PLAIN) / 2 + PLAIN)
    assert caption_contrast(images, captions, foils, told, alike, 2.0).item() == pytest.approx(
        expected, abs=1e-6
    )
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert caption_contrast(images, captions, foils, told & False, everything, 2.0).item() == pytest.approx(0)


def test_a_wording_finds_the_other_one_of_its_scene() -> None:
    words = torch.eye(2)
    apart, one_way = torch.eye(2, dtype=torch.bool), torch.tensor([[True, True], [False, True]])
    assert wording_contrast(words, words, apart, 2.0).item() == pytest.approx(PLAIN, abs=1e-6)
    assert wording_contrast(words, words, one_way, 2.0).item() == pytest.approx(0), "either may be true"
