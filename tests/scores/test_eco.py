"""ECO: the ranking beside a plain way of computing it, members that open one by one, pools that go wrong."""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from capeval_core.rows import canonical
from capeval_core.testing import count_forwards
from tests.support.seams import LIMITS, network, networks_held
from tests.support.seeded import blip2_weights, encoder, eva, open_clip_repository
from tools.captions import describe
from tools.scenes import draw, sample_scene


@pytest.fixture(scope="module")
def matcher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a seeded BLIP-2."""
    return str(blip2_weights(tmp_path_factory.mktemp("eco")))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a seeded CLIP, which as a member is called by its folder."""
    folder = tmp_path_factory.mktemp("eco") / "Seeded"
    encoder().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def scenes() -> tuple[list[list[str]], list[Image.Image]]:
    """Five pools of 1 to 7 candidates of several kinds."""
    rng = np.random.default_rng(1)
    shown = [sample_scene(rng) for _ in range(5)]
    pools = [
        [describe(scene, rng) + f" w{i}" for i in range(2 + number)] for number, scene in enumerate(shown)
    ]
    pools[0] = pools[0][:1]
    pools[2] += ["a dog w3", "a, b, c, d, and e on a plain background"]
    pools[4].append(pools[4][0])
    return pools, [draw(scene) for scene in shown]


def opened(matcher: str, members: Any = ("pacs-tiny", "blip2-itc"), **options: Any) -> Any:
    given = {"weights": matcher, "members": members, "device": "cpu", "cache": FeatureCache(), **options}
    return capeval_core.load("eco", **given)


def values_of(rows: pa.Table) -> Any:
    return np.array(canonical(rows)["values"].to_pylist(), dtype=np.float64)


# The ranking.


DOG, WIDE, CAT, SUN = (
    "a dog runs on the sand",
    "a dog runs on the wide sand",
    "two cats sleep in the sun",
    "a dog sleeps in the warm sun",
)


def ranked(
    pools: Sequence[Sequence[str]],
    values: Sequence[Sequence[float]],
    itm: Sequence[Sequence[float]] | None = None,
    **options: Any,
) -> Result:
    """Pools with the given values of one member, and matches, which are the same unless they are given."""
    rows = [
        {
            **{"group": "", "references": 0, "empty": False, "truncated": 0, "candidate": position},
            **{"caption": caption, "values": [value], "itm": match},
        }
        for pool, own, matches in zip(pools, values, itm or values, strict=True)
        for position, (caption, value, match) in enumerate(zip(pool, own, matches, strict=True))
    ]
    metric = opened("tiny", ["blip2-itc"], **options)
    table = pa.Table.from_pylist([{"index": i, **row} for i, row in enumerate(rows)], schema=metric.ROW)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot tell")
        found: Result = metric.combine(table)
    return found


def of_candidates(result: Result, name: str) -> list[Any]:
    return [candidate[name] for pool in result.parts["candidates"] for candidate in pool]


@pytest.mark.parametrize(
    ("captions", "totals", "threshold", "best"),
    [
        ([WIDE, DOG], [1.3, 1.0], 0.39, 1),  # near, and shorter
        ([DOG, WIDE], [1.3, 1.0], 0.39, 0),  # near, but longer
        ([DOG, CAT], [1.3, 1.0], 0.39, 0),  # near and equally long: the better total
        ([CAT, DOG], [1.0, 1.3], 0.39, 1),
        ([WIDE, DOG], [1.375, 1.0], 0.374, 0),
        ([WIDE, DOG], [1.375, 1.0], 0.376, 1),
        ([WIDE, WIDE, DOG], [1.3, 1.3, 1.0], 0.39, 2),  # a copy of the best is no runner-up
        ([WIDE, WIDE, DOG], [1.5, 1.5, 1.0], 0.39, 0),
        ([DOG, DOG], [1.0, 1.0], 0.39, 0),
        ([WIDE, SUN, DOG], [1.3, 1.2, 1.1], 0.39, 0),  # the third is no alternative
        ([WIDE, DOG], [1.0, 1.0], 0.0, 0),  # no threshold: of equal totals the first
    ],
)
def test_the_shorter_of_the_best_two_if_they_are_near(
    captions: list[str], totals: list[float], threshold: float, best: int
) -> None:
    """As many candidates of no match again are what the better half leaves out."""
    n = len(captions)
    values = [*totals, *[0.5] * n]
    options = {"ensemble_weight": 1.0, "consensus_weight": 0.0, "threshold": threshold / np.std(values)}
    found = ranked(
        [[*captions, *["one two three four five"] * n]], [values], [[1.0] * n + [0.0] * n], **options
    )
    assert found.parts["choice"] == [best]


def test_a_candidate_without_a_finite_value_is_left_out_alone() -> None:
    nan, texts = float("nan"), [DOG, WIDE, SUN]
    found = ranked([texts] * 2, [[0.3, nan, 0.1], [nan] * 3], [[0.7, 0.9, 0.8], [0.5] * 3])
    lost = "a member has no finite value for it"
    assert of_candidates(found, "dropped")[1:] == [lost, None, *[lost] * 3]
    assert found.parts["choice"] == [2, -1] and found.parts["gave_way"] == ["", ""]
    assert math.isfinite(found.scores[0]) and math.isnan(found.scores[1])


def test_a_doubtful_choice_is_named_by_its_pool_and_place() -> None:
    pools = [[DOG, CAT], [SUN, CAT, WIDE], [CAT, SUN, DOG]]
    values = [[0.9, 0.1], [0.1, 0.9, 0.2], [0.2, 0.1, 0.9]]
    itm = [[0.9, 0.8], [0.1, 0.2, 0.95], [0.97, 0.1, 0.2]]
    with pytest.warns(UserWarning, match="may well be wrong") as caught:
        found = ranked(pools, values, itm, **{"threshold": 0.0})
    assert found.parts["choice"] == [0, 1, 2] and found.parts["doubtful"] == [False, True, True]
    message = next(str(one.message) for one in caught if "may well" in str(one.message))
    assert "in 2 of 3 pools" in message
    assert "captions[1][1] is chosen with an ITM of 0.200, captions[1][2] has 0.950" in message
    assert "captions[2][2] is chosen with an ITM of 0.200, captions[2][0] has 0.970" in message


def test_where_nothing_can_be_told_apart_a_warning_says_so(matcher: str, scenes: Any) -> None:
    pools, images = scenes
    with pytest.warns(UserWarning, match="pacs-tiny, blip2-itc, consensus cannot tell"):
        alone = opened(matcher).score([pools[1][:1]], images[1:2])
    with pytest.warns(UserWarning, match="all values are equal"):
        equal = opened(matcher).score([[pools[1][0]] * 4], images[1:2])
    for result in (alone, equal):
        assert result.scores == [0.0] and result.parts["choice"] == [0]
    assert [reason is None for reason in of_candidates(equal, "dropped")] == [True, True, False, False]
    # Where the rules leave none, they give way.
    with pytest.warns(UserWarning, match="consensus cannot tell"):
        result = opened(matcher).score(
            [["a dog", "a cat w1", "two w2 w3"], ["a red star on the left"]], [images[0], images[3]]
        )
    assert result.parts["gave_way"] == ["format", ""]
    with pytest.warns(UserWarning, match="consensus"):
        result = opened(matcher, empty="score").score([["", *pools[1]], pools[3]], [images[1], images[3]])
    assert "0 words" in of_candidates(result, "dropped")[0]


# Rows and members.


def test_a_stopped_run_goes_on_inside_a_member(
    matcher: str, scenes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = opened(matcher).score(*scenes)
    monkeypatch.setattr(LIMITS, "texts_between_shards", 4)
    monkeypatch.setattr(LIMITS, "shard_seconds", -1)
    calls, fsync = [], os.fsync

    def stop(file: int) -> None:
        calls.append(file)
        if len(calls) == 20:
            raise KeyboardInterrupt
        fsync(file)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", stop)
        opened(matcher).score(*scenes, rows=tmp_path)
    kept = sum(len(pq.read_table(shard)) for shard in tmp_path.rglob("*.parquet"))
    assert 0 < kept < 2 * sum(map(len, scenes[0]))
    found = opened(matcher).score(*scenes, rows=tmp_path)
    assert found.parts["choice"] == expected.parts["choice"]


def test_members_run_one_after_another_and_free_their_memory(matcher: str, seeded: str, scenes: Any) -> None:
    def networks() -> int:
        gc.collect()
        return sum(isinstance(each, torch.nn.Module) for each in gc.get_objects())

    metric = opened(matcher, [seeded, "blip2-itc"])
    before = networks()
    with networks_held(0), count_forwards() as forwards:
        metric.score(*scenes)
    assert networks() == before
    # Each image once per network, however many candidates it has; texts, pairs and canaries are the rest.
    candidates = sum(map(len, scenes[0]))
    assert forwards.items < 2 * 5 + 3 * candidates + 20


@pytest.mark.parametrize("kind", ["pacs-tiny", "eva_clip", "open_clip", "alpha_clip"])
def test_the_value_of_a_member_is_its_own_cosine(
    kind: str, matcher: str, scenes: Any, tmp_path: Path
) -> None:
    """Whatever dual encoder it is; `pacs-tiny` has a prompt."""
    folder: Any = tmp_path / "member"
    if kind == "eva_clip":
        eva().save_pretrained(folder)
    elif kind == "open_clip":
        open_clip_repository(folder)
    elif kind == "alpha_clip":
        network("alpha_clip", "tiny").save_pretrained(folder)
    member = kind if kind == "pacs-tiny" else str(folder)
    metric = opened(matcher, [member, "blip2-itc"])
    samples = metric.check(*scenes)
    values = values_of(metric.encode_all(samples))[:, 0]
    clip = network("clip" if kind == "pacs-tiny" else kind, "tiny" if kind == "pacs-tiny" else folder)
    prompt = "A photo depicts " if kind == "pacs-tiny" else ""
    texts = clip.encode_texts([prompt + caption for caption in samples.captions]).features
    images = np.concatenate([part.features for part in clip.encode_images(samples.images)])
    lengths = np.linalg.norm(texts, axis=1) * np.linalg.norm(images, axis=1)
    assert values == pytest.approx((texts * images).sum(1) / lengths, abs=1e-5)


@pytest.mark.parametrize("compat", [None, "released"])
def test_released_images_are_in_rgb_before_any_member_sees_them(compat: str | None, matcher: str) -> None:
    shown = draw(sample_scene(np.random.default_rng(7)), 150).convert("RGB")
    seen_through = shown.convert("RGBA")
    seen_through.putalpha(Image.linear_gradient("L").resize(shown.size))
    images = [shown, shown.quantize(12), seen_through]
    pools, members = [[DOG, CAT]] * 3, ["pacs-tiny", "alpha-clip-tiny"]
    own, plain = opened(matcher, members, compat=compat), opened(matcher, members)
    values = values_of(own.encode_all(own.check(pools, images)))
    converted = values_of(plain.encode_all(plain.check(pools, [image.convert("RGB") for image in images])))
    distance = np.abs(values - converted).reshape(3, 2, 2).max(axis=1)  # (images, members)
    assert distance[:, 1].max() < 1e-6  # Alpha-CLIP's own preprocessing converts first
    assert distance[0, 0] < 1e-6
    assert (distance[1:, 0] < 1e-6).all() if compat else (distance[1:, 0] > 1e-3).all()
