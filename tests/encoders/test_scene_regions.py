from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.scene_regions import GRID, MOST_BOXES, SceneRegionEncoder, cut, scene_boxes
from capeval_core.inputs.visual import InputImage
from capeval_core.regions.features import BoxVisual
from capeval_core.regions.selection import boxes_kept
from capeval_core.weights.folder import TINY, WeightsError, WeightsFolder, open_weights
from tools.scenes import Scene, SceneObject, draw, masks, sample_scene

SCENE = Scene(
    (
        SceneObject("star", "red", "large", (0.25, 0.3), 0.3),
        SceneObject("circle", "blue", "small", (0.75, 0.6), 0.18),
    ),
    "cream",
)


@pytest.fixture(scope="module")
def encoder() -> SceneRegionEncoder:
    return SceneRegionEncoder.from_pretrained("tiny", device="cpu")


def found(encoder: SceneRegionEncoder, *images: Any, **options: Any) -> list[BoxVisual]:
    return list(encoder.encode_boxes(map(InputImage.of, images), cache=FeatureCache(0), **options))


def test_objects_come_first_with_their_boxes(encoder: SceneRegionEncoder) -> None:
    (visual,) = found(encoder, draw(SCENE, 192))
    boxes = visual.load()
    assert boxes.scores is not None and boxes.features.shape == (10, encoder.region_size)
    assert (boxes.scores[:2] > 0.9).all() and (boxes.scores[2:] < 0.2).all()
    for box, mask in zip(boxes.boxes[[0, 1]], masks(SCENE, 192), strict=True):
        rows, columns = np.nonzero(mask)
        near = min(
            np.abs(other - [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).max()
            for other in boxes.boxes[:2]
        )
        assert near <= 4, box


def test_boxes_are_sorted_10_to_36_and_inside_of_the_image(encoder: SceneRegionEncoder) -> None:
    rng = np.random.default_rng(2)
    noise = Image.fromarray(rng.integers(0, 255, (61, 97, 3), dtype=np.uint8))
    tiles = Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).resize((270, 180), 0)
    images = [draw(sample_scene(rng), 96), noise, tiles, Image.new("L", (2, 2)), Image.new("P", (300, 2))]
    for image, visual in zip(images, found(encoder, *images), strict=True):
        boxes = visual.load()
        assert 10 <= len(boxes) <= MOST_BOXES and boxes.size == image.size and boxes.scores is not None
        assert (np.diff(boxes.scores) <= 0).all() and boxes_kept(boxes.scores) == len(boxes)
        assert (boxes.boxes >= 0).all() and (boxes.boxes[:, 2:] <= image.size).all()
        assert (boxes.boxes[:, 2:] > boxes.boxes[:, :2]).all() and np.isfinite(boxes.features).all()


def test_the_grid_covers_the_image() -> None:
    boxes = scene_boxes(Image.new("RGB", (90, 60), "white"))
    assert len(boxes) == GRID * GRID + 1
    assert boxes[0].tolist() == [0, 0, 90, 60] and boxes[-1].tolist() == [60, 40, 90, 60]
    assert np.prod(boxes[1:, 2:] - boxes[1:, :2], axis=1).sum() == 90 * 60


def test_crops_show_what_is_in_the_box() -> None:
    image = Image.new("RGB", (100, 100), "white")
    image.paste((200, 10, 10), (40, 40, 60, 60))
    crops = cut(image, np.array([[40, 40, 60, 60], [0, 0, 20, 20]], dtype=np.float32), 24)
    assert crops.shape == (2, 3, 24, 24)
    assert crops[0, :, 12, 12].tolist() == [200, 10, 10] and crops[0, 1, 0, 0] > 200  # some margin around it
    assert (crops[1] == 255).all()


def test_features_do_not_depend_on_the_batch_and_equal_images_run_once(
    encoder: SceneRegionEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    images = [draw(sample_scene(rng), 96) for _ in range(3)]
    alone = [visual.load() for image in images for visual in found(encoder, image)]
    forward, batches = encoder._forward, []
    monkeypatch.setattr(encoder, "_forward", lambda crops: batches.append(len(crops)) or forward(crops))
    together = found(encoder, *images, images[0], batch_size=2)
    assert batches == [2, 1]
    for visual, boxes in zip(together, [*alone, alone[0]], strict=True):
        np.testing.assert_allclose(visual.load().features, boxes.features, atol=1e-5)
        np.testing.assert_array_equal(visual.load().boxes, boxes.boxes)


def test_an_image_that_cannot_be_read_has_an_error(encoder: SceneRegionEncoder, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    first, broken, last = found(encoder, draw(SCENE, 96), tmp_path / "broken.png", draw(SCENE, 96))
    assert first.error is None is last.error and broken.error is not None and "broken.png" in broken.error


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": None}, "architecture is None, expected an object"),
        ({"architecture": {"width": 16, "region_size": 64}}, "architecture lacks image_size"),
        ({"architecture": {"image_size": 4, "width": 16, "region_size": 64}}, "a whole number from 8 to 128"),
        ({"architecture": {"image_size": 24, "width": -1, "region_size": 64}}, "architecture.width is -1"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    folder = open_weights(TINY / "scene-regions", metric="umic", tiny="scene-regions")
    spoilt = WeightsFolder(
        folder.path, "mine", None, {**folder.config, **changed}, folder.tensor_file, folder.checksum
    )
    with pytest.raises(WeightsError, match=message):
        SceneRegionEncoder.open(spoilt, device="cpu")


def test_bfloat16_stays_near(encoder: SceneRegionEncoder) -> None:
    half = SceneRegionEncoder.from_pretrained("tiny", device="cpu", dtype="bfloat16")
    (exact,), (near,) = (found(each, draw(SCENE, 128)) for each in (encoder, half))
    difference = np.abs(exact.load().features[:2] - near.load().features[:2]).max()
    assert 0 < difference < 0.1 * np.abs(exact.load().features).max()
    assert half.model.feature.weight.dtype is torch.bfloat16
