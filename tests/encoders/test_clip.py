"""CLIPs against open_clip's and timm's own: every shortcut must leave every number as it is."""

from __future__ import annotations

import random
import threading
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP

from capeval_core.cache import FeatureCache
from capeval_core.testing import count_forwards
from tests.support import seams
from tests.support.eva_checkpoint import Sizes
from tests.support.networks import folder
from tests.support.seeded import HEADS, encoder, eva, eva_tensors, open_clip_repository, release

Floats = NDArray[np.float32]
EVERY = pytest.mark.parametrize("case", HEADS)
PROMPT = "A photo depicts "
WORDS = ["a", "the", "dog", "cat", "man", "horse", "street", "running", "red", "circle", "of", "hippopotamus"]
WORDS += ["café", "犬", "😺", "isn't", "1234", "#!?", "unbelievable"]


@cache
def theirs(case: str) -> Any:
    """open_clip's own model of a case, with the same tensors."""
    found = release(case)
    shape = found.config["architecture"]
    quick = found.config["activation"] == "quick_gelu"
    model = CLIP(shape["embed_dim"], shape["vision"], shape["text"], quick_gelu=quick)
    model.load_state_dict(found.tensors)
    return model.eval()


def padded(ids: list[tuple[int, ...]]) -> torch.Tensor:
    rows = torch.zeros(len(ids), 77, dtype=torch.long)
    for i, own in enumerate(ids):
        rows[i, : len(own)] = torch.tensor(own)
    return rows


def texts_of(model: Any, clip: Any, texts: list[str]) -> Floats:
    """open_clip's features of ids padded with zeros."""
    with torch.no_grad():
        parts = padded(clip.tokenizer.encode(texts).ids).split(32)
        return np.asarray(torch.cat([model.encode_text(part) for part in parts]))


def ours(clip: Any, texts: list[str], **more: Any) -> Floats:
    return np.asarray(clip.encode_texts(texts, cache=FeatureCache(0), **more).features)


def images(clip: Any, shown: list[Any], **more: Any) -> Floats:
    return np.stack([each["features"] for each in seams.encode(clip, shown, **more)])


def noise(count: int, height: int = 20, width: int = 20) -> list[Any]:
    return list(np.random.default_rng(4).integers(0, 256, (count, height, width, 3), dtype=np.uint8))


def agree(found: Any, expected: Any, relative: float = 1e-5) -> bool:
    """Rows that are equal, relative to the length of a row."""
    found, expected = np.asarray(found), np.asarray(expected)
    off = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return bool((off <= relative).all())


def texts_of_all_lengths(prefix: str = "") -> list[str]:
    chance = random.Random(5)
    return [f"{prefix}{' '.join(chance.choices(WORDS, k=length))}" for length in range(1, 91)]


# ---- texts


@EVERY
def test_texts_of_all_lengths(case: str) -> None:
    step = 1 if case == "pacs-vit-tiny" else 4
    alone, prompted = texts_of_all_lengths()[::step], texts_of_all_lengths(PROMPT)[::step]
    texts = [*prompted, *alone, "", " "]
    clip = encoder(case)
    expected = texts_of(theirs(case), clip, texts)
    assert agree(ours(clip, texts), expected)
    assert agree(ours(clip, prompted), expected[: len(prompted)])  # with a shared prefix
    for batch_size in (1, 7, 1000):
        assert agree(ours(clip, prompted[:12], batch_size=batch_size), expected[:12])
    for row in (0, len(prompted) - 1, len(prompted) + 5, len(texts) - 1):
        assert agree(ours(clip, [texts[row]]), expected[row : row + 1])


@EVERY
def test_tokens_of_texts_of_all_lengths(case: str) -> None:
    """Each token's feature is that of open_clip's own modules over padded ids; the last is the text's."""
    alone, prompted = texts_of_all_lengths()[::9], texts_of_all_lengths(PROMPT)[::9]
    clip, model = encoder(case), theirs(case)
    for texts in ([*alone, *prompted, ""], prompted, [""], prompted[:1] * 2):
        found = clip.encode_tokens(texts, cache=FeatureCache(0))
        assert found.ids == clip.tokenizer.encode(texts).ids
        with torch.no_grad():
            states = model.token_embedding(padded(found.ids)) + model.positional_embedding
            states = model.transformer(states, attn_mask=model.attn_mask)
            expected = np.asarray(model.ln_final(states) @ model.text_projection)
        for ids, rows, other in zip(found.ids, found.features, expected, strict=True):
            assert agree(rows, other[: len(ids)])
        assert agree([rows[-1] for rows in found.features], ours(clip, texts))


def test_what_does_not_reach_the_feature_is_not_encoded_again() -> None:
    with count_forwards() as forwards:
        found = ours(encoder(), ["a dog <|endoftext|> one", "a dog <|endoftext|> two", "a dog"])
        assert ours(encoder(), []).shape == (0, 32)
    assert forwards.items == 1 and np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    assert encoder().encode_texts(["dog " * 75, "dog " * 76, ""], cache=FeatureCache(0)).truncated == [
        0,
        1,
        0,
    ]


# ---- images


@EVERY
def test_images(case: str) -> None:
    clip, shown = encoder(case), [*noise(3), *noise(2, 90, 60), *noise(1, 2, 400), *noise(1, 64, 63)]
    pixels = [clip.preprocess(seams.visual("image", one).load()) for one in shown]
    with torch.no_grad():
        expected = np.asarray(theirs(case).encode_image(torch.from_numpy(np.stack(pixels))))
    assert agree(images(clip, shown), expected)
    assert agree(images(clip, shown, batch_size=3), expected)


@pytest.mark.parametrize("quick", [False, True])
@torch.inference_mode()
def test_towers_of_timm_are_those_of_open_clip(tmp_path: Path, quick: bool) -> None:
    place = open_clip_repository(tmp_path / "mobile", quick=quick)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{place}")
    model.eval()
    clip, shown, texts = seams.network("open_clip", place), noise(2, 70, 90), ["a dog runs", "dog " * 90]
    pixels = torch.stack([transform(seams.visual("image", one).load()) for one in shown])
    ids = open_clip.get_tokenizer(f"local-dir:{place}")(texts)
    assert np.allclose(images(clip, shown), model.encode_image(pixels), atol=1e-5)
    assert np.allclose(ours(clip, texts), model.encode_text(ids), atol=1e-5)


def test_open_clips_names_of_towers_tell_the_encoder(tmp_path: Path) -> None:
    plain = open_clip_repository(tmp_path / "plain", custom=False)
    assert images(seams.network("open_clip", plain), noise(1)).shape == (1, 24)
    for kind, place in (("clip", plain), ("open_clip", folder("clip"))):
        with pytest.raises(ValueError, match="weights"):
            seams.network(kind, place)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_evas_tower_is_timms_of_this_configuration(norm: str) -> None:
    from timm.layers.norm import RmsNorm
    from timm.models.eva import Eva

    sizes = Sizes()
    tower = Eva(
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
    named = {
        name.removeprefix("visual."): tensor for name, tensor in eva_tensors().items() if "visual" in name
    }
    head = named.pop("head.weight")
    tower.load_state_dict(named)
    shown = noise(3, 40, 33)
    pixels = [eva(norm).preprocess(seams.visual("image", one).load()) for one in shown]
    with torch.inference_mode():
        expected = tower(torch.from_numpy(np.stack(pixels))) @ head.T
    assert agree(images(eva(norm), shown), expected)
    assert not agree(images(eva("post"), shown), images(eva("pre"), shown), 0.1)


def test_evas_texts_are_open_clips() -> None:
    sizes, shape = Sizes(), eva().config["architecture"]
    vision = {"image_size": 16, "patch_size": 8, "width": 8, "layers": 1, "head_width": 4}
    model = CLIP(sizes.dimension, vision, shape["text"]).eval()
    named = {name.removeprefix("text."): t for name, t in eva_tensors().items() if "visual" not in name}
    model.load_state_dict(named, strict=False)
    texts = ["a dog", "two red circles on the left of a very long road", "", "it's 3 o'clock: " * 30]
    assert agree(ours(eva(), texts), texts_of(model, eva(), texts))


def test_evas_narrow_weights_are_widened_as_they_run_and_not_copied() -> None:
    narrow = eva(half=True)
    kept = {name: tensor.dtype for name, tensor in narrow.model.state_dict().items() if "visual" in name}
    assert set(kept.values()) == {torch.float16}
    tensors = {name: tensor.float() for name, tensor in narrow.model.state_dict().items()}
    wide = seams.network("eva_clip", narrow.config, tensors)
    assert np.array_equal(images(narrow, noise(2)), images(wide, noise(2)))
    name = "visual.blocks.1.mlp.fc2.weight"  # squares of thousands are beyond float16
    large = {**tensors, name: tensors[name] * 3000}
    a, b = (seams.network("eva_clip", narrow.config, large, dtype=dtype) for dtype in ("float32", "float16"))
    assert agree(images(b, noise(2)), images(a, noise(2)), 1e-2)


# ---- exactness


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has older switches")
def test_the_switches_of_a_program_wait_for_the_last_thread() -> None:
    backends: Any = torch.backends
    before = backends.mkldnn.matmul.fp32_precision
    inside, leave, seen = threading.Event(), threading.Event(), []
    found = release()
    clip = seams.network("clip", found.config, dict(found.tensors))

    def wait(module: Any, inputs: Any) -> None:
        seen.append(backends.mkldnn.matmul.fp32_precision)
        inside.set()
        leave.wait(600)

    clip.model.visual.conv1.register_forward_pre_hook(wait)
    try:
        backends.mkldnn.matmul.fp32_precision = "tf32"
        thread = threading.Thread(target=lambda: images(clip, noise(1)))
        thread.start()
        inside.wait(600)
        ours(encoder(), ["a dog"])
        assert backends.mkldnn.matmul.fp32_precision == "ieee"
        leave.set()
        thread.join(600)
        assert backends.mkldnn.matmul.fp32_precision == "tf32" and seen == ["ieee"]
    finally:
        backends.mkldnn.matmul.fp32_precision = before
