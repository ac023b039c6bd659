"""Sources of regions on a GPU: their boxes and masks are the CPU's, and a source waits for itself alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.regions.owlv2 import Owlv2Boxes
from capeval_core.regions.sam import ObjectRegions, open_sam
from tests.cuda.fake import fake_cuda
from tests.regions.conftest import save_owlv2, save_sam
from tools.scenes import draw, sample_scene

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU, and here is one"),
    pytest.mark.filterwarnings("ignore:Triton kernels cannot be used"),
]


def test_objects_are_found_and_encoded_there(tmp_path: Path) -> None:
    sam, owlv2 = save_sam(tmp_path / "sam"), save_owlv2(tmp_path / "owlv2")
    scene = draw(sample_scene(np.random.default_rng(5)), 160)
    images = [InputImage.of(np.array(part)) for part in (scene, scene.transpose(Image.Transpose.ROTATE_90))]

    def found(device: str) -> list[Any]:
        boxes = Owlv2Boxes(owlv2, device=device, threshold=0)
        source = ObjectRegions(boxes, open_sam(sam, device=device, dtype="float32")[0])
        encoder = AlphaClipEncoder.from_pretrained("tiny", device=device)
        features = list(encoder.encode_regions(images, source, cache=FeatureCache(0)))
        return [*(source.find(image) for image in images), *features]

    *regions, first, second = found("cpu")
    with fake_cuda() as gpu:
        *there, ours, others = found("cuda")
    for a, b in zip(there, regions, strict=True):
        assert len(a) > 10 and all(map(np.array_equal, a.runs, b.runs))
        np.testing.assert_allclose(a.quality, b.quality, atol=1e-5)
    for one, two in ((ours, first), (others, second)):
        assert one.error is None and one.kept.tolist() == two.kept.tolist()
        np.testing.assert_allclose(one.regions, two.regions, atol=1e-4)
    own = [each for each in gpu.waits if "encoders/" in each]
    assert len(own) <= 2, own  # the values of a batch, however many masks it has
