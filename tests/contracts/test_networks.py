"""What every network promises: order, batches, equal items, types, weights, damage, and what is around it."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from capeval_core.cache import FeatureCache
from capeval_core.cli import main
from capeval_core.registry import NETWORKS
from capeval_core.testing import count_forwards
from tests.support import seams
from tests.support.networks import (
    BOXES,
    DETECTORS,
    KINDS,
    MASKS,
    TEXTS,
    arrays,
    distance,
    folder,
    items,
    on,
    opened,
    run,
    together,
)  # fmt: skip
from tests.support.seeded import write_config

EVERY = pytest.mark.parametrize("kind", KINDS)
STREAMS = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sam"])
CHOOSE = ("faster_rcnn", "x152", "sam")  # which of nearly equal boxes or masks are kept is rounding
NARROW = {"bfloat16": 0.06, "float16": 0.01}
UNREAD = {
    "uniter": ("matching_head",),
    "vilbert": (
        "text_layers.3",
        "visual_layers.2",
        "co_layers.1.visual.query",
        "co_layers.1.visual.merge",
        "co_layers.1.visual.intermediate",
        "co_layers.1.visual.output",
        "co_layers.1.text.key",
        "co_layers.1.text.value",
        "pooler",
    ),
    "siglip": ("cls_token",),  # which the small tower of the tests has and the attention pool leaves out
    "sam": ("output_hypernetworks_mlps", "prompt_encoder"),
}
"""Tensors behind what the canary reads."""


# ---- items


@STREAMS
def test_order_batches_and_company_change_nothing(kind: str) -> None:
    network, given = opened(kind), items(kind, 5)
    alone = [run(network, [one], [i])[0] for i, one in enumerate(given)]
    for order, batch_size in (([0, 1, 2, 3, 4], None), ([3, 0, 4, 1, 2], 1), ([4, 2, 0, 3, 1], 3)):
        found = run(network, [given[i] for i in order], order, batch_size=batch_size)
        for i, each in zip(order, found, strict=True):
            assert each["error"] is None and each["key"] == alone[i]["key"] != ""
            assert distance(arrays(each), arrays(alone[i])) < 1e-5
    assert len({each["key"] for each in alone}) == 5
    assert all(array.dtype != np.float64 for array in arrays(alone[0]).values())
    assert run(network, []) == []


@STREAMS
def test_equal_items_run_once_and_are_kept(kind: str) -> None:
    network, cache = opened(kind), FeatureCache()
    first, second = items(kind, 2)
    with count_forwards() as twice:
        expected = run(network, [first, second], [0, 1])
    with count_forwards() as again:
        found = run(network, [first, second, first, second], [0, 1, 0, 1], cache=cache)
    assert (again.items, again.batches) == (twice.items, twice.batches) and twice.items >= 2
    with count_forwards() as kept:
        stored = run(network, [second, first], [1, 0], cache=cache)
    assert kept.items == 0
    for i, each in enumerate((*found, *stored[::-1])):
        assert distance(arrays(each), arrays(expected[i % 2])) < 1e-5
    other = opened(kind, "bfloat16")
    with count_forwards() as narrow:  # another type, another feature
        run(other, [first], [0], cache=cache)
    assert narrow.items > 0


@STREAMS
def test_a_broken_item_costs_its_own_row(kind: str, tmp_path: Path) -> None:
    network, (first, last) = opened(kind), items(kind, 2)
    if kind in BOXES:
        wide = {**first, "features": np.concatenate([first["features"]] * 2, axis=1)}
        sizeless = {name: value for name, value in first.items() if name != "size"}
        broken, reasons = [wide, sizeless], ["numbers", "size"]
    else:
        (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
        broken, reasons = [tmp_path / "broken.png", tmp_path / "none.png"], ["broken.png", "none.png"]
    found = run(network, [first, *broken, last], [0, 0, 0, 1])
    alone = [run(network, [one], [i])[0] for i, one in enumerate((first, last))]
    assert [each["error"] is None for each in found] == [True, False, False, True]
    for i, reason in enumerate(reasons, 1):
        assert found[i]["error"].startswith(f"images[{i}]") and reason in found[i]["error"]
        numbers = [array for array in arrays(found[i]).values() if array.dtype.kind == "f"]
        assert not any(np.isfinite(array).any() for array in numbers[:1])
    for each, expected in zip((found[0], found[3]), alone, strict=True):
        assert distance(arrays(each), arrays(expected)) < 1e-5


@STREAMS
def test_items_are_taken_as_they_are_needed(kind: str) -> None:
    network, (one,) = opened(kind), items(kind, 1)
    taken, cache = 0, FeatureCache()
    run(network, [one], [0], cache=cache)

    def endless() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield one

    more: dict[str, Any] = {"cache": cache}
    if kind in (*BOXES, "blip2"):
        more["texts"] = (TEXTS[:2] for _ in repeat(None))
    elif kind == "alpha_clip":
        more["regions"] = (MASKS[:1] for _ in repeat(None))
    assert len(list(islice(seams.encode(network, endless(), **more), 3))) == 3
    assert taken <= 2 * 3 * 64 + 3


@pytest.mark.parametrize("kind", [*BOXES, "blip2", "alpha_clip"])
def test_every_item_has_its_texts_or_regions(kind: str) -> None:
    network, given = opened(kind), items(kind, 2)
    with pytest.raises(ValueError, match=r"there are 1 .* but more images"):
        run(network, given, [0])
    with pytest.raises(ValueError, match="there are 2 images but more"):
        run(network, given, [0, 1, 0])


@pytest.mark.parametrize("kind", [*BOXES, "blip2"])
def test_each_text_of_an_item_is_computed_alone(kind: str) -> None:
    """Whatever its company and their lengths; equal ones once, those too long are cut."""
    network, (one,) = opened(kind), items(kind, 1)
    texts = ["dog", "", "dog " * 90, "a red dog", "dog"]
    (found,) = seams.encode(network, [one], [texts], batch_size=2)
    alone = [next(seams.encode(network, [one], [[text]])) for text in texts]
    for i, each in enumerate(alone):
        for name in ("logits", "text_features", "features"):
            if name in found:
                assert np.allclose(found[name][i], each[name][0], atol=1e-5)
    with count_forwards() as forwards:
        list(seams.encode(network, [one] * 3, [texts, texts[:1], texts[1:2]]))
        more = forwards.items
        list(seams.encode(network, [one], [texts[:4]]))
    assert forwards.items == 2 * more


# ---- types, devices, what a program has set


@EVERY
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_are_near(kind: str, dtype: str) -> None:
    given = items(kind, 1 if kind in CHOOSE else 3)
    narrow, wide = (together(run(opened(kind, each), given)) for each in (dtype, "float32"))
    if kind in CHOOSE:
        assert {n: a.shape[1:] for n, a in narrow.items()} == {n: a.shape[1:] for n, a in wide.items()}
        assert all(np.isfinite(array).all() for array in narrow.values())
    else:
        # The logits of the seeded ranking head are differences of large numbers.
        assert 0 < distance(narrow, wide) < NARROW[dtype] * (2 if kind == "uniter" else 1)
    assert {name: array.dtype for name, array in narrow.items()} == {n: a.dtype for n, a in wide.items()}
    assert opened(kind, dtype).fingerprint == opened(kind).fingerprint
    with pytest.raises(ValueError, match="float32 to save"):
        opened(kind, dtype).save_pretrained("nowhere")


@EVERY
def test_what_a_program_has_set_changes_nothing_and_stays(kind: str) -> None:
    network, given = opened(kind), items(kind, 2)
    expected = together(run(network, given))
    with ExitStack() as around:
        around.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        around.enter_context(torch.enable_grad())
        around.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("medium")
        assert distance(together(run(network, given)), expected) < 1e-6
        assert torch.is_autocast_enabled("cpu") and torch.get_float32_matmul_precision() == "medium"
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert not network.model.training


def test_running_out_of_memory_halves_the_batch() -> None:
    release, (image,) = opened("blip2"), items("blip2", 1)
    network = seams.network("blip2", release.config, dict(release.model.state_dict()))
    texts, sizes = ["dog " * i for i in range(12)], list[int]()

    def refuse(module: Any, inputs: Any) -> None:
        sizes.append(len(inputs[0]))
        if len(inputs[0]) > 3:
            raise torch.OutOfMemoryError("no") if sizes[-1] > 6 else RuntimeError("can't allocate memory")

    (expected,) = seams.encode(network, [image], [texts])
    network.model.itm_head.register_forward_pre_hook(refuse)
    (found,) = seams.encode(network, [image], [texts])
    assert np.allclose(found["logits"], expected["logits"], atol=1e-5) and sizes[:3] == [12, 6, 3]
    with pytest.raises(MemoryError, match="batch_size=8"):
        list(seams.encode(network, [image], [texts], batch_size=8))


# ---- weights


@EVERY
def test_saved_and_opened_again_it_gives_the_same(kind: str, tmp_path: Path) -> None:
    network, given = opened(kind), items(kind, 2)
    place = tmp_path / "again"
    network.save_pretrained(place)
    assert {"README.md", "config.json", "model.safetensors"} <= {path.name for path in place.iterdir()}
    assert len({(place / name).stat().st_mode for name in ("config.json", "model.safetensors")}) == 1
    again = seams.network(kind, place)
    if kind != "open_clip":  # which was in another format
        assert again.fingerprint == network.fingerprint
    assert distance(together(run(again, given)), together(run(network, given))) < 1e-5
    for dtype in NARROW:  # within the canary's tolerance
        assert seams.network(kind, place, dtype=dtype).dtype == dtype
    assert type(network).describe(network.config) == type(again).describe(again.config) != ""


def test_a_network_is_opened_once_and_let_go(tmp_path: Path) -> None:
    tensors = load_file(folder("uniter") / "model.safetensors")
    place = copied("uniter", tmp_path / "w", {**tensors, "pooler.bias": tensors["pooler.bias"] + 1})
    first = seams.network("uniter", place, dtype="bfloat16")
    assert seams.network("uniter", str(place), dtype="bfloat16") is first
    assert seams.network("uniter", place) is not first
    with seams.networks_held(0):
        again = seams.network("uniter", place, dtype="bfloat16")
        model = weakref.ref(again.model)
        del again
        gc.collect()
        assert model() is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "open_clip"])
def test_the_canary_sees_a_change_of_any_tensor(kind: str) -> None:
    network = opened(kind)
    expected, tensors = network.canary(), dict(network.model.state_dict())
    names = [name for name, tensor in tensors.items() if tensor.ndim > 1 and "anchors" not in name]
    names = [name for name in names if not any(part in name for part in UNREAD.get(kind, ()))]
    bare = {key: value for key, value in network.config.items() if key != "canary"}
    for name in names[:: max(1, len(names) // 6)]:
        factors = 0.3 + torch.rand(tensors[name].shape, generator=torch.Generator().manual_seed(0))
        changed = tensors | {name: tensors[name] * factors}
        other = seams.network(kind, bare, changed)
        assert np.abs(other.canary() - expected).max() > 1e-4, name
    with pytest.raises(ValueError, match="canary"):  # also where it is no number
        seams.network(kind, network.config, tensors | {names[0]: tensors[names[0]] * 1e37})
    assert np.abs(expected).max() > 0


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [(kind, *item) for kind, facts in NETWORKS.items() for item in facts.hidden.items()],
)
def test_the_canary_sees_settings_that_tensors_do_not_show(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="canary"):
        seams.network(kind, edited(kind, tmp_path, key, value))


def edited(kind: str, tmp_path: Path, key: str, value: Any) -> Path:
    """A copy of a folder with another value in its config."""
    copy = Path(shutil.copytree(folder(kind), tmp_path / "edited", dirs_exist_ok=True))
    name = "open_clip_config.json" if (copy / "open_clip_config.json").is_file() else "config.json"
    config = json.loads((copy / name).read_text())
    *parts, last = key.split(".")
    part = config
    for each in parts:
        part = part.setdefault(each, {})
    part[last] = value
    write_config(copy, config, name)
    return copy


def test_a_config_that_is_not_as_it_was_saved_is_refused(tmp_path: Path) -> None:
    opened("clip").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    text = file.read_text()
    config = json.loads(text)
    mean = repr(config["preprocessing"]["mean"][1])
    changed = mean[:-1] + ("1" if mean[-1] == "0" else "0")  # the last digit: no canary would show it
    file.write_text(text.replace(mean, changed))
    with pytest.raises(ValueError, match=r"config\.json"):
        seams.network("clip", tmp_path)
    file.write_text(json.dumps(config, indent=3, sort_keys=True))  # the same in another form
    assert seams.network("clip", tmp_path).config == config
    config["preprocessing"]["mean"][1] = float(changed)
    del config["checksum"]["config.json"]
    file.write_text(json.dumps(config))
    assert seams.network("clip", tmp_path).config["preprocessing"]["mean"][1] == float(changed)


@EVERY
def test_weights_of_another_network_are_refused(kind: str) -> None:
    other = "uniter" if kind != "uniter" else "clip"
    with pytest.raises(ValueError, match=f"weights of encoder '{other}', expected '{kind}'"):
        seams.network(kind, folder(other))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "open_clip"])
def test_tensors_must_fit(kind: str, tmp_path: Path) -> None:
    network = opened(kind)
    config, tensors = network.config, dict(network.model.state_dict())
    name = max(name for name in tensors if tensors[name].ndim)
    wrong = {**tensors, name: torch.ones(*tensors[name].shape, 2)}
    lacking = {key: value for key, value in tensors.items() if key != name}
    for changed in (lacking, {**tensors, "one_more": torch.ones(1)}, wrong):
        told = "one_more" if "one_more" in changed else name
        with pytest.raises(ValueError, match=told.replace(".", r"\.")):
            seams.network(kind, copied(kind, tmp_path / f"{len(changed)} {changed is wrong}", changed))
    for value in (float("nan"), float("inf")):
        spoilt = tensors[name].clone()
        spoilt.view(-1)[-1] = value
        place = copied(kind, tmp_path / f"{value}", {**tensors, name: spoilt})
        for weights in ((place,), (config, {**tensors, name: spoilt})):
            with pytest.raises(ValueError, match="NaN or infinity"):
                seams.network(kind, *weights)


def copied(kind: str, place: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A copy of a folder with other tensors, whose config has neither checksum nor canary."""
    shutil.copytree(folder(kind), place)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / "model.safetensors")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key not in ("checksum", "canary")})
    )
    return place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_a_type_cannot_hold_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: t.to(dtype) for name, t in load_file(folder("clip") / "model.safetensors").items()}
    word = tensors["token_embedding.weight"].clone()
    word[40_000, 3] = float("inf")  # of a word that no canary holds
    place = copied("clip", tmp_path / "infinite", {**tensors, "token_embedding.weight": word})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"weights 'infinite': tensor token_embedding"):
            seams.network("clip", place)
    if dtype == torch.float32:
        name = "transformer.resblocks.0.mlp.c_fc.weight"
        place = copied("clip", tmp_path / "large", {**tensors, name: tensors[name] * 1e6})
        with pytest.raises(ValueError, match=r"c_fc.*range of float16"):
            seams.network("clip", place, dtype="float16")
        assert seams.network("clip", place, dtype="bfloat16").dtype == "bfloat16"
        place = copied("clip", tmp_path / "whole", {**tensors, "visual.proj": tensors["visual.proj"].long()})
        with pytest.raises(ValueError, match=r"floating-point numbers: 'visual\.proj'"):
            seams.network("clip", place)


# ---- configs


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("clip", "architecture.vision.layers", 40),
        ("clip", "architecture.text.width", 1 << 20),
        ("clip", "architecture.text.heads", 3),
        ("clip", "architecture.vision.head_width", 48),
        ("eva_clip", "architecture.vision.mlp_width", 1 << 20),
        ("open_clip", "model_cfg.text_cfg.width", 1 << 20),
        ("blip2", "architecture.qformer.intermediate_size", 1 << 20),
        ("faster_rcnn", "architecture.attribute_width", 1 << 16),
        ("x152", "architecture.feature_width", 1 << 16),
        ("x152", "architecture.groups", 3),
        ("uniter", "architecture.hidden_size", 30),
        ("uniter", "context_length", 41),
        ("uniter", "lowercase", "no"),
        ("uniter", "vocabulary", "words.txt"),
        ("vilbert", "architecture.text_layers_before", [3, 1]),
        ("vilbert", "architecture.text_layers_before", [1, 5]),
        ("vilbert", "architecture.visual_layers_before", [1]),
        ("vilbert", "architecture.tasks", 0),
        ("vilbert", "task", None),
        ("vilbert", "task", 20),  # of 20 tasks, counted from 0
        ("sam", "architecture.vision.mlp_dim", 1 << 12),
        ("alpha_clip", "mask", {"mean": 0.5}),
        ("alpha_clip", "mask", {"mean": 0, "std": -1}),
        ("faster_rcnn", "preprocessing.shortest_side", 2000),
        ("faster_rcnn", "detections.least", 40),
        ("faster_rcnn", "architecture.heads", 3),
        ("open_clip", "model_cfg.vision_cfg.timm_model_name", "hf-hub:someone/model"),
        ("open_clip", "model_cfg.vision_cfg.timm_model_name", "no_such_tower"),
        ("open_clip", "model_cfg.text_cfg.hf_model_name", "x"),
        *[(kind, "architecture", 5) for kind in KINDS if kind != "open_clip"],
        *[("clip", f"preprocessing.{key}", [1, 1, x]) for key in ("mean", "std") for x in (True, 1e308)],
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    """By the config alone, or by the tensors' header: before a tensor is read."""
    place = edited(kind, tmp_path, key, value)
    with pytest.raises(ValueError, match="weights 'edited'") as caught:
        seams.network(kind, place)
    assert "canary" not in str(caught.value)
    if kind == "vilbert":
        assert key.rpartition(".")[2].removesuffix("s") in str(caught.value)
        assert value is None or str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("vilbert", "task", 0),
        ("vilbert", "task", 19),
        ("vilbert", "architecture.text_layers_before", [0, 4]),
        ("vilbert", "architecture.text_layers_before", [4, 4]),
        ("vilbert", "architecture.visual_layers_before", [3, 3]),
        ("vilbert", "context_length", 40),
        ("uniter", "context_length", 40),
    ],
)
def test_settings_at_their_bounds_are_taken(kind: str, key: str, value: Any) -> None:
    network = opened(kind)
    config = json.loads(json.dumps({name: part for name, part in network.config.items() if name != "canary"}))
    *parts, last = key.split(".")
    part = config
    for name in parts:
        part = part[name]
    part[last] = value
    changed = seams.network(kind, config, dict(network.model.state_dict()))
    (found,) = run(changed, items(kind, 1))
    assert found["error"] is None and all(np.isfinite(array).all() for array in arrays(found).values())


def test_a_config_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = edited("clip", tmp_path, "architecture.vision.width", 10**12)
    (tmp_path / "c.json").write_text('{"1": "a dog"}')
    Image.new("RGB", (64, 64)).save(tmp_path / "1.png")
    arguments = ["--candidates", str(tmp_path / "c.json"), "--images", str(tmp_path)]
    assert main(["score", "pacs", "--weights", str(place), *arguments]) == 2
    assert "architecture.vision.width" in capsys.readouterr().err
    for content in ("[" * 100_000, '{"format": ' + "9" * 5000 + "}", "", "[]"):
        (place / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config\.json"):
            seams.network("clip", place)


# ---- what is not of every network


@pytest.mark.parametrize("kind", DETECTORS)
def test_boxes_lie_in_their_image_best_first(kind: str) -> None:
    for height, width in ((60, 80), (90, 31), (12, 300), (2, 2)):
        image = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        (found,) = run(opened(kind), [image])
        boxes, scores = found["boxes"], found["scores"]
        beyond = 31 if kind == "x152" else 0  # pixels of the margin, as its release has them
        assert (boxes >= 0).all() and (boxes <= np.array([width, height] * 2) + beyond).all()
        assert (boxes[:, 2:] >= boxes[:, :2]).all() and (np.diff(scores) <= 0).all()
        assert len(boxes) == len(found["features"]) >= 1 and found["size"] == (width, height)


def test_a_layer_of_vilbert_is_counted_from_either_end() -> None:
    network, given = opened("vilbert"), items("vilbert", 1)

    def features(layer: int) -> Any:
        return arrays(next(iter(seams.encode(network, given, [TEXTS[:2]], layer=layer))))

    for layer in (0, 1):
        assert distance(features(layer), features(layer - 2)) == 0
    assert distance(features(0), features(1)) > 0
    for layer in (2, -3):
        with pytest.raises(ValueError, match=f"layer={layer}: ") as caught:
            features(layer)
        assert "2 co-attention blocks" in str(caught.value) and "0 to 1" in str(caught.value)
        assert "-2 to -1" in str(caught.value)


@pytest.mark.parametrize("kind", ["clip", "blip2", "faster_rcnn", "x152", "scene_regions", "sam"])
@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_other_colour_modes_are_converted(kind: str, mode: str) -> None:
    plain = Image.fromarray(items("clip", 1)[0])
    drawn = plain.convert("L" if mode == "1" else "RGB").convert(mode)
    (found,) = run(opened(kind), [drawn])
    assert found["error"] is None and all(np.isfinite(array).all() for array in arrays(found).values())


@STREAMS
def test_building_it_leaves_the_users_random_numbers_alone(kind: str) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    on(kind)
    assert torch.equal(torch.rand(3), expected)
