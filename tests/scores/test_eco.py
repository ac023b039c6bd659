"""ECO: rows of members that resume and are shared, and the ranking beside a plain way of computing it."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.dual import dual_class, whole_images
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.inputs.samples import check_pools
from capeval_core.integrations.rewards import reward
from capeval_core.integrations.trainer import CaptionMetrics
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.result import Result
from capeval_core.rows import canonical
from capeval_core.scores.eco.members import PRESETS, member_names
from capeval_core.scores.eco.metric import EcoOptions
from capeval_core.scores.eco.ranking import Candidates, rank
from capeval_core.weights.catalogue import ECO_MEMBERS
from capeval_core.weights.folder import WeightsError
from tests.encoders.test_eva_clip import release
from tests.encoders.test_open_clip import repository
from tests.scores.conftest import CANARY, Runs, opened
from tests.seeded import write_config


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    """Equal up to the rounding of cosines, which z-scores and weights multiply by twenty and more."""
    one, other = (canonical(rows) for rows in (found, expected))
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
    for row, value in zip(table, z([sum(each) for each in zip(*members, strict=True)]), strict=True):
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
            norms = [math.sqrt(sum(w * w for w in each.values())) for each in weights]
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
        found = other.combine(rows)
        expected = plainly(rows, other.options)
        assert found.parts["choice"] == [choice for choice, _ in expected]
        assert found.scores == pytest.approx([total for _, total in expected], abs=1e-9)
    assert result.parts["caption"] == [
        pool[choice] for pool, choice in zip(scenes[0], result.parts["choice"], strict=True)
    ]
    assert "|weights:blip2@" in result.signature and "|seeded:Seeded@" in result.signature
    assert result.counts.captions == len(result.groups) == 5


def test_all_is_told_of_every_candidate(matcher: str, scenes: Any) -> None:
    result = opened(matcher).score(*scenes)
    for pool, told, choice, total in zip(
        scenes[0], result.parts["candidates"], result.parts["choice"], result.scores, strict=True
    ):
        assert [each["caption"] for each in told] == pool
        assert list(told[0]) == [
            "caption", "members", "ensemble", "cider", "consensus", "itm", "total", "rank", "dropped",
        ]  # fmt: skip
        kept = [each for each in told if each["dropped"] is None]
        assert sorted(each["rank"] for each in kept) == list(range(1, len(kept) + 1))
        assert all(each["total"] is None and each["rank"] is None for each in told if each["dropped"])
        assert told[choice]["dropped"] is None and told[choice]["total"] == total
        ordered = sorted(kept, key=lambda each: each["rank"])
        assert all(a["total"] >= b["total"] for a, b in itertools.pairwise(ordered))
        assert list(told[0]["members"]) == ["pacs-tiny", "blip2-itc"]
    assert result.parts["candidates"][2][4]["dropped"] == "3 words, expected 5 or more"
    assert "4 commas" in result.parts["candidates"][2][5]["dropped"]
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result


def test_the_value_is_the_members_own_cosine(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    rows = metric.encode_all(metric.check(*scenes))
    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    blip2 = Blip2Encoder.from_pretrained(matcher, device="cpu")
    samples = metric.check(*scenes)
    said = clip.encode_texts([f"A photo depicts {caption}" for caption in samples.captions]).features
    seen = np.concatenate([part.features for part in clip.encode_images(samples.images)])
    cosines = (said * seen).sum(1) / np.linalg.norm(said, axis=1) / np.linalg.norm(seen, axis=1)
    values = np.array(rows["values"].to_pylist())
    assert np.allclose(values[:, 0], cosines, atol=1e-6)
    images = [samples.images[row] for row, c in enumerate(samples.candidates) if c == 0]
    matches = list(blip2.match(images, scenes[0], cache=FeatureCache(0)))
    assert np.allclose(values[:, 1], np.concatenate([each.itc for each in matches]), atol=1e-6)
    assert np.allclose(rows["itm"], np.concatenate([each.itm for each in matches]), atol=1e-6)


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


def test_kept_rows_spare_the_second_run_and_another_member_is_added(
    matcher: str, seeded: str, scenes: Any, tmp_path: Path, runs: Runs
) -> None:
    first = opened(matcher, ["pacs-tiny", "blip2-itc"]).score(*scenes, rows=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blip2-itc", "pacs-tiny", "stamp.json"]
    runs.images.clear()
    assert opened(matcher, ["pacs-tiny", "blip2-itc"]).score(*scenes, rows=tmp_path) == first
    assert not runs.images and not runs.opened[2:]
    larger = opened(matcher, ["pacs-tiny", seeded, "blip2-itc"])
    found = larger.score(*scenes, rows=tmp_path)
    assert runs.images == {"clip": 5 + CANARY}  # the new member's alone
    assert found == opened(matcher, ["pacs-tiny", seeded, "blip2-itc"]).score(*scenes)
    smaller = opened(matcher, ["blip2-itc"])
    assert smaller.score(*scenes, rows=tmp_path) == opened(matcher, ["blip2-itc"]).score(*scenes)


def test_a_killed_run_goes_on_inside_a_member(
    matcher: str, scenes: Any, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = opened(matcher)
    samples = whole.check(*scenes)
    expected = whole.encode_all(samples)
    monkeypatch.setattr("capeval_core.rows._TEXTS_BETWEEN_SHARDS", 4)
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
    found = opened(matcher).encode_all(samples, rows=tmp_path)
    assert_same_rows(found, expected)
    assert whole.combine(found).parts["choice"] == whole.combine(expected).parts["choice"]
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
    found = metric.combine(gathered)
    assert found.parts["choice"] == expected.parts["choice"] and found.signature == expected.signature


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
    assert {each["dropped"] for each in result.parts["candidates"][3]} == {"its image could not be read"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no values are not equal values
        assert opened(matcher, on_error="nan").score(pools[3:4], broken[3:4]).parts["choice"] == [-1]
    without = opened(matcher).score(pools[:3] + pools[4:], images[:3] + images[4:])
    assert [score for i, score in enumerate(result.scores) if i != 3] == pytest.approx(
        without.scores, abs=1e-6
    )
    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))).parts["choice"][3] == -1


def test_a_pool_of_one_and_equal_captions_have_no_variance(matcher: str, scenes: Any) -> None:
    pools, images = scenes
    with pytest.warns(UserWarning, match="pacs-tiny, blip2-itc, consensus cannot tell"):
        alone = opened(matcher).score([pools[1][:1]], images[1:2])
    assert alone.scores == [0.0] and alone.parts["choice"] == [0]
    with pytest.warns(UserWarning, match="all values are equal"):
        equal = opened(matcher).score([[pools[1][0]] * 4], images[1:2])
    assert equal.scores == [0.0] and equal.parts["choice"] == [0]
    assert [each["dropped"] is None for each in equal.parts["candidates"][0]] == [True, True, False, False]


def test_where_all_are_filtered_the_rule_gives_way_and_is_named(matcher: str, scenes: Any) -> None:
    terse = ["a dog", "a cat w1", "two w2 w3"]
    shown = [scenes[1][0], scenes[1][3]]
    with pytest.warns(UserWarning, match="consensus cannot tell"):  # two words in common are no agreement
        result = opened(matcher).score([terse, ["a red star on the left"]], shown)
    assert result.parts["gave_way"] == ["format", ""]
    dropped = [each["dropped"] for each in result.parts["candidates"][0]]
    assert dropped.count(None) == 2 and not any("words" in (reason or "") for reason in dropped)
    one = opened(matcher, compat="released").score([terse[:1], scenes[0][3]], shown)
    assert one.parts["choice"][0] == 0 and one.parts["gave_way"][0] == "format"


def test_the_released_rules(matcher: str, scenes: Any) -> None:
    metric = opened(matcher)
    rows = metric.encode_all(metric.check(*scenes))
    released = opened(matcher, compat="released").combine(rows)
    assert "|compat:released|" in released.signature
    for pool in released.parts["candidates"]:
        kept = [each for each in pool if each["dropped"] is None]
        assert 1 <= len(kept) <= max(len(pool) // 2, 1)


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
    found = rank(candidates, ["a"], EcoOptions())
    lost = "a member has no finite value for it"
    assert found.dropped == ["match 0.700, rank 2 of 2: not in the better half", lost, None, *[lost] * 3]
    assert found.chosen == [2, -1] and found.gave_way == ["", ""]
    assert math.isfinite(found.scores[0]) and math.isnan(found.scores[1])


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
    ("captions", "said"),
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
def test_wrong_pools_are_told_by_their_place(captions: Any, said: str, images: list[Path]) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        check_pools(captions, images[:2])


def test_all_problems_are_told_at_once(images: list[Path]) -> None:
    with pytest.raises(ValueError) as caught:
        check_pools([["a", ""], "b"], [images[0], "no-such.png"])
    for told in ("captions[0][1]", "captions[1]", "images[1]"):
        assert told in str(caught.value)


def test_empty_candidates_are_dropped_on_request(matcher: str, scenes: Any) -> None:
    pools = [["", *scenes[0][1]], scenes[0][3]]
    with pytest.warns(UserWarning, match="consensus"):
        result = opened(matcher, empty="score").score(pools, [scenes[1][1], scenes[1][3]])
    assert result.parts["candidates"][0][0]["dropped"] == "0 words, expected 5 or more"


def test_members_have_names_and_presets() -> None:
    assert member_names(None, tiny=False) == list(PRESETS["paper"])
    assert member_names(None, tiny=True) == list(PRESETS["tiny"])
    for preset in ("paper", "small"):
        assert [name for name in PRESETS[preset] if name not in ECO_MEMBERS] == ["blip2-itc"]
        assert len(PRESETS[preset]) == 5


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["pacs-tiny", "nope"], "members: 'nope' could not be opened.*neither known"),
        (["pacs-tin"], "nor a folder: did you mean 'pacs-tiny'"),
        (["./no-folder"], "members: './no-folder' could not be opened"),
        (["pacs-tiny", "pacs-tiny"], "'pacs-tiny' comes twice"),
        ([], "names none"),
        ("pacs-tiny,,", "names none"),
    ],
)
def test_wrong_members_are_named(matcher: str, members: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        opened(matcher, members)


def test_another_blip2_is_a_member_by_its_contrast(matcher: str, scenes: Any, tmp_path: Path) -> None:
    (tmp_path / "Second").symlink_to(matcher)
    metric = opened("tiny", [str(tmp_path / "Second"), "blip2-itc"])
    rows = metric.encode_all(metric.check(*scenes))
    alone, filtering = (
        each.encode_all(each.check(*scenes))
        for each in (opened(matcher, "blip2-itc"), opened("tiny", "blip2-itc"))
    )
    values = np.array(rows["values"].to_pylist())
    assert np.allclose(values[:, 0], np.array(alone["values"].to_pylist())[:, 0], atol=1e-6)
    assert np.allclose(values[:, 1], np.array(filtering["values"].to_pylist())[:, 0], atol=1e-6)
    assert np.allclose(rows["itm"], filtering["itm"], atol=1e-6)  # `weights` filter, whoever else matches


def test_a_member_of_another_kind_is_named(matcher: str, seeded: str, tmp_path: Path) -> None:
    config = json.loads((Path(seeded) / "config.json").read_text())
    write_config(tmp_path, {**config, "encoder": "sam"})
    (tmp_path / "model.safetensors").symlink_to(Path(seeded) / "model.safetensors")
    with pytest.raises(
        WeightsError, match=r"members: '.*' could not be opened.*'sam', expected one of 'clip'"
    ):
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


def test_nothing_is_said_beyond_the_set(matcher: str, scenes: Any) -> None:
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
    with pytest.raises(ValueError, match=r"no measure of training.*z-scores"):
        reward(opened(matcher))

    class Words:
        def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
            return []

    with pytest.raises(ValueError, match="no measure of training"):
        CaptionMetrics(Words(), images=scenes[1], metrics=[opened(matcher)])


def test_evidence_tells_all_of_a_pool(matcher: str, scenes: Any) -> None:
    result = opened(matcher, evidence=True).score(*scenes)
    shown = result.explain(2)
    assert shown["candidates"] == result.parts["candidates"][2] and "image" in shown


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
        found = release()
        EvaClipEncoder(found.config, found.tensors, device="cpu").save_pretrained(folder)
    elif kind == "open_clip":
        repository(folder)
    else:
        AlphaClipEncoder.from_pretrained("tiny", device="cpu").save_pretrained(folder)
    metric = opened(matcher, [str(folder), "blip2-itc"])
    assert f"|member:member@{metric.members[1].model.fingerprint[:8]}|" in metric.signature()
    samples = metric.check(*scenes)
    values = np.array(metric.encode_all(samples)["values"].to_pylist())[:, 0]
    encoder = dual_class(metric.members[1].folder).open(metric.members[1].folder, device="cpu")
    said = encoder.encode_texts(samples.captions).features
    seen = np.concatenate([part.features for part in whole_images(encoder, samples.images)])
    assert encoder.kind == kind
    cosines = (said * seen).sum(1) / np.linalg.norm(said, axis=1) / np.linalg.norm(seen, axis=1)
    assert np.allclose(values, cosines, atol=1e-5)
