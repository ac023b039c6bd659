"""Original checkpoints of every network: names, wrappings, types, what is refused, what a config records."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from tests.golden.frcnn_vg_tiny import write_checkpoint
from tests.support.eva_checkpoint import Sizes, as_transformers, seeded
from tests.support.seams import convert, network, shapes
from tests.support.seeded import CASES, alpha_checkpoints, encoder, eva_tensors, uniter, x152_checkpoint
from tests.weights.conftest import manifest, umic_tensors

Tensors = dict[str, Any]
OPENCLIP = {"head_width": 16, "text_heads": 4}
EVA = {"head_width": Sizes().head_width}
VILBERT_HEADS = {"text_heads": 4, "visual_heads": 4, "co_heads": 4}
DECODER, WORD_ROWS = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Case:
    """A release: its network, its tensors, settings that they do not show, files beside, and one of them.

    anchor: the tensor by which the release is known. one: a vector of the network.
    """

    network: str
    tensors: Callable[[Path], Tensors]
    anchor: str
    one: str
    settings: dict[str, Any] = field(default_factory=dict)
    words: int = 0


def of(case: str, file: str = "manifest") -> Callable[[Path], Tensors]:
    return lambda folder: manifest(case, file)


def vilbert(file: str = "manifest") -> Callable[[Path], Tensors]:
    def read(folder: Path) -> Tensors:
        tensors = manifest("vilbertscore-tiny", file)
        return {**tensors, DECODER: tensors[WORD_ROWS]}

    return read


def lavis(folder: Path) -> Tensors:
    """BLIP-2 under LAVIS' names, which splits some of transformers' tensors."""
    names = json.loads((CASES / "blip2-itm" / "lavis_key_map.json").read_text())
    tensors: Tensors = {}
    for name, tensor in manifest("blip2-itm").items():
        originals = names.get(name, [])
        originals = [originals] if isinstance(originals, str) else originals
        for original, part in zip(originals, tensor.chunk(max(len(originals), 1)), strict=False):
            if original:
                tensors[original] = part.clone()
    return tensors


def loaded(write: Callable[[Path], Path]) -> Callable[[Path], Tensors]:
    def read(folder: Path) -> Tensors:
        content: Tensors = torch.load(write(folder), weights_only=True)
        return content.get("model", content)

    return read


BLOCK = "visual.transformer.resblocks.0.ln_1.bias"
RELEASES = {
    "CLIP": Case("clip", of("pacs-vit-tiny"), "visual.conv1.weight", BLOCK),
    "CLIP's ResNet": Case("clip", of("pacs-resnet-tiny"), "visual.conv1.weight", "ln_final.bias"),
    "OpenCLIP": Case("clip", of("pacs-openclip-tiny"), "visual.conv1.weight", BLOCK, OPENCLIP),
    "PAC-S++": Case("clip", of("pacs-plusplus-lora-tiny"), "visual.conv1.weight", BLOCK),
    "Alpha-CLIP": Case(
        "alpha_clip",
        loaded(lambda folder: alpha_checkpoints(folder)[0]),
        "conv1_alpha.weight",
        "transformer.resblocks.0.ln_1.bias",
        {"base": "manifest.pth"},
    ),
    "EVA-CLIP": Case(
        "eva_clip",
        lambda folder: dict(eva_tensors()),
        "visual.patch_embed.proj.weight",
        "visual.norm.bias" if "visual.norm.bias" in eva_tensors() else "visual.norm.weight",
        EVA,
    ),
    "BLIP-2": Case(
        "blip2",
        lavis,
        "query_tokens",
        "ln_vision.bias",
        {"vocabulary": "vocab.txt", "vision_heads": 4, "qformer_heads": 4},
        120,
    ),
    "UMIC": Case(
        "uniter",
        lambda folder: umic_tensors(),
        "uniter.embeddings.word_embeddings.weight",
        "uniter.pooler.dense.bias",
        {"vocabulary": "vocab.txt", "heads": 4},
        58,
    ),
    "ViLBERT, 12-in-1": Case(
        "vilbert",
        vilbert(),
        "bert.v_embeddings.image_embeddings.weight",
        "bert.v_pooler.dense.bias",
        {"vocabulary": "vocab.txt", **VILBERT_HEADS},
        300,
    ),
    "ViLBERT, pre-trained": Case(
        "vilbert",
        vilbert("manifest_pretrained"),
        "bert.v_embeddings.image_embeddings.weight",
        "bert.v_pooler.dense.bias",
        {"vocabulary": "vocab.txt", **VILBERT_HEADS},
        300,
    ),
    "bottom-up attention": Case(
        "faster_rcnn",
        loaded(lambda folder: write_checkpoint(CASES / "frcnn-vg-tiny", folder)),
        "backbone.stem.conv1.weight",
        "roi_heads.box_predictor.cls_score.bias",
    ),
    "ResNeXt-152": Case(
        "x152",
        loaded(lambda folder: x152_checkpoint(folder / "x152.pth")),
        "module.backbone.body.stem.conv1.weight",
        "module.roi_heads.box.predictor.cls_score.bias",
    ),
    "SAM": Case(
        "sam",
        of("sam-boxes-tiny"),
        "mask_decoder.mask_tokens.weight",
        "image_encoder.patch_embed.proj.bias",
        {"decoder_heads": 2},
    ),
}


@pytest.fixture(params=RELEASES)
def case(request: pytest.FixtureRequest) -> Case:
    return RELEASES[request.param]


def read(case: Case, folder: Path, content: Any = None, name: str = "release.pth", **settings: Any) -> Any:
    """The release, or other content in its place, as `config`, `tensors` and `notes`."""
    tensors = case.tensors(folder)
    if case.words:
        marks = {0: "[PAD]", 1: "[UNK]", 2: "[CLS]", 3: "[SEP]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}
        words = [marks.get(index, f"w{index}") for index in range(case.words)]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    path = folder / str(len(list(folder.iterdir()))) / name  # of its own: tensors may stay in the file
    path.parent.mkdir(parents=True)
    for beside in folder.glob("config.yaml"), folder.glob("detectron_config.yaml"):
        for file in beside:
            shutil.copy(file, path.parent)
    torch.save(tensors if content is None else content, path)
    given = {**case.settings, **settings}
    for file in ("vocabulary", "base"):
        if isinstance(given.get(file), str):
            given[file] = str(folder / given[file])
    return convert(case.network, path, **{key: v for key, v in given.items() if v is not None})


def same(release: Any, expected: Any) -> bool:
    return release.tensors.keys() == expected.tensors.keys() and all(
        torch.equal(release.tensors[name], tensor) for name, tensor in expected.tensors.items()
    )


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return OrderedDict((prefix + name, tensor) for name, tensor in tensors.items())


WRAPPINGS: dict[str, Callable[[Tensors], Any]] = {
    "state_dict": lambda t: {"state_dict": prefixed("module.", t), "epoch": 3},
    "model": lambda t: {"model": t, "iteration": 3},
    "module": lambda t: {"module": t},
    "prefix": lambda t: prefixed("module.model.", t),
}


def test_wrappings_change_nothing_and_a_config_says_all(case: Case, tmp_path: Path) -> None:
    release, tensors = read(case, tmp_path), case.tensors(tmp_path)
    (path,) = tmp_path.rglob("release.pth")
    expected = {name: tuple(tensor.shape) for name, tensor in shapes(case.network, release.config).items()}
    assert {name: tuple(tensor.shape) for name, tensor in release.tensors.items()} == expected
    assert all(tensor.is_contiguous() for tensor in release.tensors.values())
    assert json.loads(json.dumps(release.config))["encoder"] == case.network
    source, content = release.config["source"], path.read_bytes()
    assert source["sha256"] == hashlib.sha256(content).hexdigest() and source["size"] == len(content)
    assert (source["name"], source["file"], source["url"]) == ("release", "release.pth", None)
    assert source["notes"] == release.notes
    wrappings = ["prefix"]  # the only one that depends on a release's own names
    if case in (RELEASES["CLIP"], RELEASES["UMIC"]):
        wrappings = [*WRAPPINGS]
    elif case.network == "sam":
        wrappings = ["model"]  # its names begin with the part that they are of
    for wrapping in wrappings:
        wrapped = read(case, tmp_path, WRAPPINGS[wrapping](tensors))
        assert same(wrapped, release)
        assert wrapped.config["architecture"] == release.config["architecture"]


def test_other_types_become_float32_or_stay(case: Case, tmp_path: Path) -> None:
    dtype = torch.float64 if case.network == "uniter" else torch.float16
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in case.tensors(tmp_path).items()
    }
    if case.network == "alpha_clip":  # whose text tower is another file's
        tensors["proj"] = tensors["proj"].to(dtype)
    release = read(case, tmp_path, tensors)
    kept = dtype if case.network in ("eva_clip", "uniter") else torch.float32  # as large as it was released
    found = {tensor.dtype for tensor in release.tensors.values()} - {torch.int64}
    assert found == {kept}
    rounded = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    expected = read(case, tmp_path, rounded)
    assert all(
        torch.allclose(release.tensors[name].float(), tensor.float(), rtol=0, atol=1e-6)
        for name, tensor in expected.tensors.items()
    )


DAMAGE: dict[str, Callable[[Tensors, Case], Any]] = {
    "missing": lambda t, case: t.pop(case.one),
    "unknown": lambda t, case: t.update({f"{case.anchor.partition('.')[0]}.extra": torch.ones(2)}),
    "shape": lambda t, case: t.update({case.one: torch.ones(5)}),
    "NaN": lambda t, case: t.update({case.one: torch.full_like(t[case.one], float("nan"))}),
    "infinite": lambda t, case: t.update({case.one: torch.full_like(t[case.one], float("inf"))}),
    "integers": lambda t, case: t.update({case.one: t[case.one].int()}),
    "no tensor": lambda t, case: t.update({case.one: "x"}),
    "sparse": lambda t, case: t.update({case.one: t[case.one].to_sparse()}),
    "another network": lambda t, case: t.pop(case.anchor),
    "two models": lambda t, case: t.update({f"other.{case.anchor}": torch.ones(1)}),
}


OF_ANY = ("NaN", "infinite", "integers", "no tensor", "sparse")
"""Damages that are seen before it matters whose release it is."""
DAMAGED = [(n, d) for n in RELEASES for d in DAMAGE if d not in OF_ANY or n in ("CLIP", "UMIC", "SAM")]


@pytest.mark.parametrize(("name", "damage"), DAMAGED)
def test_what_is_not_the_release_is_refused(name: str, damage: str, tmp_path: Path) -> None:
    case = RELEASES[name]
    tensors = dict(case.tensors(tmp_path))
    DAMAGE[damage](tensors, case)
    with pytest.raises(ValueError) as caught:
        read(case, tmp_path, tensors)
    assert "release.pth" in str(caught.value) and len(str(caught.value)) < 1000


OPENAI, RESEARCH = "not stated by the original", "research only"
LISTED = [
    ("CLIP", "clip_ViT-B-32.pth", "https://github.com/aimagelab/pacscore", OPENAI),
    ("Alpha-CLIP", "clip_l14_grit20m_fultune_2xe.pth", "https://github.com/SunzeY/AlphaCLIP", RESEARCH),
    ("EVA-CLIP", "EVA_CLIP_18B_psz14_s6B.fp16.pt", "https://huggingface.co/BAAI/EVA-CLIP-18B", "Apache-2.0"),
    ("UMIC", "umic.pt", "https://archive.org/download/umic_data/umic.pt", "MIT"),
    ("ViLBERT, 12-in-1", "multi_task_model.bin", "https://dl.fbaipublicfiles.com/vilbert-multi-task", "MIT"),
    ("bottom-up attention", "frcnn-vg-finetuned/pytorch_model.bin", "https://huggingface.co", "Apache-2.0"),
    ("ResNeXt-152", "vilbert-multi-task/detectron_model.pth", "https://dl.fbaipublicfiles.com", "MIT"),
]


@pytest.mark.parametrize(("name", "file", "url", "licence"), LISTED)
def test_a_listed_file_brings_its_address_and_licence(
    name: str, file: str, url: str, licence: str, tmp_path: Path
) -> None:
    source = read(RELEASES[name], tmp_path, name=file).config["source"]
    assert source["url"].startswith(url) and source["licence"] == licence
    given = {"source": "mine", "url": "https://a/b", "licence": "CC0"}
    stated = read(RELEASES[name], tmp_path, name=file, **given).config["source"]
    assert (stated["name"], stated["url"], stated["licence"]) == tuple(given.values())
    if "/" in file:  # many files are called so
        other = read(RELEASES[name], tmp_path, name=file.rpartition("/")[2]).config["source"]
        assert other["url"] is None


# CLIP


def build(config: dict[str, Any]) -> CLIP:
    """open_clip's own model of a config."""
    architecture = config["architecture"]
    quick = config["activation"] == "quick_gelu"
    vision, text = architecture["vision"], architecture["text"]
    return CLIP(architecture["embed_dim"], vision, text, quick_gelu=quick).eval()


def sorted_names(tensors: Tensors) -> Tensors:
    return {name: tensors[name] for name in sorted(tensors)}


def test_the_order_of_the_tensors_shows_the_activation(tmp_path: Path) -> None:
    model = CLIP(
        16,
        {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1},
        {"width": 64, "heads": 1, "layers": 1},
    )
    clip, openclip, lora = (RELEASES[name] for name in ("CLIP", "OpenCLIP", "PAC-S++"))
    for case, content, activation in (
        (clip, None, "quick_gelu"),
        (openclip, None, "gelu"),
        (clip, model.state_dict(), "gelu"),  # as open_clip itself saves it
        (lora, sorted_names(manifest("pacs-plusplus-lora-tiny")), "quick_gelu"),  # its adapters show OpenAI's
    ):
        assert read(case, tmp_path, content).config["activation"] == activation
        assert read(case, tmp_path, content, activation="quick_gelu").config["activation"] == "quick_gelu"


def test_heads_that_no_tensor_shows_are_asked_for(tmp_path: Path) -> None:
    vision = {"image_size": 24, "patch_size": 8, "width": 26, "layers": 1, "head_width": 13}
    text = {"context_length": 9, "width": 21, "heads": 3, "layers": 2, "mlp_ratio": 3.4}
    model = CLIP(16, {**vision, "mlp_ratio": 4.9231}, text).eval()
    content, clip = model.state_dict(), RELEASES["CLIP"]
    for settings, named in (
        ({}, "text_heads"),
        ({"text_heads": 3}, "head_width"),
        ({"text_heads": 3, "head_width": 20}, "head_width"),
        ({"text_heads": 5, "head_width": 13}, "text_heads"),
        ({"activation": "relu"}, "activation"),
        ({"adapters": "mlp"}, "adapters"),
    ):
        with pytest.raises(ValueError, match=named):
            read(clip, tmp_path, content, **settings)
    release = read(clip, tmp_path, content, head_width=13, text_heads=3)
    rebuilt = build(release.config)
    rebuilt.load_state_dict(release.tensors, strict=True)
    pixels, ids = torch.randn(2, 3, 24, 24), torch.randint(0, 49408, (2, 9))
    with torch.no_grad():
        assert torch.equal(rebuilt.encode_image(pixels), model.encode_image(pixels))
        assert torch.equal(rebuilt.encode_text(ids), model.encode_text(ids))


# Alpha-CLIP


def test_the_text_tower_is_that_of_every_kind_of_base(tmp_path: Path) -> None:
    alpha = RELEASES["Alpha-CLIP"]
    expected = read(alpha, tmp_path)
    tower, plain = (torch.load(path, weights_only=True) for path in alpha_checkpoints(tmp_path))
    visual = {name for name in expected.tensors if name.startswith("visual.")}
    assert len(visual) == len(tower)
    for name, tensor in tower.items():
        assert torch.equal(expected.tensors["visual." + name.replace("in_proj.", "in_proj_")], tensor), name
    assert all(torch.equal(expected.tensors[name], plain[name]) for name in expected.tensors.keys() - visual)
    assert expected.config["mask"] == {"mean": 0.5, "std": 0.26}
    assert (expected.config["activation"], expected.config["base"]) == ("quick_gelu", "manifest.pth")
    base = convert("clip", tmp_path / "manifest.pth")
    network("clip", base.config, base.tensors).save_pretrained(tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    save_file(base.tensors, tmp_path / "theirs" / "open_clip_model.safetensors")
    sizes = base.config["architecture"]
    model = {"embed_dim": sizes["embed_dim"], "quick_gelu": True}
    model |= {"vision_cfg": sizes["vision"], "text_cfg": sizes["text"]}
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3, "size": 64}
    config = {"model_cfg": model, "preprocess_cfg": preprocess}
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps(config))
    for other in ("ours", "theirs"):
        release = read(alpha, tmp_path, base=other)
        assert same(release, expected)
        for part in ("activation", "architecture", "preprocessing"):
            assert release.config[part] == expected.config[part]


def test_an_image_tower_may_be_called_visual(tmp_path: Path) -> None:
    alpha = RELEASES["Alpha-CLIP"]
    expected = read(alpha, tmp_path)
    release = read(alpha, tmp_path, prefixed("module.visual.", alpha.tensors(tmp_path)))
    assert same(release, expected)
    with pytest.raises(ValueError, match=r"plain CLIP.*zero_mask"):
        read(alpha, tmp_path, torch.load(tmp_path / "manifest.pth", weights_only=True))


def test_zeros_only_when_asked_for_and_no_other_base(tmp_path: Path) -> None:
    alpha = RELEASES["Alpha-CLIP"]
    read(alpha, tmp_path)
    base = tmp_path / "manifest.pth"
    with pytest.raises(ValueError, match="zero_mask"):
        convert("alpha_clip", base)
    release = convert("alpha_clip", base, zero_mask=True)
    assert not release.tensors["visual.conv1_alpha.weight"].any()
    network("alpha_clip", release.config, release.tensors).save_pretrained(tmp_path / "alpha")
    encoder().save_pretrained(tmp_path / "clip")
    for settings in (
        {"base": None},
        {"base": "nowhere"},
        {"base": "alpha"},
        {"base": "clip", "activation": "gelu"},
        {"zero_mask": True},
    ):
        with pytest.raises(ValueError, match="base"):
            read(alpha, tmp_path, **settings)
    with pytest.raises(ValueError, match="base"):  # of other sizes
        read(alpha, tmp_path, base=Path("tiny"))


@pytest.mark.parametrize(
    ("width", "patch", "positions", "named"),
    [
        (768, 16, 197, "timm/vit_base_patch16_clip_224.openai"),
        (1024, 14, 257, "timm/vit_large_patch14_clip_224.openai"),
        (1024, 14, 577, "timm/vit_large_patch14_clip_336.openai"),
    ],
)
def test_the_base_of_a_published_tower_is_named(
    width: int, patch: int, positions: int, named: str, tmp_path: Path
) -> None:
    tensors = {
        "conv1_alpha.weight": torch.zeros(width, 1, patch, patch),
        "conv1.weight": torch.zeros(width, 3, patch, patch),
        "positional_embedding": torch.zeros(positions, width),
    }
    with pytest.raises(ValueError, match=named):
        read(RELEASES["Alpha-CLIP"], tmp_path, tensors, base=None)


# EVA-CLIP


def sharded(folder: Path, tensors: Tensors, kind: str) -> Path:
    """The index of three shards in transformers' naming, and the shards."""
    content = as_transformers(tensors)
    folder.mkdir(exist_ok=True)
    shard_of = {name: f"model-0000{i % 3 + 1}-of-00003.{kind}" for i, name in enumerate(content)}
    for shard in set(shard_of.values()):
        held = {name: content[name].contiguous() for name, file in shard_of.items() if file == shard}
        if kind == "safetensors":
            save_file(held, folder / shard)
        else:
            torch.save(held, folder / shard)
    index = folder / f"model.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": shard_of}))
    return index


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_shards_of_transformers_give_the_same(kind: str, tmp_path: Path) -> None:
    eva = RELEASES["EVA-CLIP"]
    expected = read(eva, tmp_path, eva_tensors(half=True))
    assert same(
        expected, read(eva, tmp_path, {n.removeprefix("text."): t for n, t in eva_tensors(half=True).items()})
    )
    for name, tensor in eva_tensors(half=True).items():
        assert torch.equal(expected.tensors[name.removeprefix("text.")], tensor), name
    release = convert("eva_clip", sharded(tmp_path / "shards", eva_tensors(half=True), kind), **EVA)
    assert same(release, expected) and release.config["architecture"] == expected.config["architecture"]
    source = release.config["source"]
    assert source["file"] == f"model.{kind}.index.json"
    assert [shard["file"] for shard in source["beside"]] == [
        f"model-0000{i}-of-00003.{kind}" for i in (1, 2, 3)
    ]
    assert len({shard["sha256"] for shard in source["beside"]}) == 3


def test_broken_shards_are_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path / "shards", eva_tensors(), "safetensors")
    name = "model-00002-of-00003.safetensors"
    shard, text = index.parent / name, index.read_text()
    shutil.copy(shard, tmp_path / name)
    index.write_text(text.replace(name, f"../{name}"))  # whole, but elsewhere
    with pytest.raises(ValueError, match="elsewhere"):
        convert("eva_clip", index, **EVA)
    index.write_text(text)
    save_file(dict(list(load_file(shard).items())[1:]), shard)
    for broken in (None, "gone", "{", "[]", '{"weight_map": 3}'):
        if broken == "gone":
            shard.unlink()
        elif broken:
            index.write_text(broken)
        with pytest.raises((ValueError, FileNotFoundError)):
            convert("eva_clip", index, **EVA)
    with pytest.raises(FileNotFoundError):
        convert("eva_clip", tmp_path / "none.index.json")


def test_what_evas_sizes_do_not_show(tmp_path: Path) -> None:
    eva = RELEASES["EVA-CLIP"]
    for width, expected in ((4096, "pre"), (256, "post")):
        sizes = Sizes(width=width, head_width=128, hidden=8, layers=1, text_layers=1, text_width=64)
        content = {name: tensor.half() for name, tensor in seeded(sizes).items()}
        release = read(eva, tmp_path, content, head_width=128)
        assert release.config["architecture"]["vision"]["norm"] == expected
    pre = read(eva, tmp_path, content, head_width=128, norm="pre")
    assert pre.config["architecture"]["vision"]["norm"] == "pre"
    for settings in ({"head_width": 128}, {"text_heads": 3}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            read(eva, tmp_path, **settings)


# UMIC and ViLBERT


def test_older_names_of_norms_and_a_missing_ranking_head(tmp_path: Path) -> None:
    umic = RELEASES["UMIC"]
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in umic_tensors().items()
    }
    expected = uniter().model.state_dict()
    assert all(
        torch.equal(tensor, expected[name]) for name, tensor in read(umic, tmp_path, older).tensors.items()
    )
    without = {name: tensor for name, tensor in umic_tensors().items() if "rank_output" not in name}
    release = read(umic, tmp_path, without)
    for part in ("weight", "bias"):  # the matching head's row for a match
        own = release.tensors[f"ranking_head.{part}"]
        assert torch.equal(own, expected[f"matching_head.{part}"][1:])
    with pytest.raises(ValueError, match="itm_output"):
        read(umic, tmp_path, {**without, "itm_output.weight": torch.ones(())})


def test_a_decoder_that_differs_is_what_the_original_would_read_words_by(tmp_path: Path) -> None:
    case = RELEASES["ViLBERT, 12-in-1"]
    content = case.tensors(tmp_path)
    content[DECODER] = content[WORD_ROWS] + 1
    for wrapped in (content, prefixed("module.", content)):
        release = read(case, tmp_path, wrapped)
        assert torch.equal(release.tensors["embeddings.word_embeddings.weight"], content[DECODER])


def test_a_task_is_one_of_the_checkpoints(tmp_path: Path) -> None:
    case, bare = (RELEASES[f"ViLBERT, {name}"] for name in ("12-in-1", "pre-trained"))
    assert read(case, tmp_path).config["task"] == 7  # COCO retrieval
    for task in (0, 19):
        assert read(case, tmp_path, task=task).config["task"] == task
    with pytest.raises(ValueError, match="task") as caught:
        read(case, tmp_path, task=20)
    assert "task=20" in str(caught.value) and "0 to 19" in str(caught.value)
    release = read(bare, tmp_path)
    assert release.config["task"] is None and any("no task embeddings" in note for note in release.notes)
    with pytest.raises(ValueError, match="task=3"):
        read(bare, tmp_path, task=3)


def test_layers_before_the_blocks_rise_to_their_number(tmp_path: Path) -> None:
    case = RELEASES["ViLBERT, 12-in-1"]
    architecture = read(case, tmp_path).config["architecture"]
    blocks = len(architecture["text_layers_before"])
    for name, stream in (("text_layers_before", "text"), ("visual_layers_before", "visual")):
        layers = architecture[stream]["num_hidden_layers"]
        assert architecture[name] == list(range(layers - blocks, layers))  # before each of the last ones
        most = [layers] * blocks
        stated = read(case, tmp_path, **{name: " , ".join(map(str, most))}).config["architecture"]
        assert stated[name] == most
        for wrong in ([layers + 1] * blocks, most[1:], [*most, layers], [layers] + [0] * (blocks - 1), ["x"]):
            if wrong == [layers]:  # of one block it is right
                continue
            text = ",".join(map(str, wrong))
            with pytest.raises(ValueError) as caught:
                read(case, tmp_path, **{name: text})
            assert f"{name}={text!r}" in str(caught.value)
            assert f"{blocks} co-attention blocks and {layers} such layers" in str(caught.value)


@pytest.mark.parametrize(("name", "added"), [("BLIP-2", True), ("UMIC", False)])
def test_a_vocabulary_has_as_many_words_as_the_model(name: str, added: bool, tmp_path: Path) -> None:
    case = RELEASES[name]
    release = read(case, tmp_path)
    file = tmp_path / "vocab.txt"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"words: vocab.txt, sha256 {digest[:12]}..." in release.notes
    words = file.read_text().splitlines()
    assert release.config["vocabulary"] == words
    other = tmp_path / "other.txt"

    def converted(*words: str) -> Any:
        other.write_text("\n".join(words) + "\n")
        return read(case, tmp_path, vocabulary=str(other))

    for count in (len(words) - 2, len(words) + 1):
        with pytest.raises(ValueError) as caught:
            converted(*[*words, "more"][:count])
        assert f"has {count} words, but the model has {len(words)}" in str(caught.value)
        assert str(other) in str(caught.value) and "google-bert" not in str(caught.value)
        assert ("[DEC] included" in str(caught.value)) is added
    if added:
        assert converted(*words[:-1]).config["vocabulary"] == [*words[:-1], "[DEC]"]
        with pytest.raises(ValueError, match=f"has {len(words) - 1} words"):
            converted(*words[:-2], "[DEC]")
    else:
        with pytest.raises(ValueError, match=f"has {len(words) - 1} words"):
            converted(*words[:-1])
    bert = "bert-base-uncased" if added else "bert-base-cased"
    with pytest.raises(ValueError, match="vocabulary") as caught:
        read(case, tmp_path, vocabulary=None)
    assert f"https://huggingface.co/google-bert/{bert}" in str(caught.value)


# Notes and messages of all


def test_notes_say_what_was_taken_off_left_out_and_widened(tmp_path: Path) -> None:
    case = RELEASES["CLIP"]
    tensors = case.tensors(tmp_path)
    plain = read(case, tmp_path).notes
    assert not any("prefix" in note or "left out" in note or "stored as" in note for note in plain)
    notes = read(case, tmp_path, prefixed("module.model.", tensors)).notes
    assert sum("prefix 'module.model.'" in note for note in notes) == 1
    unread = {name: torch.ones(1) for name in ("input_resolution", "context_length", "vocab_size")}
    mixed = {
        **tensors,
        **unread,
        BLOCK: tensors[BLOCK].half(),
        "ln_final.bias": tensors["ln_final.bias"].bfloat16(),
    }
    notes = read(case, tmp_path, mixed).notes
    (left_out,) = [note for note in notes if "left out" in note]
    assert "left out 3 tensors" in left_out and all(repr(name) in left_out for name in unread)
    assert "bfloat16 and float16 tensors were stored as float32" in notes
    text = read(case, tmp_path).config["architecture"]["text"]
    heads = f"text heads: {text['heads']} of width {text['width'] // text['heads']} "
    assert sum(note.startswith(heads) for note in notes) == 1


def test_counters_that_are_missing_are_counted(tmp_path: Path) -> None:
    case = RELEASES["CLIP's ResNet"]
    names = [name for name in read(case, tmp_path).tensors if name.endswith("num_batches_tracked")]
    tensors = {**case.tensors(tmp_path), **{name: torch.tensor(7) for name in names}}
    assert not any("counters" in note for note in read(case, tmp_path, tensors).notes)
    for count in (1, len(names)):
        without = {name: tensor for name, tensor in tensors.items() if name not in names[:count]}
        release = read(case, tmp_path, without)
        assert any(f"{count} BatchNorm counters were missing" in note for note in release.notes)
        values = [release.tensors[name].item() for name in names]
        assert values == [0] * count + [7] * (len(names) - count)


@pytest.mark.parametrize("count", [1, 6, 7, 9])
def test_what_does_not_fit_is_counted_and_named_by_its_first_names(count: int, tmp_path: Path) -> None:
    case = RELEASES["CLIP"]
    tensors = dict(case.tensors(tmp_path))
    names = [name for name in tensors if name.startswith("transformer.") and name.endswith(".bias")][:count]
    assert len(names) == count
    shapes_before = {name: tuple(tensors[name].shape) for name in names}
    for name in names:
        tensors[name] = torch.ones(5)
    added = [f"ln_final.extra{i}" for i in range(count)]
    tensors |= {name: torch.ones(1) for name in added}
    with pytest.raises(ValueError) as caught:
        read(case, tmp_path, tensors)
    message = str(caught.value)
    assert f"{count} tensors have another shape" in message
    assert f"{count} tensors are not part of the architecture" in message
    more = f" and {count - 6} more" if count > 6 else ""
    assert ", ".join(map(repr, added[:6])) + more in message and "more" not in message.replace(
        more or "?", ""
    )
    assert all(name not in message for name in added[6:])
    found = [name for name in names if f"{name} (5,) instead of {shapes_before[name]}" in message]
    assert len(found) == min(count, 6)


def test_a_second_tensor_of_one_name_is_refused(tmp_path: Path) -> None:
    case = RELEASES["UMIC"]
    tensors = dict(case.tensors(tmp_path))
    old = next(name for name in tensors if name.endswith("LayerNorm.weight"))
    new = old.replace("LayerNorm.weight", "LayerNorm.gamma")
    with pytest.raises(ValueError) as caught:
        read(case, tmp_path, {**tensors, new: tensors[old]})
    assert f"{new} is a second " in str(caught.value)
    assert str(caught.value).index(new) < str(caught.value).index("is a second")


def test_notes_of_adapters_count_those_that_are_merged(tmp_path: Path) -> None:
    case = RELEASES["PAC-S++"]
    pairs = {re.split(r"[._]lora_", name)[0] for name in case.tensors(tmp_path) if "lora" in name}
    of_mlp = sum(".mlp." in name for name in pairs)
    assert 0 < of_mlp < len(pairs)
    for adapters, merged in (("released", len(pairs) - of_mlp), ("all", len(pairs)), ("none", 0)):
        notes = read(case, tmp_path, adapters=adapters).notes
        about = f"{merged} low-rank adapters were merged into their weights, {len(pairs) - merged} ignored"
        assert f"{about} ({adapters})" in notes
        assert any("script ignores adapters of MLP" in note for note in notes) is (adapters == "released")
        assert any("evaluation mode" in note for note in notes) is (adapters != "none")
    tensors = case.tensors(tmp_path)
    attention = {
        name: tensor for name, tensor in tensors.items() if "lora" not in name or ".mlp." not in name
    }
    notes = read(case, tmp_path, attention).notes
    assert any(f"{len(pairs) - of_mlp} low-rank adapters" in note and "0 ignored" in note for note in notes)
    assert not any("script ignores adapters of MLP" in note for note in notes)


def test_the_prompt_of_pac_s_is_that_of_texts_of_up_to_77_ids(tmp_path: Path) -> None:
    case = RELEASES["CLIP"]
    config = read(case, tmp_path).config
    tensors = dict(case.tensors(tmp_path))
    assert config["constants"] == {"prompt": "A photo depicts "}
    context = tensors["positional_embedding"].shape[0]
    for length, expected in ((77, config["constants"]), (78, {})):
        table = torch.ones(length, tensors["positional_embedding"].shape[1])
        assert context <= 77
        changed = read(case, tmp_path, {**tensors, "positional_embedding": table}).config
        assert changed["constants"] == expected
        assert changed["architecture"]["text"]["context_length"] == length


# Detectors


def test_the_config_of_a_detector_has_what_the_yaml_says_or_the_released_values(tmp_path: Path) -> None:
    case = RELEASES["bottom-up attention"]
    config = read(case, tmp_path).config
    assert config["architecture"] == {
        "layers": [3, 4, 6, 3],
        **{"stem_width": 8, "width": 8, "out_width": 16, "proposal_width": 24, "anchors": 12},
        **{"classes": 30, "attributes": 11, "class_width": 16, "attribute_width": 32},
    }
    mean = [102.9801, 115.9465, 122.7717]
    sides = {"shortest_side": 128, "longest_side": 208, "mean": mean, "std": [1.0, 1.0, 1.0]}
    assert config["preprocessing"] == sides
    proposals = {"before_nms": 400, "after_nms": 48, "overlap": 0.7, "delta_weights": [1.0] * 4}
    detections = {"delta_weights": [10.0, 10.0, 5.0, 5.0], "overlaps": [0.5, 0.6, 0.7]}
    assert config["proposals"] == proposals
    assert config["detections"] == {**detections, "least": 12, "most": 12}
    assert config["source"]["beside"][0]["file"] == "config.yaml"
    torch.save(case.tensors(tmp_path), tmp_path / "alone.pth")
    other = (tmp_path / "config.yaml").rename(tmp_path / "other.yaml")
    released = convert("faster_rcnn", tmp_path / "alone.pth").config
    assert released["preprocessing"]["shortest_side"] == 800
    assert (released["proposals"]["after_nms"], released["detections"]["most"]) == (300, 36)
    given = convert("faster_rcnn", tmp_path / "alone.pth", release_config=other).config
    assert given["preprocessing"] == sides


SETTINGS = """
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  RPN:
    USE_FPN: True
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    PRE_NMS_TOP_N_TEST: 60
    POST_NMS_TOP_N_TEST: 20
    FPN_POST_NMS_TOP_N_TEST: 40
  RESNETS:
    STRIDE_IN_1X1: False
"""


def test_the_settings_of_12_in_1s_detector(tmp_path: Path) -> None:
    case = RELEASES["ResNeXt-152"]
    released = read(case, tmp_path).config
    assert released["preprocessing"]["shortest_side"] == 800
    proposals = {"before_nms": 6000, "after_nms": 1000, "most": 2000, "overlap": 0.7}
    assert released["proposals"] == {**proposals, "delta_weights": [1.0] * 4}
    assert released["detections"] == {"most": 100, "overlap": 0.5, "threshold": 0.0}
    (tmp_path / "detectron_config.yaml").write_text(SETTINGS)
    own = {"before_nms": 60, "after_nms": 20, "most": 40, "overlap": 0.7, "delta_weights": [1.0] * 4}
    assert read(case, tmp_path).config["proposals"] == own
    tensors = case.tensors(tmp_path)
    for name in ("rpn.anchor_generator.cell_anchors.2", "backbone.fpn.fpn_layer2.weight"):
        with pytest.raises(ValueError, match=r"cell_anchors|fpn"):
            read(case, tmp_path, {key: tensor for key, tensor in tensors.items() if not key.endswith(name)})
    for old, new in (
        ("False", "True"),
        ("True", "False"),
        ("(4, 8, 16, 32, 64)", "(16,)"),
        ("MODEL:", "MODEL: ["),
    ):
        (tmp_path / "other.yaml").write_text(SETTINGS.replace(old, new))
        with pytest.raises(ValueError, match=r"other\.yaml"):
            read(case, tmp_path, release_config=tmp_path / "other.yaml")
