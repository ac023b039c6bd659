"""SAM and OWLv2 as sources of regions: beside transformers, in every form of a release, and from the Hub."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cli import main
from tests.golden import recipe
from tests.hub import commit
from tests.support.seams import convert, open_regions, small_release

CASES = Path(__file__).parents[1] / "golden" / "cases"
SEGMENTER, DETECTOR = "Zigeng/SlimSAM-uniform-77", "google/owlv2-base-patch16-ensemble"


def cached(cache: Path, repository: str, folder: Path) -> None:
    """Put a model where huggingface_hub keeps what it has downloaded."""
    place = cache / f"models--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "snapshots").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(commit("main"))
    link = place / "snapshots" / commit("main")
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


@pytest.fixture
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sam_folder: Path, owlv2_folder: Path
) -> Iterator[Path]:
    """A cache of the Hub with tiny models where the defaults would be."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cached(tmp_path / "hub", SEGMENTER, sam_folder)
    cached(tmp_path / "hub", DETECTOR, owlv2_folder)
    with small_release("SlimSAM-uniform-77"):
        yield tmp_path / "hub"


def opened(spec: str, **settings: Any) -> Any:
    return open_regions(spec, device="cpu", **settings)


def test_objects_equal_those_of_transformers(cache: Path, image: Image.Image, sam_folder: Path) -> None:
    """The boxes of OWLv2 prompt SAM, whose masks are those of transformers' model."""
    from transformers import SamImageProcessor, SamModel

    source = opened("objects")
    regions, boxes = source.segment(image), opened("rectangles").segment(image)
    assert source.name == f"objects:{SEGMENTER}@{commit('main')[:8]}+{DETECTOR}@{commit('main')[:8]}"
    assert opened(f"objects:{sam_folder}").fingerprint == source.fingerprint
    narrow = opened(f"objects:{sam_folder}", dtype="bfloat16").fingerprint.split("-")
    wide = source.fingerprint.split("-")
    assert len(wide) == len(narrow) and sum(a != b for a, b in zip(wide, narrow, strict=True)) == 2
    assert regions.size == (100, 160)
    assert len(regions) + regions.dropped == len(boxes) + boxes.dropped > 5

    theirs: Any = SamModel.from_pretrained(sam_folder)
    theirs.config.mask_decoder_config.layer_norm_eps = 1e-5
    for layer in theirs.mask_decoder.transformer.layers:
        for norm in (layer.layer_norm1, layer.layer_norm2, layer.layer_norm3, layer.layer_norm4):
            norm.eps = 1e-5
    theirs.mask_decoder.transformer.layer_norm_final_attn.eps = 1e-5
    processor: Any = SamImageProcessor.from_pretrained(sam_folder, pad_size={"height": 128, "width": 128})
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    scaled = torch.from_numpy(regions.boxes * np.float32(128 / 160))[None]
    with torch.no_grad():
        output = theirs(pixels, input_boxes=scaled, multimask_output=False)
    assert np.allclose(regions.quality, output.iou_scores[0, :, 0], atol=1e-3)
    size, resized = torch.tensor([[100, 160]]), torch.tensor([[80, 128]])
    masks = processor.post_process_masks(output.pred_masks, size, resized)[0][:, 0].numpy()
    assert (regions.masks() != masks).mean() < 1e-3


def boxes_of_transformers(image: Image.Image, folder: Path) -> tuple[Any, int]:
    """All boxes (x0, y0, x1, y1) in pixels, and the index of that which one-shot detection takes as query."""
    from transformers import Owlv2ForObjectDetection, Owlv2ImageProcessor

    model: Any = Owlv2ForObjectDetection.from_pretrained(folder)
    processor: Any = Owlv2ImageProcessor.from_pretrained(folder)
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        detected = model.image_guided_detection(pixels, query_pixel_values=pixels)
        features = model.image_embedder(pixels)[0].flatten(1, 2)
        _, best, shares = model.embed_image_query(features, detected.query_image_embeds)
    x, y, width, height = (shares[0] * max(image.size)).numpy().T
    corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
    return np.clip(corners, 0, [*image.size] * 2), int(best)


@pytest.mark.parametrize("is_tall", [False, True])
def test_owlv2_boxes_equal_those_of_transformers(
    is_tall: bool, image: Image.Image, owlv2_folder: Path
) -> None:
    """Shares of the longer side, be it the width or the height."""
    image = image.transpose(Image.Transpose.TRANSPOSE) if is_tall else image
    ours = opened(f"rectangles:{owlv2_folder}").segment(image)
    theirs, best = boxes_of_transformers(image, owlv2_folder)
    distances = np.abs(ours.boxes[:, None] - theirs).max(axis=2)
    assert distances.min(axis=1).max() < 1e-3
    # The query of the tall image lies in its padding, where we keep no box.
    assert is_tall or distances[0, best] < 1e-3


def test_owlv2_boxes_are_sorted_and_signed_by_all_settings(
    image: Image.Image, owlv2_folder: Path, tmp_path: Path
) -> None:
    ours = opened(f"rectangles:{owlv2_folder}").segment(image)
    assert (np.diff(ours.quality) <= 0).all()
    names = [f"rectangles:{owlv2_folder}{more}" for more in ("", ",threshold=0", ",threshold=1")]
    fingerprints = {opened(name).fingerprint for name in names}
    fingerprints.add(opened(names[0], dtype="bfloat16").fingerprint)
    other_pixels = Path(shutil.copytree(owlv2_folder, tmp_path / owlv2_folder.name))
    file = other_pixels / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": [0.5, 0.5, 0.5]}))
    fingerprints.add(opened(f"rectangles:{other_pixels}").fingerprint)
    assert len(fingerprints) == 5
    # The least sure box is one at its own objectness, not one above it.
    bound = float(ours.quality[-1])
    assert len(opened(f"rectangles:{owlv2_folder},threshold={bound!r}").segment(image)) == len(ours)
    for mask, (x0, _, _, y1) in zip(ours.masks(), ours.boxes, strict=True):
        rows, columns = np.nonzero(mask)
        assert mask.sum() == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert abs(columns.min() - x0) <= 0.5 and abs(rows.max() + 1 - y1) <= 0.5


def test_every_form_of_a_release_converts_to_the_same_weights(tmp_path: Path, image: Image.Image) -> None:
    tensors = recipe.state_dict(CASES / "sam-boxes-tiny" / "manifest.json", 1)
    whole = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    encoder = {name: x for name, x in whole.items() if name.startswith("image_encoder.")}
    decoder: dict[str, Any] = {"PromtEncoder": {}, "MaskDecoder": {}}  # of MobileSAMv2, in parts
    for name in whole.keys() - encoder.keys():
        first, _, rest = name.partition(".")
        decoder["PromtEncoder" if first == "prompt_encoder" else "MaskDecoder"][rest] = whole[name]
    bare = {name.removeprefix("image_encoder."): x for name, x in encoder.items()}
    files = {"whole": whole, "model": {"model": whole}, "l2": {"state_dict": encoder}, "bare": bare}
    for stem, content in {**files, "decoder": decoder}.items():
        torch.save(content, tmp_path / f"{stem}.pt")
    first = convert("sam", tmp_path / "whole.pt", decoder_heads=2)
    for stem in files:
        alone = {} if stem == "model" else {"decoder": tmp_path / "decoder.pt"}
        other = convert("sam", tmp_path / f"{stem}.pt", decoder_heads=2, **alone)
        assert other.config["architecture"] == first.config["architecture"]
        assert other.tensors.keys() == first.tensors.keys()
        assert all(torch.equal(other.tensors[name], x) for name, x in first.tensors.items())
    missing = {name: x for name, x in whole.items() if name != "mask_decoder.iou_token.weight"}
    strange = {name.replace("patch_embed", "stem"): x for name, x in whole.items()}
    for content in (encoder, decoder, missing, strange, {"a.b": torch.ones(1)}, whole | {"head.x": bare}):
        torch.save(content, tmp_path / "wrong.pt")
        with pytest.raises(ValueError, match=r"wrong\.pt"):
            convert("sam", tmp_path / "wrong.pt", decoder_heads=2)

    out = str(tmp_path / "made")
    assert main(["convert", "regions", str(tmp_path / "whole.pt"), "--out", out, "--decoder-heads", "2"]) == 0
    assert opened(f"everything:{out}").name.startswith("everything:made@")
    with pytest.raises(ValueError, match=rf"type 'sam'.*'owlv2'.*{DETECTOR}"):
        opened(f"rectangles:{out}")
    two = convert("sam", tmp_path / "l2.pt", decoder=tmp_path / "decoder.pt")
    for release, notes in ((first, ["2 attention heads, as given"]), (two, ["of decoder.pt", "8 attention"])):
        for note in notes:
            assert any(note in text for text in release.notes), note
    assert not any("of " in note for note in first.notes if note.startswith("decoder"))
    assert not any("as given" in note for note in two.notes)
    torch.save({**decoder, "PromtEncoder": {}}, tmp_path / "part.pt")
    with pytest.raises(ValueError) as caught:
        convert("sam", tmp_path / "l2.pt", decoder=tmp_path / "part.pt")
    assert f"{tmp_path / 'l2.pt'} and {tmp_path / 'part.pt'}" in str(caught.value)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", ["objects", "everything", "rectangles"])
def test_a_model_of_regions_that_is_not_there_is_named_with_one_that_fits(kind: str, tmp_path: Path) -> None:
    default = DETECTOR if kind == "rectangles" else SEGMENTER
    with pytest.raises(ValueError) as caught:
        opened(f"{kind}:no/such")
    for part in (
        "'no/such'",
        f"The default is {default}",
        "hf download no/such",
        "HF_HUB_OFFLINE",
        "colours",
    ):
        assert part in str(caught.value), part
    (tmp_path / "empty").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    (tmp_path / "file.pt").write_bytes(b"")
    for name, parts in (
        ("empty", [repr("empty"), "config.json", default]),
        ("config", [repr("config"), "model.safetensors", default]),
        ("file.pt", ["is a file", f"capeval convert regions {tmp_path / 'file.pt'}"]),
        ("nothing", ["neither a folder nor a Hub id", "colours"]),
    ):
        with pytest.raises(ValueError) as caught:
            opened(f"{kind}:{tmp_path / name}")
        for part in (str(tmp_path / name), *parts):
            assert part in str(caught.value), part


def test_the_default_models_are_compared_with_the_digests_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sam_folder: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ValueError) as caught:
        opened("everything")
    assert repr(SEGMENTER) in str(caught.value) and "The default is" not in str(caught.value)
    cached(tmp_path / "hub", SEGMENTER, sam_folder)
    with pytest.raises(ValueError, match=r"the catalogue lists [0-9a-f]{64}") as caught:
        opened("everything")
    digest = hashlib.sha256((sam_folder / "model.safetensors").read_bytes()).hexdigest()
    assert f"{SEGMENTER}/model.safetensors" in str(caught.value) and f"has sha256 {digest}" in str(
        caught.value
    )
    assert f"the catalogue lists {digest}" not in str(caught.value)
