"""ECO's choice: copies, the rule for short captions, doubtful choices, and images in RGB as released."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.phrases.consensus import consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.reranking import pools_of
from capeval_core.result import Result
from capeval_core.scores.eco.formulas import choose
from capeval_core.scores.eco.metric import EcoOptions, joined_rows
from capeval_core.scores.eco.ranking import Candidates, Ranking, rank
from tests.scores.eco.conftest import CANARY, Runs, opened
from tools.scenes import draw, sample_scene


@pytest.mark.parametrize(
    ("options", "comparison"),
    [({"consensus": "tfidf"}, "tfidf"), ({"compat": "released"}, "tfidf"), ({}, "cider")]
    + [({"compat": "released", "consensus": kind}, kind) for kind in ("cider", "cider_d")],
)
def test_the_consensus_is_the_one_that_the_options_mean(
    options: dict[str, Any], comparison: str, matcher: str, scenes: Any
) -> None:
    metric = opened(matcher)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = opened(matcher, **options).combine(metric.encode_all(metric.check(*scenes)))
    assert f"|consensus:{comparison}|" in result.signature
    differ = False
    for pool in result.parts["candidates"]:
        kept = [candidate for candidate in pool if candidate["dropped"] is None]
        texts = [candidate["caption"] for candidate in kept]
        tokens = [[ptb_tokens(text) for text in texts]]
        expected = {
            "tfidf": tfidf_consensus([texts])[0],
            "cider": consensus(tokens, kind="cider")[0],
            "cider_d": consensus(tokens, kind="cider_d")[0],
        }
        assert [candidate["cider"] for candidate in kept] == pytest.approx(
            expected[comparison].tolist(), abs=1e-12
        )
        pairs = itertools.combinations(expected.values(), 2)
        differ |= min(np.abs(one - other).max() for one, other in pairs) > 1e-3
    assert differ


def ranked(pools: list[list[str]], values: list[list[float]], **options: Any) -> Ranking:
    """Pools with the given values of one member, which are their matches, too."""
    flat = np.array([value for pool in values for value in pool])
    return rank(
        Candidates(
            pool=np.repeat(np.arange(len(pools)), [len(pool) for pool in pools]),
            captions=[caption for pool in pools for caption in pool],
            cosines=flat[:, None],
            itm=flat,
            failed=np.zeros(len(flat), bool),
        ),
        ["a"],
        EcoOptions(**options),
    )


DOG, WIDE, CAT, SUN = (
    "a dog runs on the sand",
    "a dog runs on the wide sand",
    "two cats sleep in the sun",
    "a dog sleeps in the warm sun",
)


def test_released_z_scores_count_copies_of_a_pool_once() -> None:
    """The released code keeps values by text, after its filters and its consensus, which see every copy."""
    pools = [[DOG, WIDE, DOG, DOG, CAT, SUN], [DOG, CAT, WIDE, SUN]]
    values = [[0.9, 0.8, 0.9, 0.9, 0.1, 0.2], [0.4, 0.7, 0.6, 0.3]]
    once = [0.8, 0.9, 0.1, 0.2, 0.4, 0.7, 0.6, 0.3]
    mean, deviation = np.mean(once), np.std(once)
    ranking = ranked(pools, values, compat="released")
    expected = (np.concatenate(values) - mean) / deviation
    assert ranking.zscores[:, 0] == pytest.approx(expected, abs=1e-12)
    assert ranking.ensemble == pytest.approx(expected, abs=1e-12)
    # The better three of six are all copies: the filters count them, and each agrees with the others.
    assert [row for row in range(6) if ranking.dropped[row] is None] == [0, 2, 3]
    kept = [row for row, reason in enumerate(ranking.dropped) if reason is None]
    assert kept[3:] == [7, 8]
    assert ranking.consensus[[0, 2, 3]] == pytest.approx(1.0)
    raw = [ranking.consensus[0], *ranking.consensus[[7, 8]]]
    z = (np.array(raw) - np.mean(raw)) / np.std(raw)
    assert ranking.agreement[kept] == pytest.approx([z[0], z[0], z[0], z[1], z[2]], abs=1e-12)
    # The paper does not mention copies: all count.
    paper = ranked(pools, values)
    plain = np.concatenate(values)
    assert paper.zscores[:, 0] == pytest.approx((plain - plain.mean()) / plain.std(), abs=1e-12)


def test_released_z_scores_take_the_last_copy_that_has_a_value() -> None:
    nan = float("nan")
    ranking = ranked([[DOG, DOG, DOG, CAT, SUN]], [[0.1, 0.3, nan, 0.5, 0.9]], compat="released")
    once = np.array([0.3, 0.5, 0.9])
    dog, cat, sun = (once - once.mean()) / once.std()
    assert ranking.zscores[:, 0] == pytest.approx([dog, dog, nan, cat, sun], abs=1e-12, nan_ok=True)
    assert ranking.dropped[2] == "a member has no finite value for it"


@pytest.mark.parametrize(
    ("captions", "totals", "threshold", "best"),
    [
        ([WIDE, DOG], [1.3, 1.0], 0.39, 1),  # near, and shorter
        ([DOG, WIDE], [1.3, 1.0], 0.39, 0),  # near, but longer
        ([DOG, CAT], [1.3, 1.0], 0.39, 0),  # near and equally long: the better total
        ([CAT, DOG], [1.0, 1.3], 0.39, 1),
        ([WIDE, DOG], [1.375, 1.0], 0.375, 0),  # the very threshold is no longer near
        ([WIDE, DOG], [1.375, 1.0], 0.376, 1),
        ([WIDE, WIDE, DOG], [1.3, 1.3, 1.0], 0.39, 2),  # a copy of the best is no runner-up
        ([WIDE, WIDE, DOG], [1.5, 1.5, 1.0], 0.39, 0),
        ([DOG, DOG], [1.0, 1.0], 0.39, 0),
        ([WIDE, DOG, "a dog"], [1.3, 1.2, 1.1], 0.39, 1),  # the third is no alternative
        ([DOG, WIDE], [1.0, 1.0], 0.0, 0),  # no threshold: of equal totals the first
        ([WIDE, DOG], [1.0, 1.0], 0.0, 0),
        ([DOG], [1.0], 0.39, 0),
    ],
)
def test_the_shorter_of_the_best_two_if_they_are_near(
    captions: list[str], totals: list[float], threshold: float, best: int
) -> None:
    assert choose(captions, totals, threshold) == best


def test_a_choice_far_below_the_best_match_of_its_pool_is_warned_of() -> None:
    metric = opened("tiny", ["blip2-itc"])
    pools = [
        ["a dog", WIDE],  # the right one has too few words
        [DOG, WIDE, CAT],
        ["a cat", DOG],
        ["dogs", DOG],
        ["cats", SUN],
        ["sun", WIDE],
    ]
    itm = [[0.981, 0.0], [0.9, 0.8, 0.1], [0.75, 0.25], [0.9, 0.3], [0.8, 0.1], [0.8, 0.2]]

    def combine(pools: list[list[str]], itm: list[list[float]]) -> Result:
        rows = [
            {
                **{"index": 0, "group": "", "references": 0, "empty": False, "truncated": 0},
                **{"candidate": position, "caption": caption, "values": [match], "itm": match},
            }
            for pool, matches in zip(pools, itm, strict=True)
            for position, (caption, match) in enumerate(zip(pool, matches, strict=True))
        ]
        for index, row in enumerate(rows):
            row["index"] = index
        return metric.combine(pa.Table.from_pylist(rows, schema=metric.ROW))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = combine(pools, itm)
    # A distance of exactly 0.5 may be two answers of yes, or two of no.
    assert result.parts["doubtful"] == [True, False, False, True, True, True]
    (message,) = [str(warning.message) for warning in caught if "best of its pool" in str(warning.message)]
    assert message.startswith("eco: in 4 of 6 pools ")
    assert (
        "captions[0][1] is chosen with an ITM of 0.000, captions[0][0] has 0.981 "
        "(dropped: 2 words, expected 5 or more)"
    ) in message
    assert "captions[3][1]" in message and "captions[4][1]" in message and "captions[5]" not in message
    assert message.endswith("and 1 more")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*best of its pool")
        assert combine(pools[1:3], itm[1:3]).parts["doubtful"] == [False, False]


def test_a_pool_without_a_choice_is_not_doubtful() -> None:
    nan = float("nan")
    ranking = ranked([[DOG, WIDE], [CAT, SUN]], [[nan, nan], [0.9, 0.1]])
    assert ranking.doubtful.tolist() == [False, False] and ranking.chosen == [-1, 0]


def test_a_candidate_without_a_match_is_not_the_best_of_its_pool() -> None:
    ranking = ranked([[DOG, WIDE, CAT], [CAT, SUN]], [[float("nan"), 0.2, 0.9], [0.9, 0.1]])
    assert ranking.best_matches.tolist() == [2, 3]
    assert ranking.doubtful.tolist() == [False, False]


def one_of_each_mode() -> list[Image.Image]:
    """The same drawing in RGB, with a palette, and half transparent."""
    rng = np.random.default_rng(7)
    shown = draw(sample_scene(rng), 150).convert("RGB")
    seen_through = shown.convert("RGBA")
    seen_through.putalpha(Image.linear_gradient("L").resize(shown.size))
    return [shown, shown.quantize(12), seen_through]


@pytest.mark.parametrize("compat", [None, "released"])
def test_released_images_are_in_rgb_before_any_member_sees_them(
    compat: str | None, matcher: str, tmp_path: Path
) -> None:
    images = one_of_each_mode()
    own = opened(matcher, ["pacs-tiny", "alpha-clip-tiny"], compat=compat)
    pools = [[DOG, CAT]] * 3
    values = np.array(own.encode_all(own.check(pools, images))["values"].to_pylist())
    rgb = [image.convert("RGB") for image in images]
    plain = opened(matcher, ["pacs-tiny", "alpha-clip-tiny"])
    converted = np.array(plain.encode_all(plain.check(pools, rgb))["values"].to_pylist())
    distance = np.abs(values - converted).reshape(3, 2, 2).max(axis=1)  # (images, members)
    assert distance[:, 1].max() < 1e-6  # Alpha-CLIP's own preprocessing converts first
    assert distance[0, 0] < 1e-6
    if compat == "released":
        assert distance[1:, 0].max() < 1e-6
    else:
        assert distance[1:, 0].min() > 1e-3


def test_rows_of_rgb_images_serve_both_rules_and_others_are_made_anew(
    matcher: str, tmp_path: Path, runs: Runs
) -> None:
    images, pools = one_of_each_mode(), [[DOG, CAT]] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cached = {"cache": FeatureCache(), "rows": tmp_path}
        opened(matcher, **cached).score(pools, images)
        runs.images.clear()
        released = opened(matcher, compat="released", **cached)
        rows = released.encode_all(released.check(pools, images))
        assert runs.images == {"clip": 2 + CANARY, "blip2": 2 + CANARY}
        fresh = opened(matcher, compat="released")
        expected = fresh.encode_all(fresh.check(pools, images))
    found, values = (np.array(table["values"].to_pylist()) for table in (rows, expected))
    np.testing.assert_allclose(found, values, rtol=0, atol=1e-6)


def test_a_released_image_that_is_broken_costs_its_own_pool(
    matcher: str, scenes: Any, tmp_path: Path
) -> None:
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = opened(matcher, compat="released", on_error="nan").score(
            [scenes[0][1], scenes[0][3]], [tmp_path / "cut.png", scenes[1][3]]
        )
    assert list(result.errors) == [0] and "images[0]" in result.errors[0] and "cut.png" in result.errors[0]


def test_a_caption_that_one_member_alone_cuts_is_counted(matcher: str, scenes: Any) -> None:
    """CLIP reads 77 ids, this BLIP-2 fewer: what any member does not read to its end was cut."""
    metric = opened(matcher)
    limits = {
        member.name: member.open("cpu", "float32").tokenizer.context_length for member in metric.members
    }
    narrow = min(limits.values())
    caption = " ".join(["a dog"] * (narrow // 2 + 4))
    samples = metric.check([[caption, DOG]], scenes[1][:1])
    run = {"cache": FeatureCache(), "batch_size": None}
    tables = {
        member.name: pa.concat_tables(member.rows(member.open("cpu", "float32"), pools_of(samples), run))
        for member in metric.members
    }
    cut = {name: table["truncated"].to_pylist() for name, table in tables.items()}
    assert sorted(count[0] > 0 for count in cut.values()) == [False, True] and limits["blip2-itc"] == narrow
    for order in (list(tables), list(tables)[::-1]):  # whichever member comes first
        rows = joined_rows(pools_of(samples), {name: tables[name] for name in order}, metric.ensemble)
        assert rows["truncated"].to_pylist() == cut["blip2-itc"]
    with pytest.warns(UserWarning, match="cannot tell"):
        assert metric.score([[caption]], scenes[1][:1]).counts.truncated == 1


def test_options_move_the_total_as_they_say() -> None:
    captions = [
        "a dog runs on the sand",
        "a dog runs on the wide sand",
        "two cats sleep in the sun",
        "two cats sleep in the warm sand",
        "a dog sleeps in the sun",
    ]
    candidates = Candidates(
        pool=np.repeat([0, 5], 5),
        captions=[*captions, *captions[:4], captions[3]],
        cosines=np.array([[0.1], [0.2], [0.0], [0.1], [0.1]] * 2),
        itm=np.array([0.9, 0.8, 0.7, 0.3, 0.2] * 2),
        failed=np.zeros(10, bool),
    )
    usual = rank(candidates, ["a"], EcoOptions())
    assert usual.chosen == [1, 1]  # of the better half the best; duplicates in another pool are kept
    near = rank(candidates, ["a"], EcoOptions(threshold=100.0))
    assert near.chosen == [0, 0]
    for documents in ("doc_caption_all_pools", "doc_image_all_pools", "doc_leave_one_out_all_pools"):
        other = rank(candidates, ["a"], EcoOptions(consensus_documents=documents))
        assert other.consensus[0] != usual.consensus[0]
    ensemble_only = rank(candidates, ["a"], EcoOptions(consensus_weight=0.0))
    assert np.allclose(ensemble_only.total[[0, 1]], 3.52 * ensemble_only.ensemble[[0, 1]])


def test_a_candidate_without_a_finite_value_is_left_out_alone() -> None:
    captions = ["a dog runs on the sand", "a dog runs on the wide sand", "a dog sleeps in the sun"]
    candidates = Candidates(
        pool=np.repeat([0, 3], 3),
        captions=captions * 2,
        cosines=np.array([[0.3], [np.nan], [0.1], [np.nan], [np.nan], [np.nan]]),
        itm=np.array([0.7, 0.9, 0.8, 0.5, 0.5, 0.5]),
        failed=np.zeros(6, bool),
    )
    ranking = rank(candidates, ["a"], EcoOptions())
    lost = "a member has no finite value for it"
    assert ranking.dropped == ["ITM 0.700, rank 2 of 2: not in the better half", lost, None, *[lost] * 3]
    assert ranking.chosen == [2, -1] and ranking.gave_way == ["", ""]
    assert math.isfinite(ranking.scores[0]) and math.isnan(ranking.scores[1])
