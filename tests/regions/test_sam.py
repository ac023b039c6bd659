"""SAM: converted releases in every form, folders in transformers' format, what prompting promises."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cli import main
from capeval_core.regions.sam import Sam, open_sam
from capeval_core.regions.sam_model import build, with_copy
from capeval_core.weights.conversion import renamed
from capeval_core.weights.folder import WeightsError
from capeval_core.weights.sam import DECODER_NAMES, ENCODER_NAMES
from tests.golden import recipe
from tests.regions import original_sam
from tests.support.seams import LIMITS
from tests.support.seeded import write_config

CASE = Path(__file__).parents[1] / "golden" / "cases" / "sam-boxes-tiny"
BOXES = np.array([[10, 10, 60, 70], [0, 0, 160, 100], [100, 20, 104, 90]], dtype=np.float32)


def opened(folder: Path, dtype: str = "float32") -> Sam:
    return open_sam(folder, device="cpu", dtype=dtype)[0]


@pytest.fixture(scope="module")
def original() -> dict[str, torch.Tensor]:
    """A whole tiny SAM with the names of its release."""
    tensors = recipe.state_dict(CASE / "manifest.json", 1)
    return {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}


def split(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two files of MobileSAMv2: image encoder, and decoder in parts."""
    encoder = {name: x for name, x in tensors.items() if name.startswith("image_encoder.")}
    parts: dict[str, Any] = {"PromtEncoder": {}, "MaskDecoder": {}}
    for name, x in tensors.items():
        first, _, rest = name.partition(".")
        if first != "image_encoder":
            parts["PromtEncoder" if first == "prompt_encoder" else "MaskDecoder"][rest] = x
    return {"state_dict": encoder}, parts


def test_names_are_those_of_transformers() -> None:
    known = json.loads((CASE / "hf_key_map.json").read_text())
    for name, places in known.items():
        bare = name.removeprefix("image_encoder.")
        in_encoder = f"vision_encoder.{renamed(bare, ENCODER_NAMES['vit'])}"
        assert (renamed(name, DECODER_NAMES) if bare == name else in_encoder) in places


def test_releases_in_every_form_become_the_same_weights(
    original: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    encoder, decoder = split(original)
    torch.save(original, tmp_path / "whole.pth")
    torch.save({"model": original}, tmp_path / "model.pth")
    torch.save(encoder, tmp_path / "l2.pt")
    torch.save(decoder, tmp_path / "decoder.pt")
    bare = {name.removeprefix("image_encoder."): x for name, x in encoder["state_dict"].items()}
    torch.save(bare, tmp_path / "bare.pt")
    whole = Sam.convert(tmp_path / "whole.pth", decoder_heads=2)
    for other in (
        Sam.convert(tmp_path / "model.pth", decoder_heads=2),
        *(
            Sam.convert(tmp_path / name, decoder_heads=2, decoder=tmp_path / "decoder.pt")
            for name in ("l2.pt", "bare.pt", "whole.pth")
        ),
    ):
        assert other.config["architecture"] == whole.config["architecture"]
        assert other.tensors.keys() == whole.tensors.keys()
        assert all(torch.equal(other.tensors[name], x) for name, x in whole.tensors.items())
        source = other.config["source"]
    digests = [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("whole.pth", "decoder.pt")
    ]
    assert (source["file"], source["sha256"]) == ("whole.pth", digests[0])
    assert [(file["file"], file["sha256"]) for file in source["beside"]] == [("decoder.pt", digests[1])]


@pytest.mark.system
def test_a_checkpoint_of_mobilesam(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and shapes of the real file, at full size, by the command line; then scored with."""
    case = Path(__file__).parents[1] / "golden" / "cases" / "mobilesamv2" / "tinyvit_manifest.json"
    manifest = {f"image_encoder.{name}": spec for name, spec in json.loads(case.read_text()).items()}
    tensors = recipe.state_dict(manifest | original_sam.decoder(), 3)
    torch.save({name: torch.from_numpy(x) for name, x in tensors.items()}, tmp_path / "mobile_sam.pt")
    out = tmp_path / "mobilesam"
    assert main(["convert", "regions", str(tmp_path / "mobile_sam.pt"), "--out", str(out)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "SAM with tiny_vit_5m, 1024 pixels; decoder 2x256, 8 heads" in output
    assert "decoder: 8 attention heads, as in every release" in output
    unused = "left out 4 tensors that the model does not use or makes itself: 'image_encoder.norm_head.w"
    assert unused in output
    assert f"--regions objects:{out}" in output
    config = json.loads((out / "config.json").read_text())
    assert config["encoder"] == "sam" and "canary" in config and "checksum" in config
    assert opened(out).image_size == 1024  # checks the canary


def test_checkpoints_that_are_not_sam_are_refused(original: dict[str, torch.Tensor], tmp_path: Path) -> None:
    encoder, decoder = split(original)
    missing = {name: x for name, x in original.items() if name != "mask_decoder.iou_token.weight"}
    strange = {name.replace("patch_embed", "stem"): x for name, x in original.items()}
    short = {name: x for name, x in original.items() if "layers.1.norm4" not in name}
    for content, message in (
        (encoder, 'l2.pt has no mask decoder: pass decoder="Prompt_guided_Mask_Decoder.pt"'),
        (decoder, "has no image encoder: give mobile_sam.pt, l2.pt or a SAM"),
        ({"a.b": torch.ones(1)}, "is no SAM: expected names that begin with image_encoder.* found 'a.b'"),
        (original | {"head.x": torch.ones(1)}, "is no SAM: .* found 'head.x'"),
        (strange, "the image encoder is neither a ViT, nor TinyViT, nor EfficientViT-L2"),
        (missing, "not a complete SAM: 'mask_decoder.iou_token.weight' is missing"),
        (short, "not a complete SAM: 2 tensors are missing: .*layers.1.layer_norm4"),
    ):
        torch.save(content, tmp_path / "l2.pt")
        with pytest.raises(ValueError, match=message):
            Sam.convert(tmp_path / "l2.pt", decoder_heads=2)


def test_a_folder_in_transformers_format_is_the_model_that_transformers_loads(
    sam_folder: Path, image: Image.Image
) -> None:
    from transformers import SamModel

    theirs: Any = SamModel.from_pretrained(sam_folder)
    theirs.config.mask_decoder_config.layer_norm_eps = 1e-5
    for layer in theirs.mask_decoder.transformer.layers:
        for norm in (layer.layer_norm1, layer.layer_norm2, layer.layer_norm3, layer.layer_norm4):
            norm.eps = 1e-5
    theirs.mask_decoder.transformer.layer_norm_final_attn.eps = 1e-5
    ours = opened(sam_folder)
    size = (image.height, image.width)
    boxes = torch.from_numpy(ours.scaled(BOXES, size))[None]
    with torch.no_grad():
        output = theirs(ours.preprocess(image)[None], input_boxes=boxes, multimask_output=False)
    logits, quality = ours.decode(ours.embed(image), BOXES, size)
    assert np.allclose(logits, output.pred_masks[0], atol=1e-5)
    assert np.allclose(quality, output.iou_scores[0, :, 0], atol=1e-6)


def test_the_config_of_the_default_on_the_hub() -> None:
    """As it lies there: sizes that are default are left out, and parts have no model type."""
    config = {
        "architectures": ["SamModel"],
        "initializer_range": 0.02,
        "mask_decoder_config": {"model_type": ""},
        "model_type": "sam",
        "prompt_encoder_config": {"model_type": ""},
        "torch_dtype": "float32",
        "transformers_version": "4.37.0.dev0",
        "vision_config": {"hidden_size": 168, "mlp_dim": 696, "model_type": ""},
    }
    from transformers import SamConfig, SamModel

    with torch.device("meta"):
        shapes = {name: x.shape for name, x in SamModel(SamConfig(**config)).state_dict().items()}
    assert shapes["vision_encoder.layers.11.mlp.lin1.weight"] == (696, 168)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    del tensors["prompt_encoder.shared_embedding.positional_embedding"]  # tied: saved once
    built: Any = build({"transformers": config})
    built.load_state_dict(with_copy(tensors))
    assert built.mask_decoder.transformer.layers[0].layer_norm1.eps == 1e-5


def test_boxes_one_by_one_are_as_all_at_once(
    sam_folder: Path, image: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    sam = opened(sam_folder)
    rng = np.random.default_rng(0)
    low = rng.random((40, 2)) * (100, 60)
    boxes = np.concatenate([low, low + 5 + rng.random((40, 2)) * 50], axis=1).astype(np.float32)
    whole = sam.segment(image, boxes)
    monkeypatch.setattr(LIMITS, "sam_boxes", 1)
    monkeypatch.setattr(LIMITS, "sam_logits", 1)
    single = sam.segment(image, boxes)
    assert np.allclose(whole.quality, single.quality, atol=1e-5)
    assert (whole.masks() != single.masks()).mean() < 1e-4  # logits that are all but 0
    assert len(whole) + whole.dropped == 40
    assert len(whole.limited(7)) == 7


def test_no_box_gives_no_region_and_costs_nothing(sam_folder: Path, image: Image.Image) -> None:
    sam = opened(sam_folder)
    ran: list[str] = []
    model: Any = sam.model
    hook = model.vision_encoder.register_forward_pre_hook(lambda *_: ran.append("encoder"))
    regions = sam.segment(image, np.zeros((0, 4), np.float32))
    hook.remove()
    assert (len(regions), regions.size, ran) == (0, (100, 160), [])


def test_threads_get_what_one_gets(sam_folder: Path, image: Image.Image) -> None:
    sam = opened(sam_folder)
    alone = sam.segment(image, BOXES)
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: sam.segment(image, BOXES)})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((regions.masks() == alone.masks()).all() for regions in results.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_of_the_image_encoder(sam_folder: Path, image: Image.Image, dtype: str) -> None:
    exact, half = opened(sam_folder), opened(sam_folder, dtype=dtype)
    assert half.embed(image).dtype == torch.float32
    moved = np.abs(exact.segment(image, BOXES).quality - half.segment(image, BOXES).quality)
    assert 0 < moved.max() < 0.1


def test_weights_that_were_changed_are_refused(original: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.save(original, tmp_path / "sam.pth")
    release = Sam.convert(tmp_path / "sam.pth", decoder_heads=2)
    Sam(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "good")
    assert opened(tmp_path / "good").fingerprint == opened(tmp_path / "good").fingerprint

    config = json.loads((tmp_path / "good" / "config.json").read_text())
    for key, value, message in (
        ("num_attention_heads", 4, "canary"),
        ("mlp_dim", 32, "the config and the tensors do not belong together"),
    ):
        changed = json.loads(json.dumps(config))
        changed["architecture"]["decoder"][key] = value
        shutil.copytree(tmp_path / "good", tmp_path / key)
        write_config(tmp_path / key, changed)
        with pytest.raises(WeightsError, match=message):
            opened(tmp_path / key)
    write_config(tmp_path / "good", config | {"encoder": "clip"})
    with pytest.raises(WeightsError, match="expected 'sam'"):
        opened(tmp_path / "good")


def test_a_config_without_a_model_is_named_once(original: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.save(original, tmp_path / "sam.pth")
    release = Sam.convert(tmp_path / "sam.pth", decoder_heads=2)
    release.config["architecture"]["decoder"]["hidden_size"] = 7
    with pytest.raises(WeightsError) as refused:
        Sam.check_header(release.config, release.tensors)
    assert str(refused.value).count("the tensors do not fit the config (") == 1


def test_a_decoder_of_another_width_is_refused() -> None:
    architecture = {
        "kind": "tiny_vit_5m",
        "image_size": 1024,
        "patch_size": 16,
        "decoder": {"hidden_size": 32, "mask_input_channels": 16},
    }
    with pytest.raises(ValueError, match="a decoder of width 32, but the image encoder gives 256"):
        build(architecture)
