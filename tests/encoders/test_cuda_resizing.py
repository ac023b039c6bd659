"""Resizing on CUDA: the kernels interpreted and compiled, and images that go that way to their features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders import clip as module
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.cuda_blocks import Kernels
from capeval_core.inputs.decoding import square_pixels
from capeval_core.inputs.resampling import Pixels, Unresized, unresized_pixels
from capeval_core.inputs.visual import InputImage
from capeval_core.models.copies import packed_on_device
from capeval_core.models.device import triton_version
from tests.cuda.fake import CUDA, fake_cuda
from tests.inputs.test_resampling import METHODS, NO_LIMIT, drawn

pytestmark = pytest.mark.skipif(triton_version() is None, reason="triton is not installed")
SIZES = [(40, 31), (20, 60), (90, 12), (7, 3), (33, 33), (16, 16), (2, 50)]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole images per program: the interpreter takes as long for a large tile as for a small one."""
    from capeval_core.encoders import cuda_resizing

    if not torch.cuda.is_available():
        monkeypatch.setitem(cuda_resizing.OPTIONS, "ROWS", 64)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_any_sizes_is_what_pillow_gives(method: Image.Resampling) -> None:
    from capeval_core.encoders.cuda_resizing import squares

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(method)
    images = [drawn(rng, size, "L" if i % 3 == 0 else "RGB") for i, size in enumerate(SIZES)]
    images.insert(2, images[1].convert("CMYK"))
    pixels: list[Pixels] = [unresized_pixels(image, 16, method, NO_LIMIT) for image in images]
    assert sum(isinstance(each, Unresized) for each in pixels) == len(SIZES)
    found = squares(pixels, 16, device, method).cpu().numpy()
    for own, image in zip(found, images, strict=True):
        assert np.array_equal(own, square_pixels(image, 16, method)), image


def test_pixels_are_copied_without_a_wait() -> None:
    parts = [np.arange(12, dtype=np.uint8).reshape(2, 2, 3)[:, 1:], np.full((1, 2, 1), 7, dtype=np.uint8)]
    parts[0].flags.writeable = False
    with fake_cuda() as gpu:
        found = packed_on_device(CUDA, parts)
        assert not gpu.waits and [each.bytes for each in gpu.transfers] == [8]
        assert found.cpu().tolist() == [3, 4, 5, 9, 10, 11, 7, 7]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[InputImage]]:
    rng = np.random.default_rng(3)
    for i, mode in enumerate(("RGB", "L", "RGBA", "RGB")):
        drawn(rng, (70 - 9 * i, 50 + i), "RGB").convert(mode).save(tmp_path / f"{i}.png")
    (tmp_path / "4.png").write_bytes((tmp_path / "0.png").read_bytes()[:90])
    return [InputImage.of(tmp_path / f"{i}.png", f"images[{i}]") for i in range(5)]


@pytest.mark.parametrize("decoders", [None, 1])
def test_features_do_not_depend_on_where_images_are_resized(
    files: list[InputImage], decoders: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = ClipEncoder.from_pretrained("tiny")
    batches: list[tuple[list[bool], torch.Tensor]] = []
    squares = ClipEncoder._squares

    def resized(self: ClipEncoder, pixels: list[Pixels]) -> torch.Tensor:
        batches.append(([isinstance(each, Unresized) for each in pixels], squares(self, pixels)))
        monkeypatch.setattr(self, "kernels", None)  # those of the towers are no part of this test
        return batches[-1][1]

    monkeypatch.setattr(ClipEncoder, "_squares", resized)
    (expected,) = clip.encode_images(files, cache=FeatureCache(0))
    [(of_cpu, pixels)] = batches
    assert not any(of_cpu)
    for most, unresized in ((1 << 40, [True, True, False, True]), (4 * 5000, [False, True, False, False])):
        clip.kernels = Kernels()
        monkeypatch.setattr(module, "WAITING", most)
        batches.clear()
        parts = list(
            clip.encode_images(files, cache=FeatureCache(0), batch_size=4, decoders=decoders, resize="device")
        )
        assert [kind for kind, _ in batches] == [unresized]
        assert torch.equal(batches[0][1], pixels)
        found = np.concatenate([part.features for part in parts])
        np.testing.assert_allclose(found, expected.features, rtol=0, atol=1e-5)
        assert [error for part in parts for error in part.errors] == expected.errors


def test_without_kernels_images_are_resized_on_the_cpu(files: list[InputImage]) -> None:
    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    (expected,) = clip.encode_images(files, cache=FeatureCache(0))
    (found,) = clip.encode_images(files, cache=FeatureCache(0), resize="device")
    assert np.array_equal(found.features, expected.features, equal_nan=True)


SCRIPT = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capeval_core.encoders.cuda_resizing import OPTIONS, across_kernel, down_kernel

fixed = {"SIZE": 224, "BLOCK": 256, **{name: value for name, value in OPTIONS.items() if name.isupper()}}
found = {}
for architecture in (80, 90, 100):
    for kernel in (across_kernel, down_kernel):
        types = {"pixels": "*u8", "plan": "*i32", "out": "*u8", **dict.fromkeys(fixed, "constexpr")}
        source = ASTSource(kernel, signature=types, constexprs=fixed)
        target = GPUTarget("cuda", architecture, 32)
        compiled = triton.compile(source, target=target, options={"num_warps": OPTIONS["num_warps"]})
        spills = ".local" in compiled.asm["ptx"]
        found[f"{architecture} {kernel.fn.__name__}"] = len(compiled.asm["cubin"]) > 0 and not spills
print(json.dumps(found))
"""


@pytest.mark.system
def test_kernels_compile_without_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 6 and all(found.values()), found
