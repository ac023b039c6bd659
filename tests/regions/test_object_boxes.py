"""The input and the output of MobileSAMv2's object detector: margins, edges, scores, the best of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from tests.support.seams import letterbox, object_boxes

GREY = np.float32(114) / np.float32(255)


@pytest.mark.parametrize(
    ("size", "side", "before", "behind"), [(7, 7, 12, 13), (32, 32, 0, 0), (9, 9, 11, 12), (10, 10, 11, 11)]
)
@pytest.mark.parametrize("is_wide", [True, False])
def test_the_longer_side_is_1024_and_the_shorter_one_has_margins(
    size: int, side: int, before: int, behind: int, is_wide: bool
) -> None:
    """An odd pixel of a margin is below or on the right; blue comes first."""
    image = Image.new("RGB", (1024, size) if is_wide else (size, 1024), (255, 0, 51))
    pixels = letterbox(image)
    across = pixels if is_wide else pixels.transpose(0, 2, 1)
    assert across.shape == (3, 32, 1024) and across.dtype == np.float32
    assert before + side + behind == 32
    assert (across[:, :before] == GREY).all() and (across[:, 32 - behind :] == GREY).all()
    inner = across[:, before : before + side]
    assert (inner == np.array([0.2, 0, 1], dtype=np.float32)[:, None, None]).all()


@pytest.mark.parametrize("size", [(40, 3), (3, 40), (1500, 5), (5, 1500)])
def test_an_image_is_resized_between_its_nearest_pixels(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    height, width = (round(side * 1024 / max(size)) for side in (size[1], size[0]))
    planes = torch.from_numpy(values).permute(2, 0, 1)[None].double()
    resized = functional.interpolate(planes, (height, width), mode="bilinear", align_corners=False)
    expected = resized[0].flip(0)
    found = letterbox(Image.fromarray(values)) * 255
    top, left = ((found.shape[1] - height) // 2, (found.shape[2] - width) // 2)
    inner = found[:, top : top + height, left : left + width]
    # Half a level by the last rounding, another by what integers cut off before, and some by their weights.
    assert np.abs(inner - expected.numpy()).max() < 1.13
    assert np.abs(inner - expected.numpy()).mean() < 0.4


def rows(*boxes: Any) -> Any:
    """The network's output of boxes x0, y0, x1, y1, score: their centres and sides."""
    x0, y0, x1, y1, score = np.array(boxes, dtype=np.float32).T
    return np.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, score], axis=1)


@pytest.mark.parametrize("is_wide", [True, False])
def test_boxes_are_read_in_pixels_of_the_image_without_its_margins(is_wide: bool) -> None:
    """An image of 512 by 487, whose input has margins of 9 pixels, is enlarged twice."""

    def read(*boxes: tuple[float, float, float, float]) -> list[list[float]]:
        order = [0, 1, 2, 3] if is_wide else [1, 0, 3, 2]
        scores = np.linspace(0.9, 0.5, len(boxes)).tolist()
        turned = [tuple(box[i] for i in order) for box in boxes]
        raw = rows(*[(*box, score) for box, score in zip(turned, scores, strict=True)])
        network, image = ((992, 1024), (487, 512)) if is_wide else ((1024, 992), (512, 487))
        found = object_boxes(raw, network, image)
        assert found.scores.tolist() == pytest.approx(scores)
        return [[corners[i] for i in order] for corners in found.corners.tolist()]

    assert read((450, 370, 550, 430)) == [[225, 180.5, 275, 210.5]]
    # Within 20 pixels of an edge of the input, a box ends at the edge of the image.
    assert read((20, 20, 1004, 972)) == [[10, 5.5, 502, 481.5]]
    assert read((19, 19, 1005, 973)) == [[0, 0, 512, 487]]
    assert read((19, 300, 400, 400), (500, 19, 800, 400)) == [[0, 145.5, 200, 195.5], [250, 0, 400, 195.5]]
    assert read((600, 300, 1005, 400), (500, 500, 800, 973)) == [
        [300, 145.5, 512, 195.5],
        [250, 245.5, 400, 487],
    ]


def test_boxes_come_best_first_without_unlikely_ones_and_doubles() -> None:
    raw = rows(
        (100, 100, 200, 200, 0.5),
        (300, 300, 400, 400, 0.4),  # as unlikely as can be
        (500, 500, 600, 600, 0.41),
        (100, 100, 200, 191, 0.9),  # shares 0.91 with the first
        (500, 500, 600, 589, 0.7),  # shares 0.89 with the third
    )
    found = object_boxes(raw, (1024, 1024), (1024, 1024))
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.41])
    assert found.corners.tolist() == [[100, 100, 200, 191], [500, 500, 600, 589], [500, 500, 600, 600]]
    none = object_boxes(raw[1:2], (1024, 1024), (1024, 1024))
    assert none.corners.shape == (0, 4) and none.scores.shape == (0,)


def test_an_image_has_300_boxes_at_most() -> None:
    places = np.arange(310) * 3.0 + 20
    scores = np.random.default_rng(0).permutation(310) / 1000 + 0.5
    raw = rows(*[(x, 100.0, x + 2, 120.0, score) for x, score in zip(places, scores, strict=True)])
    found = object_boxes(raw, (1024, 1024), (1024, 1024))
    assert found.scores.tolist() == pytest.approx(sorted(scores, reverse=True)[:300])
