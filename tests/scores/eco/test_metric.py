"""ECO: rows of members that resume and are shared, and the ranking beside a plain way of computing it."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from capeval_core.inputs.samples import check_pools, check_samples
from capeval_core.integrations.rewards import reward
from capeval_core.integrations.trainer import CaptionMetrics
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.result import Result
from capeval_core.rows import canonical
from capeval_core.scores.eco.metric import EcoOptions
from tests.scores.eco.conftest import CANARY, Runs, opened
from tests.support.seams import LIMITS


def assert_same_rows(rows: pa.Table, expected: pa.Table) -> None:
    """Equal up to the rounding of cosines, which z-scores and weights multiply by twenty and more."""
    one, other = canonical(rows), canonical(expected)
    assert one.drop_columns(["values", "itm"]).equals(other.drop_columns(["values", "itm"]))
    for name in ("values", "itm"):
        ours, theirs = (np.array(rows[name].to_pylist(), dtype=np.float64) for rows in (one, other))
        assert ours == pytest.approx(theirs, abs=1e-6, nan_ok=True)


def plainly(rows: pa.Table, options: EcoOptions) -> list[tuple[int, float]]:
    """ECO of rows as the paper words it: the choice of each pool and its total."""
    released = options.compat == "released"
    assert not released and options.consensus_documents == "doc_caption_within_pool"
    table = rows.sort_by("index").to_pylist()
    pools: dict[int, list[dict[str, Any]]] = {}
    for row in table:
        pools.setdefault(row["index"] - row["candidate"], []).append(row)

    def z(values: list[float]) -> list[float]:
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        return [(v - mean) / deviation if deviation > 1e-12 else 0.0 for v in values]

    members = [z([row["values"][m] for row in table]) for m in range(len(table[0]["values"]))]
    for row, value in zip(table, z([sum(zscores) for zscores in zip(*members, strict=True)]), strict=True):
        row["ensemble"] = value
    kept = []
    for pool in pools.values():
        formed = [
            r
            for r in pool
            if len(r["caption"].split()) >= 5
            and r["caption"].count(",") <= 3
            and r["caption"].count(".") <= 2
        ] or pool
        best = sorted(formed, key=lambda r: -r["itm"])[: math.ceil(len(formed) / 2)]
        kept.append([r for r in pool if r in best])
    survivors = [row for pool in kept for row in pool]
    for pool in kept:
        for row, value in zip(pool, cider([ptb_tokens(r["caption"]) for r in pool]), strict=True):
            row["cider"] = value
    for row, value in zip(survivors, z([row["cider"] for row in survivors]), strict=True):
        row["total"] = options.ensemble_weight * row["ensemble"] + options.consensus_weight * value
    chosen = []
    for pool in kept:
        order = sorted(pool, key=lambda r: -r["total"])
        second = next((r for r in order if r["caption"] != order[0]["caption"]), order[0])
        near = order[0]["total"] - second["total"] < options.threshold
        short = len(second["caption"].split()) < len(order[0]["caption"].split())
        choice = second if near and short else order[0]
        chosen.append((choice["candidate"], choice["total"]))
    return chosen


def cider(pool: list[list[str]]) -> list[float]:
    """CIDEr of each caption against the others, each caption a document."""

    def grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
        return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    values = []
    for i, one in enumerate(pool):
        total = 0.0
        for n in range(1, 5):
            held = [grams(tokens, n) for tokens in pool]
            idf = {g: math.log(len(pool) / sum(g in h for h in held)) for h in held for g in h}
            weights = [{g: count * idf[g] for g, count in h.items()} for h in held]
            norms = [math.sqrt(sum(w * w for w in vector.values())) for vector in weights]
            for j in range(len(pool)):
                if i != j and norms[i] and norms[j]:
                    dot = sum(w * weights[j].get(g, 0.0) for g, w in weights[i].items())
                    total += dot / norms[i] / norms[j]
        values.append(10 * total / 4 / max(len(pool) - 1, 1) if one else 0.0)
    return values


def test_the_ranking_is_what_the_paper_says(matcher: str, seeded: str, scenes: Any) -> None:
    metric = opened(matcher, ["pacs-tiny", seeded, "blip2-itc"])
    rows = metric.encode_all(metric.check(*scenes))
    result = metric.combine(rows)
    assert rows.schema == metric.ROW and len(rows) == sum(map(len, scenes[0]))
    for options in ({}, {"threshold": 3.0}, {"ensemble_weight": 0.5, "threshold": 0.0}):
        other = opened(matcher, ["pacs-tiny", seeded, "blip2-itc"], **options)
        ranked = other.combine(rows)
        expected = plainly(rows, other.options)
        assert ranked.parts["choice"] == [choice for choice, _ in expected]
        assert ranked.scores == pytest.approx([total for _, total in expected], abs=1e-9)
    assert result.parts["caption"] == [
        pool[choice] for pool, choice in zip(scenes[0], result.parts["choice"], strict=True)
    ]
    assert "|weights:blip2@" in result.signature and "|seeded:Seeded@" in result.signature
    assert result.counts.captions == len(result.groups) == 5


def test_the_result_has_the_scores_of_every_candidate(matcher: str, scenes: Any) -> None:
    result = opened(matcher).score(*scenes)
    for pool, table, choice, total in zip(
        scenes[0], result.parts["candidates"], result.parts["choice"], result.scores, strict=True
    ):
        assert [candidate["caption"] for candidate in table] == pool
        assert list(table[0]) == [
            "caption", "members", "ensemble", "cider", "consensus", "itm", "total", "rank", "dropped",
        ]  # fmt: skip
        kept = [candidate for candidate in table if candidate["dropped"] is None]
        assert sorted(candidate["rank"] for candidate in kept) == list(range(1, len(kept) + 1))
        assert all(
            candidate["total"] is None and candidate["rank"] is None
            for candidate in table
            if candidate["dropped"]
        )
        assert table[choice]["dropped"] is None and table[choice]["total"] == total
        ordered = sorted(kept, key=lambda candidate: candidate["rank"])
        assert all(a["total"] >= b["total"] for a, b in itertools.pairwise(ordered))
        assert list(table[0]["members"]) == ["pacs-tiny", "blip2-itc"]
    assert result.parts["candidates"][2][4]["dropped"] == "3 words, expected 5 or more"
    assert "4 commas" in result.parts["candidates"][2][5]["dropped"]
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result


def test_kept_rows_spare_the_second_run_and_another_member_is_added(
    matcher: str, seeded: str, scenes: Any, tmp_path: Path, runs: Runs
) -> None:
    first = opened(matcher, ["pacs-tiny", "blip2-itc"]).score(*scenes, rows=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blip2-itc", "pacs-tiny", "stamp.json"]
    runs.images.clear()
    assert opened(matcher, ["pacs-tiny", "blip2-itc"]).score(*scenes, rows=tmp_path) == first
    assert not runs.images and not runs.opened[2:]
    larger = opened(matcher, ["pacs-tiny", seeded, "blip2-itc"])
    result = larger.score(*scenes, rows=tmp_path)
    assert runs.images == {"clip": 5 + CANARY}  # the new member's alone
    assert result == opened(matcher, ["pacs-tiny", seeded, "blip2-itc"]).score(*scenes)
    smaller = opened(matcher, ["blip2-itc"])
    assert smaller.score(*scenes, rows=tmp_path) == opened(matcher, ["blip2-itc"]).score(*scenes)


def test_a_killed_run_goes_on_inside_a_member(
    matcher: str, scenes: Any, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = opened(matcher)
    samples = whole.check(*scenes)
    expected = whole.encode_all(samples)
    monkeypatch.setattr(LIMITS, "texts_between_shards", 4)
    table = "capeval_core.scores.eco.members._member_rows"
    from capeval_core.scores.eco.members import _member_rows

    calls = 0

    def die(*given: Any, **columns: Any) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls == 12:  # in the middle of the second member
            raise KeyboardInterrupt
        return _member_rows(*given, **columns)

    monkeypatch.setattr(table, die)
    with pytest.raises(KeyboardInterrupt):
        opened(matcher).score(*scenes, rows=tmp_path)
    kept = {
        member: sum(len(pq.read_table(shard)) for shard in (tmp_path / member).glob("*.parquet"))
        for member in ("blip2-itc", "pacs-tiny")
    }
    n = sum(map(len, scenes[0]))
    assert kept["blip2-itc"] == n and 0 < kept["pacs-tiny"] < n
    monkeypatch.setattr(table, _member_rows)
    runs.images.clear()
    result = opened(matcher).encode_all(samples, rows=tmp_path)
    assert_same_rows(result, expected)
    assert whole.combine(result).parts["choice"] == whole.combine(expected).parts["choice"]
    assert runs.images["blip2"] == 0 and CANARY < runs.images["clip"] < 5 + CANARY


def test_rows_of_another_member_or_metric_are_refused(
    matcher: str, scenes: Any, tmp_path: Path, images: list[Path], weights: str
) -> None:
    import capeval_core

    opened(matcher).score(*scenes, rows=tmp_path)
    with pytest.raises(ValueError, match=r"other settings.*bfloat16"):
        opened(matcher, dtype="bfloat16").score(*scenes, rows=tmp_path)
    with pytest.raises(ValueError, match="metric: 'eco' there, 'pacs' now"):
        capeval_core.load("pacs", weights=weights).score(["a dog"], images[:1], rows=tmp_path)


def test_batches_and_processes_combine_to_the_same(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    samples = metric.check(*scenes)
    expected = metric.score(*scenes)
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    shares = [sorted(order[:9]), sorted(order[9:])]  # pools are cut, too
    tables = [metric.encode_all(samples.select(share)) for share in shares]
    gathered = pa.concat_tables(tables[::-1])
    assert_same_rows(gathered, metric.encode_all(samples))
    result = metric.combine(gathered)
    assert result.parts["choice"] == expected.parts["choice"] and result.signature == expected.signature


def test_it_pickles_without_tensors(matcher: str, scenes: Any) -> None:
    metric = opened(matcher, cache=None)
    pickled = pickle.dumps(metric)
    assert len(pickled) < 4096
    assert pickle.loads(pickled).score(*scenes) == metric.score(*scenes)


def test_a_broken_image_costs_its_own_pool(matcher: str, scenes: Any, tmp_path: Path) -> None:
    pools, images = scenes
    broken = [*images[:3], tmp_path / "missing.png", images[4]]
    with pytest.raises(ValueError, match=r"images\[3\].*missing.png"):
        opened(matcher).score(pools, broken)
    result = opened(matcher, on_error="nan").score(pools, broken)
    assert math.isnan(result.scores[3]) and list(result.errors) == [3]
    assert "images[3]" in result.errors[3] and result.counts.failed == 1
    assert result.parts["choice"][3] == -1 and result.parts["caption"][3] == ""
    assert {candidate["dropped"] for candidate in result.parts["candidates"][3]} == {
        "its image could not be read"
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no values are not equal values
        assert opened(matcher, on_error="nan").score(pools[3:4], broken[3:4]).parts["choice"] == [-1]
    metric = opened(matcher, on_error="nan")
    rows = metric.encode_all(metric.check(pools, broken)).sort_by("index")
    rows = rows.filter(pc.is_null(rows["error"]))
    without = metric.encode_all(metric.check(pools[:3] + pools[4:], images[:3] + images[4:]))
    index = pa.array(range(len(without)), pa.int64())
    assert_same_rows(rows.set_column(0, "index", index), without)
    expected = metric.combine(without)
    assert [choice for i, choice in enumerate(result.parts["choice"]) if i != 3] == expected.parts["choice"]
    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))).parts["choice"][3] == -1


def test_a_pool_of_one_and_equal_captions_have_no_variance(matcher: str, scenes: Any) -> None:
    pools, images = scenes
    with pytest.warns(UserWarning, match="pacs-tiny, blip2-itc, consensus cannot tell"):
        alone = opened(matcher).score([pools[1][:1]], images[1:2])
    assert alone.scores == [0.0] and alone.parts["choice"] == [0]
    with pytest.warns(UserWarning, match="all values are equal"):
        equal = opened(matcher).score([[pools[1][0]] * 4], images[1:2])
    assert equal.scores == [0.0] and equal.parts["choice"] == [0]
    assert [candidate["dropped"] is None for candidate in equal.parts["candidates"][0]] == [
        True,
        True,
        False,
        False,
    ]


def test_where_all_are_filtered_the_rule_gives_way_and_is_named(matcher: str, scenes: Any) -> None:
    terse = ["a dog", "a cat w1", "two w2 w3"]
    shown = [scenes[1][0], scenes[1][3]]
    with pytest.warns(UserWarning, match="consensus cannot tell"):  # two words in common are no agreement
        result = opened(matcher).score([terse, ["a red star on the left"]], shown)
    assert result.parts["gave_way"] == ["format", ""]
    dropped = [candidate["dropped"] for candidate in result.parts["candidates"][0]]
    assert dropped.count(None) == 2 and not any("words" in (reason or "") for reason in dropped)
    one = opened(matcher, compat="released").score([terse[:1], scenes[0][3]], shown)
    assert one.parts["choice"][0] == 0 and one.parts["gave_way"][0] == "format"


def test_the_released_rules(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    rows = metric.encode_all(metric.check(*scenes))
    released = opened(matcher, compat="released").combine(rows)
    assert "|compat:released|" in released.signature
    for pool in released.parts["candidates"]:
        kept = [candidate for candidate in pool if candidate["dropped"] is None]
        assert 1 <= len(kept) <= max(len(pool) // 2, 1)


def test_equal_rules_have_equal_signatures(matcher: str) -> None:
    usual = opened(matcher).signature()
    assert "|consensus:cider|consensus_documents:doc_caption_within_pool|" in usual
    assert opened(matcher, consensus="cider").signature() == usual
    released = opened(matcher, compat="released").signature()
    assert "|consensus:tfidf|v:" in released
    assert (
        opened(matcher, compat="released", consensus_documents="doc_image_all_pools").signature() == released
    )


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (["a dog", "a cat"], r"captions\[0\] is a single string: pass the list of its candidates"),
        ([["a dog"], []], r"captions\[1\] is empty: every image needs at least one candidate"),
        ([["a dog"], None], r"captions\[1\] is None"),
        ([["a dog"], ["a", ""]], r'captions\[1\]\[1\] is empty: .*leave it out or pass empty="score"'),
        ([["a dog"], ["a", 3]], r"captions\[1\]\[1\] is"),
        ([["a dog"]], r"len\(captions\)=1 but len\(images\)=2: give each image one pool"),
        ([], "captions is empty"),
        ("a dog", "captions is a single string"),
        ([{"a": 1}, ["b"]], r"captions\[0\] is .*expected a list of candidate captions"),
    ],
)
def test_wrong_pools_are_named_by_their_index(captions: Any, message: str, images: list[Path]) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        check_pools(captions, images[:2])


def test_all_problems_are_raised_at_once(images: list[Path]) -> None:
    with pytest.raises(ValueError) as caught:
        check_pools([["a", ""], "b"], [images[0], "no-such.png"])
    for name in ("captions[0][1]", "captions[1]", "images[1]"):
        assert name in str(caught.value)


def test_empty_candidates_are_dropped_on_request(matcher: str, scenes: Any) -> None:
    pools = [["", *scenes[0][1]], scenes[0][3]]
    with pytest.warns(UserWarning, match="consensus"):
        result = opened(matcher, empty="score").score(pools, [scenes[1][1], scenes[1][3]])
    assert result.parts["candidates"][0][0]["dropped"] == "0 words, expected 5 or more"


def test_intervals_comparisons_and_training_are_refused(matcher: str, scenes: Any) -> None:
    result = opened(matcher).score(*scenes)
    for ask in (result.interval, lambda: result.compare(result)):
        with pytest.raises(
            ValueError, match=r"\(\) is undefined for eco: its totals are z-scores within one set"
        ):
            ask()
    kept = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    with pytest.raises(
        ValueError, match=r"\(\) is undefined for eco: its totals are z-scores within one set"
    ):
        kept.interval()
    with pytest.raises(ValueError, match=r"eco .*training.*z-scores"):
        reward(opened(matcher))

    class Words:
        def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
            return []

    with pytest.raises(ValueError, match=r"eco .*training"):
        CaptionMetrics(Words(), images=scenes[1], metrics=[opened(matcher)])


def test_evidence_is_that_of_a_pool(matcher: str, scenes: Any, tmp_path: Path) -> None:
    pools, images = scenes
    paths = [tmp_path / f"{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.save(path)
    result = opened(matcher, evidence=True).score(pools, paths)
    for i, path in enumerate(paths):
        shown = result.explain(i)
        assert shown["candidates"] == result.parts["candidates"][i] and shown["image"] == str(path)


def test_samples_that_came_in_no_pools_are_refused(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    samples = check_samples(["a dog"], scenes[1][:1], needs_references=False)
    with pytest.raises(TypeError, match="expected pools of candidates"):
        metric.encode_all(samples)
    (rows,) = metric.encode(metric.check(*scenes))
    assert_same_rows(rows, metric.encode_all(metric.check(*scenes)))
