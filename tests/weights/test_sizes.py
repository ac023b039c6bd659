"""Absurd sizes in a config: refused by name before tensors are read, with little memory and time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from capeval_core.cli import main
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.encoders.open_clip import OpenClipEncoder
from capeval_core.models.model import CheckedModel
from capeval_core.regions.owlv2 import Owlv2Boxes
from capeval_core.regions.sam import Sam, open_sam
from capeval_core.registry import network_of
from capeval_core.weights.folder import TINY, WeightsError, open_weights
from tests.golden import recipe
from tests.regions.conftest import save_owlv2, save_sam
from tests.support import eva_checkpoint, seeded
from tests.support.seeded import write_config

Config = dict[str, Any]
ABSURD: list[Any] = [
    0,
    -1,
    10**9,
    10**400,
    2.0,
    1e300,
    float("nan"),
    "12",
    True,
    [],
    [12],
    {},
    {"a": {"b": 1}},
]
SETTINGS = {
    "clip": (
        *("architecture.embed_dim", "architecture.vision.layers", "architecture.vision.width"),
        *(
            "architecture.vision.head_width",
            "architecture.vision.patch_size",
            "architecture.vision.image_size",
        ),
        *("architecture.vision.mlp_ratio", "architecture.text.layers", "architecture.text.width"),
        *("architecture.text.heads", "architecture.text.context_length", "architecture.text.mlp_ratio"),
        *("preprocessing.image_size",),
    ),
    "alpha_clip": ("architecture.vision.layers", "architecture.text.width", "preprocessing.image_size"),
    "eva_clip": (
        *("architecture.embed_dim", "architecture.vision.layers", "architecture.vision.width"),
        *(
            "architecture.vision.head_width",
            "architecture.vision.mlp_width",
            "architecture.vision.image_size",
        ),
        *("architecture.text.layers", "architecture.text.heads"),
    ),
    "open_clip": (
        *("model_cfg.embed_dim", "model_cfg.vision_cfg.image_size", "model_cfg.text_cfg.layers"),
        *("model_cfg.text_cfg.width", "model_cfg.text_cfg.heads", "model_cfg.text_cfg.context_length"),
    ),
    "blip2": (
        *("architecture.vision.hidden_size", "architecture.vision.num_hidden_layers"),
        *("architecture.vision.intermediate_size", "architecture.vision.image_size"),
        *("architecture.vision.patch_size", "architecture.vision.num_attention_heads"),
        *("architecture.qformer.vocab_size", "architecture.qformer.num_hidden_layers"),
        *("architecture.qformer.max_position_embeddings", "architecture.qformer.cross_attention_frequency"),
        *("architecture.num_query_tokens", "architecture.image_text_hidden_size", "context_length"),
    ),
    "faster_rcnn": (
        *("architecture.layers", "architecture.width", "architecture.out_width", "architecture.classes"),
        *("architecture.anchors", "preprocessing.shortest_side", "preprocessing.longest_side"),
        *("proposals.before_nms", "proposals.overlap", "detections.overlaps", "detections.most"),
    ),
    "uniter": (
        *("architecture.vocab_size", "architecture.hidden_size", "architecture.num_hidden_layers"),
        *("architecture.num_attention_heads", "architecture.max_position_embeddings"),
        *("architecture.intermediate_size", "architecture.region_size", "context_length"),
    ),
    "vilbert": (
        *("architecture.text.vocab_size", "architecture.text.hidden_size", "architecture.visual.region_size"),
        *("architecture.visual.num_hidden_layers", "architecture.co_attention.hidden_size", "context_length"),
    ),
    "x152": (
        *("architecture.layers", "architecture.width", "architecture.groups", "architecture.out_width"),
        *("architecture.pyramid_width", "architecture.classes", "architecture.anchors"),
        *("preprocessing.shortest_side", "preprocessing.longest_side", "proposals.before_nms"),
        *("proposals.most", "proposals.overlap", "detections.overlap", "detections.most"),
    ),
    "scene_regions": ("architecture.image_size", "architecture.width", "architecture.region_size"),
    "sam": (
        *("architecture.image_size", "architecture.patch_size", "architecture.vision.hidden_size"),
        *("architecture.vision.num_hidden_layers", "architecture.vision.mlp_dim"),
        *("architecture.decoder.hidden_size", "architecture.decoder.num_hidden_layers"),
        *("architecture.decoder.iou_head_depth", "architecture.decoder.num_multimask_outputs"),
    ),
    "sam of transformers": (
        *("vision_config.hidden_size", "vision_config.num_hidden_layers", "vision_config.image_size"),
        *("mask_decoder_config.num_hidden_layers", "prompt_encoder_config.mask_input_channels"),
    ),
    "owlv2": (
        *("vision_config.hidden_size", "vision_config.num_hidden_layers", "vision_config.image_size"),
        *("text_config.vocab_size", "text_config.num_hidden_layers"),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, seeded_weights: Path) -> dict[str, Path]:
    """A folder of weights of every network; not to be changed."""
    root = tmp_path_factory.mktemp("networks")
    torch.save(eva_checkpoint.seeded(), root / "eva.pt")
    heads = {"head_width": eva_checkpoint.Sizes().head_width}
    eva = EvaClipEncoder.convert(root / "eva.pt", **heads)
    EvaClipEncoder(eva.config, eva.tensors, device="cpu").save_pretrained(root / "eva_clip")
    case = Path(__file__).parents[1] / "golden" / "cases" / "sam-boxes-tiny"
    tensors = recipe.state_dict(case / "manifest.json", 1)
    torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, root / "sam.pth")
    sam = Sam.convert(root / "sam.pth", decoder_heads=2)
    Sam(sam.config, sam.tensors, device="cpu").save_pretrained(root / "sam")
    seeded.alpha_encoder().save_pretrained(root / "alpha_clip")
    seeded.faster_rcnn().save_pretrained(root / "faster_rcnn")
    seeded.uniter().save_pretrained(root / "uniter")
    seeded.vilbert().save_pretrained(root / "vilbert")
    seeded.x152().save_pretrained(root / "x152")
    seeded.open_clip_repository(root / "open_clip")
    return {
        "clip": seeded_weights,
        "alpha_clip": root / "alpha_clip",
        "eva_clip": root / "eva_clip",
        "open_clip": root / "open_clip",
        "blip2": TINY / "blip2",
        "faster_rcnn": root / "faster_rcnn",
        "x152": root / "x152",
        "scene_regions": TINY / "scene-regions",
        "uniter": root / "uniter",
        "vilbert": root / "vilbert",
        "sam": root / "sam",
        "sam of transformers": save_sam(root / "tiny-sam"),
        "owlv2": save_owlv2(root / "tiny-owlv2"),
    }


def open_network(kind: str, folder: Path) -> Any:
    if kind == "owlv2":
        return Owlv2Boxes(folder, device="cpu")
    if kind == "sam of transformers":
        return open_sam(folder, device="cpu", dtype="float32")[0]
    opened = open_weights(folder, metric="pacs", tiny="pacs")
    return network_of(opened).open(opened, device="cpu")


def changed(folder: Path, copy: Path, setting: str, value: Any) -> Path:
    """A copy of a folder with another value in its config; all other files are links."""
    copy.mkdir()
    (settings,) = [path for path in folder.glob("*config.json") if "preprocessor" not in path.name]
    for path in folder.iterdir():
        if path != settings:
            (copy / path.name).symlink_to(path)
    config = json.loads(settings.read_text())
    config.pop("checksum", None)
    *parts, last = setting.split(".")
    part = config
    for name in parts:
        part = part.setdefault(name, {})
    part[last] = value
    (copy / settings.name).write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(("kind", "setting"), [(kind, each) for kind in SETTINGS for each in SETTINGS[kind]])
def test_absurd_sizes_are_refused_by_name(
    kind: str, setting: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr("capeval_core.weights.folder.WeightsFolder.tensors", read.append)
    for number, value in enumerate(ABSURD):
        if setting.endswith("mlp_ratio") and value == 2.0:
            continue
        folder = changed(folders[kind], tmp_path / str(number), setting, value)
        with pytest.raises(WeightsError) as caught:
            open_network(kind, folder)
        message = str(caught.value)
        assert setting.rpartition(".")[2] in message and len(message) < 1000, (value, message)
    assert not read  # no tensor was read


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("clip", "architecture.vision.layers", 1000),
        ("clip", "architecture.text.width", 1 << 20),
        ("eva_clip", "architecture.vision.mlp_width", 1 << 20),
        ("open_clip", "model_cfg.text_cfg.width", 1 << 20),
        ("blip2", "architecture.qformer.intermediate_size", 1 << 20),
        ("faster_rcnn", "architecture.attribute_width", 1 << 16),
        ("x152", "architecture.feature_width", 1 << 16),
        ("sam", "architecture.vision.mlp_dim", 1 << 20),
        ("owlv2", "vision_config.intermediate_size", 1 << 20),
        ("sam of transformers", "vision_config.mlp_dim", 1 << 20),
    ],
)
def test_sizes_are_compared_with_the_header_before_tensors_are_read(
    kind: str,
    setting: str,
    value: int,
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    monkeypatch.setattr("capeval_core.weights.folder.WeightsFolder.tensors", read.append)
    folder = changed(folders[kind], tmp_path / "changed", setting, value)
    with pytest.raises(WeightsError, match=r"cannot be built|do not belong together|do not fit"):
        open_network(kind, folder)
    assert not read


STRANGE: list[tuple[str, Any, str]] = [
    ("architecture", 5, "architecture"),
    ("architecture", [], "architecture"),
    ("architecture.vision", [], "vision"),
    ("preprocessing", [], "preprocessing"),
    ("preprocessing.mean", [True, True, True], "mean"),
    ("preprocessing.mean", [1e308, 0, 0], "mean"),
    ("preprocessing.std", [1e-300, 1, 1], "std"),
    ("preprocessing.mean", float("nan"), "mean"),
    ("canary", 5, "canary"),
    ("canary.cosines", [], "canary"),
    ("canary.cosines", [[0.0] * 99] * 99, "canary"),
    ("canary.cosines", [["a"]], "canary"),
    ("canary.tolerance", {"float32": float("inf"), "float16": 1, "bfloat16": 1}, "canary"),
]


@pytest.mark.parametrize("kind", ["clip", "blip2", "eva_clip", "alpha_clip", "sam", "faster_rcnn", "x152"])
@pytest.mark.parametrize(("setting", "value", "message"), STRANGE)
def test_configs_of_strange_kinds_are_refused(
    kind: str,
    setting: str,
    value: Any,
    message: str,
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not a network that another test has open, whose canary was checked.
    monkeypatch.setattr("capeval_core.models.model._OPENED", WeakValueDictionary())
    if (kind, setting) == ("sam", "architecture.vision"):
        message = "do not belong together"
    folder = changed(folders[kind], tmp_path / "changed", setting, value)
    with pytest.raises(WeightsError, match=message):
        open_network(kind, folder)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("architecture.text.heads", 3, "heads is 3, which does not divide the width"),
        ("architecture.vision.head_width", 48, "head_width is 48, which does not divide the width"),
        ("constants", "A photo", "constants"),
        ("constants.prompt", ["A photo"], "constants.prompt"),
    ],
)
def test_settings_that_contradict_each_other(
    setting: str, value: Any, message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        open_network("clip", changed(folders["clip"], tmp_path / "changed", setting, value))


@pytest.mark.parametrize("key", ["model_cfg", "preprocess_cfg", "model_cfg.vision_cfg", "model_cfg.text_cfg"])
@pytest.mark.parametrize("value", [5, "x", [], None])
def test_open_clips_format_of_strange_kinds(
    key: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    for kind in ("open_clip", "clip"):
        folder = changed(folders["open_clip"], tmp_path / kind, key, value)
        with pytest.raises(WeightsError, match=r"open_clip_config\.json|architecture"):
            if kind == "open_clip":
                open_network(kind, folder)
            else:
                ClipEncoder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested"),
        ('{"a":' * 100_000, "nested"),
        ('{"format": 1, "x": "' + "x" * (1 << 25) + '"}', "33,554,"),
        ('{"format": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_a_config_of_absurd_depth_or_length(
    content: str, message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["clip"], tmp_path / "copy"))
    (folder / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=message):
        open_network("clip", folder)


def test_the_command_line_names_it_in_one_line(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(folders["clip"], tmp_path / "mine", "architecture.vision.width", 10**12)
    arguments = [
        "--weights",
        str(folder),
        "--candidates",
        str(tmp_path / "c.json"),
        "--images",
        str(tmp_path),
    ]
    (tmp_path / "c.json").write_text('{"1": "a dog"}')
    Image.new("RGB", (64, 64)).save(tmp_path / "1.png")
    assert main(["score", "pacs", *arguments]) == 2
    message = capsys.readouterr().err
    assert (
        "architecture.vision.width is 1000000000000, expected a whole number from 1 to 1,048,576" in message
    )


def spoiled(folder: Path, copy: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy with other tensors, whose config has neither checksum nor canary."""
    shutil.copytree(folder, copy)
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    for key in ("checksum", "canary"):
        config.pop(key, None)
    write_config(copy, config)
    return copy


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_with_a_value_that_is_not_finite_are_refused(
    dtype: torch.dtype, value: float, folders: dict[str, Path], tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)
        tensors["token_embedding.weight"][40_000, 3] = value  # of a word that no canary holds

    folder = spoiled(folders["clip"], tmp_path / "copy", spoil)
    for _ in range(2):
        with pytest.raises(
            WeightsError, match=r"^weights 'copy': 1 of .* token_embedding.*: .* model\.safetensors again"
        ):
            open_network("clip", folder)
    broken = load_file(folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"values of tensor token_embedding\.weight are NaN or infinite"):
        ClipEncoder(json.loads((folder / "config.json").read_text()), broken, device="cpu")


@pytest.mark.parametrize("kind", ["blip2", "sam", "eva_clip", "alpha_clip", "owlv2", "faster_rcnn", "x152"])
def test_every_network_refuses_values_that_are_not_finite(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    names: list[str] = []

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        names.append(max(tensors))
        tensors[names[0]].view(-1)[-1] = float("inf")

    folder = spoiled(folders[kind], tmp_path / "copy", spoil)
    with pytest.raises(WeightsError) as caught:
        open_network(kind, folder)
    assert names[0] in str(caught.value) and "NaN or infinite" in str(caught.value)


def test_weights_beyond_the_range_of_float16_are_refused_there(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(
        folders["clip"],
        tmp_path / "copy",
        lambda tensors: tensors["transformer.resblocks.0.mlp.c_fc.weight"][0].fill_(1e5),
    )
    opened = open_weights(folder, metric="pacs", tiny="pacs")
    with pytest.raises(WeightsError, match=r"resblocks\.0\.mlp\.c_fc.*range of float16: pass dtype="):
        ClipEncoder.open(opened, device="cpu", dtype="float16")
    assert ClipEncoder.open(opened, device="cpu", dtype="bfloat16").dtype == "bfloat16"


def test_tensors_of_integers_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["visual.proj"] = tensors["visual.proj"].to(torch.int64)

    with pytest.raises(WeightsError, match=r"do not hold floating-point numbers: 'visual\.proj'"):
        open_network("clip", spoiled(folders["clip"], tmp_path / "copy", spoil))


def test_all_networks_are_here() -> None:
    from capeval_core.registry import NETWORKS

    assert NETWORKS.keys() <= SETTINGS.keys()
    assert issubclass(OpenClipEncoder, CheckedModel) and issubclass(Blip2Encoder, CheckedModel)
