"""EVA-CLIP against the architecture written out, against timm, and in its true size without memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.eva_clip import EvaClipEncoder, EvaTower, empty_eva_clip
from capeval_core.inputs.visual import InputImage
from capeval_core.weights.folder import WeightsError
from tests.support.eva_checkpoint import Sizes, image_feature, text_feature
from tests.support.seeded import eva, eva_release, eva_tensors, write_config

Floats = NDArray[np.float32]
TEXTS = ["a dog", "two red circles on the left of a very long road", "", "A Dog", "it's 3 o'clock: " * 30]
FULL: dict[str, Any] = {
    "embed_dim": 1536,
    "vision": {
        "image_size": 224,
        "patch_size": 14,
        "width": 5120,
        "layers": 48,
        "head_width": 128,
        "mlp_width": 25600,
        "norm": "post",
    },
    "text": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 1280,
        "heads": 20,
        "layers": 32,
        "mlp_ratio": 4.0,
    },
}
"""EVA-CLIP-18B, as its authors' configuration says."""


def image(seed: int, height: int = 40, width: int = 33) -> InputImage:
    return InputImage.of(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def image_features(of: EvaClipEncoder, images: list[InputImage], **more: Any) -> Floats:
    more.setdefault("cache", FeatureCache(0))
    return np.concatenate([part.features for part in of.encode_images(images, **more)])


def text_features(of: EvaClipEncoder, texts: list[str], **more: Any) -> Floats:
    more.setdefault("cache", FeatureCache(0))
    return of.encode_texts(texts, **more).features


def off(found: Floats, expected: Floats) -> float:
    lengths = np.linalg.norm(expected, axis=-1)
    return float((np.linalg.norm(found - expected, axis=-1) / lengths).max())


# ---- a second way of computing


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("half", [False, True])
def test_images_are_those_of_the_architecture_written_out(norm: str, half: bool) -> None:
    shown = [image(seed, 20 + 7 * seed, 50 - 5 * seed) for seed in range(4)]
    of = eva(norm, half=half)
    pixels = [torch.from_numpy(of.preprocess(one.load())) for one in shown]
    expected = [image_feature(eva_tensors(half), each, norm=norm).float().numpy() for each in pixels]
    assert off(image_features(of, shown), np.stack(expected)) < 1e-5


@pytest.mark.parametrize("half", [False, True])
def test_texts_are_those_of_the_architecture_written_out(half: bool) -> None:
    ids = eva().tokenizer.encode(TEXTS).ids
    expected = [text_feature(eva_tensors(half), list(row)).float().numpy() for row in ids]
    assert off(text_features(eva(half=half), TEXTS), np.stack(expected)) < 1e-5


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_tower_is_timms_of_this_configuration(norm: str) -> None:
    from timm.layers.norm import RmsNorm
    from timm.models.eva import Eva

    sizes = Sizes()
    theirs = Eva(
        img_size=sizes.image,
        patch_size=sizes.patch,
        num_classes=0,
        global_pool="token",
        embed_dim=sizes.width,
        depth=sizes.layers,
        num_heads=sizes.width // sizes.head_width,
        qkv_bias=False,
        mlp_ratio=sizes.hidden / sizes.width,
        norm_layer=partial(RmsNorm, eps=1e-6),
        use_post_norm=norm == "post",
    ).eval()
    tower = {
        name.removeprefix("visual."): tensor
        for name, tensor in eva_tensors().items()
        if name.startswith("visual.") and "head" not in name
    }
    theirs.load_state_dict(tower)
    pixels = torch.randn(3, 3, sizes.image, sizes.image, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = theirs(pixels) @ eva_tensors()["visual.head.weight"].T
        found = eva(norm).model.visual(pixels)
    assert off(found.numpy(), expected.numpy()) < 1e-5


def test_what_the_norms_place_changes_features() -> None:
    """Else the two tests above would hold for a tower that forgets it."""
    assert off(image_features(eva("post"), [image(1)]), image_features(eva("pre"), [image(1)])) > 0.1


# ---- its true size


def test_the_sizes_of_the_released_file() -> None:
    """36.65 GB in float16 on the Hub: 18.3 billion parameters, of which the paper rounds the towers down."""
    model = empty_eva_clip({"architecture": FULL, "activation": "gelu"})
    total = sum(tensor.numel() for tensor in model.state_dict().values())
    vision = sum(tensor.numel() for tensor in model.visual.parameters())
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert (vision, total - vision) == (17_630_494_720, 694_987_521)
    assert round(2 * total / 1e9, 2) == 36.65
    # The text tower is EVA-02-CLIP-E/14+'s but for its projection, as open_clip builds it.
    from open_clip import get_model_config

    theirs = get_model_config("EVA02-E-14-plus")["text_cfg"]
    assert theirs.items() <= FULL["text"].items()


def test_the_smaller_model_of_the_release_has_its_size_too() -> None:
    """EVA-CLIP-8B: 32.9 GB in float32."""
    vision = {**FULL["vision"], "width": 4096, "layers": 32, "mlp_width": 20480, "norm": "pre"}
    shape = {**FULL, "embed_dim": 1280, "vision": vision}
    model = empty_eva_clip({"architecture": shape, "activation": "gelu"})
    total = sum(tensor.numel() for tensor in model.state_dict().values())
    assert round(4 * total / 1e9, 1) == 32.9


# ---- types and memory


def test_narrow_weights_are_widened_as_they_run_not_kept_wide() -> None:
    narrow = eva(half=True)
    kept = {name: tensor.dtype for name, tensor in narrow.model.state_dict().items()}
    assert {dtype for name, dtype in kept.items() if name.startswith("visual.")} == {torch.float16}
    assert {dtype for name, dtype in kept.items() if not name.startswith("visual.")} == {torch.float32}
    tensors = {name: tensor.float() for name, tensor in eva_release(half=True).tensors.items()}
    wide = EvaClipEncoder(eva_release(half=True).config, tensors, device="cpu")
    assert np.array_equal(image_features(narrow, [image(3)]), image_features(wide, [image(3)]))


def test_tensors_are_not_copied_where_they_fit() -> None:
    found = eva_release(half=True)
    for dtype in ("float32", "float16"):
        model = EvaClipEncoder(found.config, found.tensors, device="cpu", dtype=dtype).model
        for name, tensor in model.state_dict().items():
            if name.startswith("visual."):
                assert tensor.data_ptr() == found.tensors[name].data_ptr(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_near(dtype: str) -> None:
    shown = [image(seed) for seed in range(3)]
    limit = 3e-2 if dtype == "float16" else 3e-1
    assert off(image_features(eva(dtype=dtype), shown), image_features(eva(), shown)) < limit
    assert off(text_features(eva(dtype=dtype), TEXTS), text_features(eva(), TEXTS)) < limit
    assert image_features(eva(dtype=dtype), shown).dtype == np.float32


def test_squares_beyond_float16_do_not_harm() -> None:
    """Before the norm that follows it an MLP may give thousands, whose squares float16 cannot hold."""
    found = eva_release()
    name = "visual.blocks.1.mlp.fc2.weight"
    tensors = {**found.tensors, name: found.tensors[name] * 3000}
    wide, narrow = (
        EvaClipEncoder(found.config, tensors, device="cpu", dtype=dtype) for dtype in ("float32", "float16")
    )
    assert off(image_features(narrow, [image(4)]), image_features(wide, [image(4)])) < 1e-2


# ---- invariances


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_any_order_and_any_batch(order: list[int], batch_size: int) -> None:
    alone = np.concatenate([image_features(eva(), [image(seed)]) for seed in range(6)])
    found = image_features(eva(), [image(seed) for seed in order], batch_size=batch_size)
    assert off(found, alone[order]) < 1e-5
    texts = [f"{seed} dogs" + " and a cat" * seed for seed in range(6)]
    separate = np.concatenate([text_features(eva(), [text]) for text in texts])
    assert off(text_features(eva(), [texts[i] for i in order], batch_size=batch_size), separate[order]) < 1e-5


def test_a_image_that_cannot_be_read_costs_its_row(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"nothing")
    (part,) = eva().encode_images([image(1), InputImage.of(broken)], cache=FeatureCache(0))
    assert np.isfinite(part.features[0]).all() and np.isnan(part.features[1]).all()
    assert part.errors[0] is None and "broken.jpg" in str(part.errors[1])


def test_images_and_texts_are_kept() -> None:
    kept = FeatureCache(1 << 20)
    first = image_features(eva(), [image(1)], cache=kept)
    forward, runs = EvaTower.forward, []

    def counted(self: EvaTower, pixels: torch.Tensor) -> torch.Tensor:
        runs.append(len(pixels))
        return forward(self, pixels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaTower, "forward", counted)
        assert np.array_equal(image_features(eva(), [image(1), image(1)], cache=kept), np.repeat(first, 2, 0))
        image_features(eva(), [image(2)] * 3, cache=kept)
    assert runs == [1]


# ---- weights


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    found = eva_release(half=True)
    EvaClipEncoder(found.config, found.tensors, device="cpu").save_pretrained(tmp_path / "eva")
    yield tmp_path / "eva"


def test_saved_weights_come_back(saved: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(saved / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    found = EvaClipEncoder.from_pretrained(saved, device="cpu")
    assert np.array_equal(image_features(found, [image(5)]), image_features(eva(half=True), [image(5)]))
    for dtype in ("float16", "bfloat16"):  # the canary is within its tolerance
        assert EvaClipEncoder.from_pretrained(saved, device="cpu", dtype=dtype).dtype == dtype
    assert found.fingerprint == EvaClipEncoder.from_pretrained(saved, device="cpu").fingerprint


@pytest.mark.parametrize("setting", [("norm", "pre"), ("head_width", 24)])
def test_the_canary_sees_what_tensors_do_not_show(saved: Path, setting: tuple[str, Any]) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["architecture"]["vision"][setting[0]] = setting[1]
    write_config(saved, config)
    with pytest.raises(WeightsError, match="canary cosines are off"):
        EvaClipEncoder.from_pretrained(saved, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("visual.blocks.1.attn.qkv.weight"), r"1 tensors are missing: 'visual.blocks.1.attn"),
        (lambda t: t.update(extra=torch.zeros(1)), r"1 tensors are not part of the architecture: 'extra'"),
        (lambda t: t.update({"visual.head.weight": torch.zeros(40, 47)}),
         r"visual.head.weight \(40, 47\) instead of \(40, 48\)"),
    ],
)  # fmt: skip
def test_tensors_must_fit(change: Any, message: str) -> None:
    tensors = dict(eva_release().tensors)
    change(tensors)
    with pytest.raises(WeightsError, match=message):
        EvaClipEncoder(eva_release().config, tensors, device="cpu")


def test_every_wrong_setting_of_a_config_is_named() -> None:
    config = json.loads(json.dumps(eva_release().config))
    config["architecture"]["vision"] |= {"norm": "both", "rope": True}
    del config["architecture"]["vision"]["mlp_width"]
    config["activation"] = "quick_gelu"
    with pytest.raises(WeightsError) as caught:
        EvaClipEncoder(config, eva_release().tensors, device="cpu")
    for told in ("has rope", "lacks mlp_width", "norm is 'both'", "activation is 'quick_gelu'"):
        assert told in str(caught.value)
