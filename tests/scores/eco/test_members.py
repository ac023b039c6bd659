"""The members of ECO's ensemble: chosen by name, opened one at a time, each by its encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.matching.cosine import best_query_cosine
from capeval_core.scores.eco.members import PRESETS, member_names
from capeval_core.weights.catalogue import ECO_MEMBERS
from capeval_core.weights.folder import WeightsError
from tests.scores.eco.conftest import CANARY, Runs, opened
from tests.support.seeded import eva_release, open_clip_repository, write_config


def cosines_of(a: Any, b: Any) -> Any:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_the_value_is_the_members_own_cosine(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    rows = metric.encode_all(metric.check(*scenes))
    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    blip2 = Blip2Encoder.from_pretrained(matcher, device="cpu")
    samples = metric.check(*scenes)
    text_features = clip.encode_texts([f"A photo depicts {caption}" for caption in samples.captions]).features
    image_features = np.concatenate([part.features for part in clip.encode_images(samples.images)])
    cosines = cosines_of(image_features, text_features)
    values = np.array(rows["values"].to_pylist())
    assert np.allclose(values[:, 0], cosines, atol=1e-6)
    images = [samples.images[row] for row, c in enumerate(samples.candidates) if c == 0]
    matches = list(blip2.match(images, scenes[0], cache=FeatureCache(0)))
    contrast = [best_query_cosine(match.queries, match.text_features) for match in matches]
    assert np.allclose(values[:, 1], np.concatenate(contrast), atol=1e-6)
    assert np.allclose(rows["itm"], np.concatenate([match.itm for match in matches]), atol=1e-6)


def test_members_run_one_after_another_and_free_their_memory(
    matcher: str, seeded: str, scenes: Any, runs: Runs
) -> None:
    metric = opened(matcher, [seeded, "blip2-itc"])
    assert runs.opened == []  # opening a metric reads no tensors
    metric.score(*scenes)
    assert runs.most == 1
    assert all(ref() is None for ref in runs.opened)
    # Each image once, however many candidates it has.
    assert runs.images == {"clip": 5 + CANARY, "blip2": 5 + CANARY}


def test_members_have_names_and_presets() -> None:
    assert member_names(None, tiny=False) == list(PRESETS["paper"])
    assert member_names(None, tiny=True) == list(PRESETS["tiny"])
    for preset in ("paper", "small"):
        assert [name for name in PRESETS[preset] if name not in ECO_MEMBERS] == ["blip2-itc"]
        assert len(PRESETS[preset]) == 5


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["pacs-tiny", "nope"], "members: 'nope' could not be opened.*neither known"),
        (["pacs-tin"], "nor a folder: did you mean 'pacs-tiny'"),
        (["./no-folder"], "members: './no-folder' could not be opened"),
        (["pacs-tiny", "pacs-tiny"], "'pacs-tiny' comes twice"),
        ([], "names none"),
        ("pacs-tiny,,", "names none"),
    ],
)
def test_wrong_members_are_named(matcher: str, members: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(matcher, members)


def test_another_blip2_is_a_member_by_its_contrast(matcher: str, scenes: Any, tmp_path: Path) -> None:
    (tmp_path / "Second").symlink_to(matcher)
    metric = opened("tiny", [str(tmp_path / "Second"), "blip2-itc"])
    rows = metric.encode_all(metric.check(*scenes))
    alone, filtering = (
        metric.encode_all(metric.check(*scenes))
        for metric in (opened(matcher, "blip2-itc"), opened("tiny", "blip2-itc"))
    )
    values = np.array(rows["values"].to_pylist())
    assert np.allclose(values[:, 0], np.array(alone["values"].to_pylist())[:, 0], atol=1e-6)
    assert np.allclose(values[:, 1], np.array(filtering["values"].to_pylist())[:, 0], atol=1e-6)
    assert np.allclose(rows["itm"], filtering["itm"], atol=1e-6)  # `weights` filter, whoever else matches


def test_a_member_of_another_kind_is_named(matcher: str, seeded: str, tmp_path: Path) -> None:
    config = json.loads((Path(seeded) / "config.json").read_text())
    write_config(tmp_path, {**config, "encoder": "sam"})
    (tmp_path / "model.safetensors").symlink_to(Path(seeded) / "model.safetensors")
    with pytest.raises(WeightsError, match=r"members: '.*' could not be opened.*'sam', expected a CLIP"):
        opened(matcher, [str(tmp_path)])


def test_a_member_whose_tensors_are_broken_is_named_when_it_runs(
    matcher: str, scenes: Any, tmp_path: Path, seeded: str
) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    config = json.loads((Path(seeded) / "config.json").read_text())
    del config["checksum"]
    write_config(folder, config)
    whole = (Path(seeded) / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1000])
    metric = opened(matcher, [str(folder), "blip2-itc"])
    with pytest.raises(WeightsError, match=r"members: 'cut' could not be opened[^\n]*\n.*without it"):
        metric.score(*scenes, rows=tmp_path / "rows")
    # What ran before it is kept.
    shards = (tmp_path / "rows" / "blip2-itc").glob("*.parquet")
    assert sum(len(pq.read_table(shard)) for shard in shards) == sum(map(len, scenes[0]))


def test_all_members_that_are_missing_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    members = ["pacs-tiny", "nobody/nothing", "eva02-l14"]
    with pytest.raises(WeightsError) as missing:
        capeval_core.load("eco", weights="nobody/matcher", members=members, device="cpu")
    for name in ("weights 'nobody/matcher'", "members: 'nobody/nothing'", "members: 'eva02-l14'"):
        assert name in str(missing.value)


def test_a_folder_of_a_known_name_is_that_member(
    matcher: str, seeded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eva-clip-18b").symlink_to(seeded)
    (tmp_path / "blip2-itc").symlink_to(seeded)
    monkeypatch.chdir(tmp_path)
    assert "|seeded:Seeded@" in opened(matcher, ["eva-clip-18b", "blip2-itc"]).signature()
    with pytest.raises(ValueError, match="twice"):
        opened(matcher, ["eva-clip-18b", "./eva-clip-18b"])
    shutil.copytree(seeded, tmp_path / "weights")
    with pytest.raises(ValueError, match="a folder called 'weights' cannot be told from the option"):
        opened(matcher, ["weights", "blip2-itc"])


@pytest.mark.parametrize("kind", ["eva_clip", "open_clip", "alpha_clip"])
def test_dual_encoders_of_every_make_are_members(
    kind: str, matcher: str, scenes: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "member"
    if kind == "eva_clip":
        original = eva_release()
        EvaClipEncoder(original.config, original.tensors, device="cpu").save_pretrained(folder)
    elif kind == "open_clip":
        open_clip_repository(folder)
    else:
        AlphaClipEncoder.from_pretrained("tiny", device="cpu").save_pretrained(folder)
    metric = opened(matcher, [str(folder), "blip2-itc"])
    assert f"|member:member@{metric.members[1].model.fingerprint[:8]}|" in metric.signature()
    samples = metric.check(*scenes)
    values = np.array(metric.encode_all(samples)["values"].to_pylist())[:, 0]
    encoder = metric.members[1].open("cpu", "float32")
    text_features = encoder.encode_texts(samples.captions).features
    image_features = np.concatenate([part.features for part in encoder.encode_images(samples.images)])
    assert encoder.kind == kind
    cosines = cosines_of(image_features, text_features)
    assert np.allclose(values, cosines, atol=1e-5)
