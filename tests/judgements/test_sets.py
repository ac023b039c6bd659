"""`capeval judge` on every kind of set: its protocol, what is left out, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, spearmanr

import capeval_core
from capeval_core.cli import main
from tests.hub import Repository, ask_here, serving
from tests.judgements.conftest import Judge
from tests.judgements.data import REFERENCES, write_expert, write_foil, write_json, write_lines, write_pascal
from tools.scenes import Scene, SceneObject, draw


def taus(scores: Sequence[float], ratings: Sequence[float]) -> dict[str, float]:
    return {f"tau_{kind}": 100 * kendalltau(scores, ratings, variant=kind).statistic for kind in "bc"}


def rouge(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    scores: list[float] = capeval_core.load("rougel").score(list(captions), references=references).scores
    return scores


def test_expert_keeps_every_rating_and_leaves_out_candidates_that_are_references(
    judge: Judge, tmp_path: Path
) -> None:
    folder = write_expert(tmp_path / "set")
    scores = [0.9, 0.1, 0.4, 0.3]  # a red round circle, two stars, a green circle, some blue stars here
    found = judge("flickr8k_expert", folder, {"M": scores})
    by_rating = [0.9] * 3 + [0.1] * 3 + [0.4] * 2 + [0.3]
    ratings = [4, 3, 4, 1, 1, 2, 1, 2, 3]
    assert found.values() == pytest.approx(taus(by_rating, ratings), abs=1e-5) and found.rows() == [9, 9]
    assert found.left_out == [
        "3 ratings of a candidate that is a reference of its image",
        "1 rating missing",
        "2 ratings not a number",
    ]
    assert "9 ratings of 2 images" in found.text


def test_cf_has_shares_of_votes(judge: Judge, tmp_path: Path) -> None:
    write_json(tmp_path / "captions.json", {"a.png#0": "a red circle", "b.png#1": "blue stars"})
    write_json(tmp_path / "references.json", REFERENCES)
    rows = ["a.png,a.png#0,3,0", "a.png,b.png#1,1,2", "b.png,b.png#1,0,0", "b.png,a.png#0,2,3"]
    (tmp_path / "judgements.csv").write_text("image,caption_id,n_yes,n_no\n" + "\n".join(rows) + "\n")
    found = judge("flickr8k_cf", tmp_path, None, "--metrics", "rougel")
    captions = ["a red circle", "blue stars", "a red circle"]
    scores = rouge(captions, [REFERENCES[image] for image in ("a.png", "a.png", "b.png")])
    assert found.values("ROUGE-L") == pytest.approx(taus(scores, [1.0, 1 / 3, 0.4]), abs=1e-5)


def test_composite_takes_the_human_candidate_out_for_all_three(judge: Judge, tmp_path: Path) -> None:
    captions = ["a red circle", "two stars", "a circle red", "stars"]
    rows = [
        {"subset": "8k", "image": "a.png", "slot": slot, "candidate": text, "rating": rating}
        for slot, (text, rating) in enumerate(zip(captions[:3], [5, 1, None], strict=True))
    ] + [{"subset": "coco", "image": "b.png", "slot": 0, "candidate": captions[3], "rating": 3}]
    write_lines(tmp_path / "judgements.jsonl", rows)
    references = {
        "8k/a.png": {"references": REFERENCES["a.png"], "human_candidate_index": 0},
        "coco/b.png": {"references": REFERENCES["b.png"], "human_candidate_index": None},
    }
    write_json(tmp_path / "references.json", references)
    found = judge("composite", tmp_path, None, "--metrics", "rougel", "--statistics", "pearson")
    scores = rouge(captions, [REFERENCES["a.png"][1:]] * 3 + [REFERENCES["b.png"]])
    expected = 100 * pearsonr([scores[0], scores[1], scores[3]], [5, 1, 3]).statistic
    assert found.values("ROUGE-L")["pearson"] == pytest.approx(expected, abs=1e-5)
    assert found.left_out == ["1 rating missing"]
    for index in (9, -1):
        references["8k/a.png"]["human_candidate_index"] = index
        write_json(tmp_path / "references.json", references)
        assert main(["judge", "composite", "--data", str(tmp_path), "--metrics", "rougel"]) == 2


def test_pascal_has_draws_labels_and_categories(judge: Judge, tmp_path: Path) -> None:
    folder = write_pascal(tmp_path / "set")
    found = judge("pascal50s", folder, {"M": [2.0, 1, 1, 1, 0, 3]})
    assert found.values() == pytest.approx({"HC": 100, "HI": 0, "MM": 100, "mean": 200 / 3}, abs=1e-5)
    assert found.left_out == ["1 pair without label"]
    fleur = judge("pascal50s", folder, {"M": [2.0, 1, 1, 2, 0, 3, 3, 1]}, "--labels", "label_fleur_run")
    assert fleur.values() == pytest.approx({"HC": 0, "HI": 0, "MM": 100, "mean": 100 / 3}, abs=1e-5)
    rouged = judge("pascal50s", folder, None, "--metrics", "rougel")
    captions = ["a red circle here", "a circle", "a red circle", "two blue stars", "a circle", "blue stars"]
    won = []
    for chosen in ([0, 1], [2]):  # the two draws
        references = [[REFERENCES[image][k] for k in chosen] for image in ("a.png", "a.png", "b.png")]
        sides = np.reshape(rouge(captions, [own for own in references for _ in range(2)]), (3, 2))
        won.append(np.array([1, 1, -1]) * (sides[:, 0] - sides[:, 1]) > 0)  # b is preferred of the last
    means = 100 * np.mean(won, axis=0)
    assert list(rouged.values("ROUGE-L").values())[:3] == pytest.approx(means.tolist(), abs=1e-5)
    deviations = 100 * np.std(won, axis=0, ddof=1)
    found_deviations = [float(rouged.cells["ROUGE-L", name]["deviation"]) for name in ("HC", "HI", "MM")]
    assert found_deviations == pytest.approx(deviations.tolist(), abs=1e-5)


@pytest.mark.parametrize("index", [3, -1])
def test_the_pair_of_a_wrong_draw_is_named(
    index: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pascal(tmp_path / "set")
    write_json(folder / "draws.json", [[[0], [0], [0, index], [0]]])
    assert main(["judge", "pascal50s", "--data", str(folder), "--metrics", "rougel"]) == 2
    assert f"pair 2 has [0, {index}], of 3 references" in capsys.readouterr().err


def test_draws_are_made_where_none_are_recorded(judge: Judge, tmp_path: Path) -> None:
    (write_pascal(tmp_path / "set") / "draws.json").unlink()
    first, again = (judge("pascal50s", tmp_path / "set", None, "--metrics", "rougel") for _ in range(2))
    assert first.values("ROUGE-L") == again.values("ROUGE-L")
    assert first.text == again.text and "refs:3|" in first.cells["ROUGE-L", "HC"]["signature"]


def test_abstract_decides_tied_votes_by_the_labels_of_a_draw(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = {"image": "a.png", "caption_b": "x", "caption_c": "y", "references": ["1", "2"]}
    write_lines(tmp_path / "pairs.jsonl", [{**pair, "votes": own} for own in ([1, 1], [-1, -1], [1, -1])])
    indices = [[0], [1], [0]]
    draws = [{"reference_indices": indices, "labels": ["b", "c", label]} for label in "bc"]
    write_json(tmp_path / "draws.json", draws)
    scores = {"M": [2.0, 1, 1, 2, 2, 1]}
    assert judge("abstract50s", tmp_path, scores).values() == {"accuracy": pytest.approx(250 / 3, abs=1e-5)}
    for labels in (["b", "c"], ["b", "c", "a"]):
        write_json(tmp_path / "draws.json", [draws[0], {**draws[1], "labels": labels}])
        assert main(["judge", "abstract50s", "--data", str(tmp_path), "--metrics", "rougel"]) == 2
        refusal = capsys.readouterr().err
        assert "draws.json" in refusal and f"{len(labels)} labels" in refusal and "3 pairs" in refusal
    # Without draws, a coin decides: of many tied pairs, in each of the five draws by itself.
    (tmp_path / "draws.json").unlink()
    tied = [{**pair, "votes": [1, -1]} for _ in range(40)]
    write_lines(
        tmp_path / "pairs.jsonl", [*tied, *({**pair, "votes": votes} for votes in ([1, 1, -1], [-1]))]
    )
    of_b = judge("abstract50s", tmp_path, {"M": [2.0, 1] * 40 + [2.0, 1, 1, 2]}).values()["accuracy"]
    of_c = judge("abstract50s", tmp_path, {"M": [1.0, 2] * 40 + [2.0, 1, 1, 2]}).values()["accuracy"]
    assert of_b + of_c == pytest.approx(100 * (40 + 2 * 2) / 42, abs=1e-4) and 30 < of_b < 70


def test_foil_takes_the_first_references_and_needs_a_strictly_higher_score(
    judge: Judge, tmp_path: Path
) -> None:
    folder = write_foil(tmp_path / "set")
    scores = {"M__refs1": [2.0, 1, 1, 1, 1, math.nan], "M__refs4": [[2.0, 1], [2, 1], [1, 3]]}
    found = judge("foil", folder, scores)
    assert found.values() == {"1 reference": 50.0, "4 references": pytest.approx(200 / 3, abs=1e-5)}
    assert found.rows() == [2, 3]
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    expected = {}
    for name, count in (("1 reference", 1), ("4 references", 4)):
        references = [row["references"][:count] for row in rows]
        true, foil = (
            rouge([row[f"{kind}_caption"] for row in rows], references) for kind in ("true", "foil")
        )
        expected[name] = 100 * np.mean(np.array(true) > foil)
    assert judge("foil", folder, None, "--metrics", "rougel").values("ROUGE-L") == pytest.approx(
        expected, abs=1e-5
    )


def test_paragraphs_of_videos_are_compared_by_the_mean_of_their_sentences(
    judge: Judge, tmp_path: Path
) -> None:
    row = {"true_caption": "x", "foil_caption": "y", "references": ["r"]}
    places = [("v1", "1"), ("v1", "1"), ("v1", "2"), ("v2", "1")]
    write_lines(tmp_path / "pairs.jsonl", [{"video": v, "paragraph": p, **row} for v, p in places])
    # paragraph v1/1: 0.5 and 0.9 against 0.6 and 0.7; v1/2: tied; v2/1: lost
    found = judge("activitynet_foil", tmp_path, {"M": [0.5, 0.6, 0.9, 0.7, 0.4, 0.4, 0.1, 0.2]})
    assert list(found.values().values()) == [pytest.approx(100 / 3, abs=1e-5)] and found.rows() == [3]


def test_a_paragraph_does_not_compete_without_the_score_of_one_of_its_sentences(
    judge: Judge, tmp_path: Path
) -> None:
    row = {"true_caption": "x", "foil_caption": "y", "references": ["r"]}
    places = [("v1", "1"), ("v1", "1"), ("v2", "1")]
    write_lines(tmp_path / "pairs.jsonl", [{"video": v, "paragraph": p, **row} for v, p in places])
    found = judge("activitynet_foil", tmp_path, {"M": [0.5, 0.6, math.nan, 0.7, 0.3, 0.2]})
    assert list(found.values().values()) == [100] and found.rows() == [1]


def test_vatex_averages_annotators_and_compares_metrics_for_videos(
    judge: Judge, tmp_path: Path, videos: Path
) -> None:
    names = sorted(path.name for path in videos.iterdir())
    ratings: list[list[int | None]] = [[5, 4, 5], [1, 2, 1], [3, 3, None], [2, 3], [4, 3, 3]]
    texts = ["a red circle", "two blue stars", "a green heart", "a cross", "some pink stars"]
    rows = [
        {"video": video, "candidate": text, "ratings": own}
        for video, text, own in zip(names, texts, ratings, strict=True)
    ]
    write_lines(tmp_path / "judgements.jsonl", rows)
    references = {video: [f"{text} {j}" for j in range(12)] for video, text in zip(names, texts, strict=True)}
    write_json(tmp_path / "references.json", references)
    flags = ["--metrics", "pacs,refpacs", "--weights", "tiny", "--videos", videos]
    found = judge("vatex_eval", tmp_path, {"M": [0.9, 0.1, 0.2, 0.3, 0.5]}, *flags)
    assert found.left_out == ["1 rating missing", "1 caption that not all annotators rated"]
    values, kept = found.values(), [0, 1, 4]
    for count in (1, 9):
        metric = capeval_core.load("refpacs", media="video", weights="tiny")
        given = [references[video][:count] for video in names]
        files = [videos / video for video in names]
        scores = metric.score(texts, videos=files, references=given).scores
        columns = list(zip(*(ratings[row] for row in kept), strict=True))
        reference = "1 reference" if count == 1 else "9 references"
        for label, own in (("RefPAC-S for videos", scores), ("M", [0.9, 0.1, 0.2, 0.3, 0.5])):
            rounded = [round(own[row], 4) for row in kept]
            each = [spearmanr(rounded, column).statistic for column in columns]
            value = found.values(label)[f"spearman {reference}"]
            assert value == pytest.approx(100 * np.mean(each), abs=0.01)
    assert math.isnan(found.values("RefPAC-S for videos")["tau_b no reference"])
    assert values["tau_b no reference"] == values["tau_b 1 reference"]


def test_thumb_is_of_precision_and_recall_without_and_with_people(judge: Judge, tmp_path: Path) -> None:
    rows = [
        {"SYS": system, "seg_id": "7", "hyp": "x", "image": "a.png", "P": p, "R": r, "human_score": p}
        for system, p, r in [("Human", 5, 1), ("M", 4, 2), ("M", 3, 4), ("M", 1, 3), ("M", 2, None)]
    ]
    write_lines(tmp_path / "captions.jsonl", rows)
    write_json(tmp_path / "references.json", {"7": ["r"]})
    found = judge("thumb", tmp_path, {"M": [5.0, 4, 3, 1, 9]})
    values = found.values()
    assert found.left_out == ["1 R missing"] and values["P"] == pytest.approx(100) and values["R"] < 0
    assert math.isnan(values["recall with R"])  # these scores have no recall
    assert [found.cells["M", name]["rows"] for name in ("P", "P without human captions")] == ["4", "3"]


def test_long_captions_have_a_rating_for_each_perspective(judge: Judge, tmp_path: Path) -> None:
    for perspective, ratings in {"desc": [1, 0.5, 0], "rel": [0, 0.5, 1], "flu": [0.5, None, 1]}.items():
        rows = [
            {"file_name": f"sa_{i}.jpg", "refs": ["r"], "cand": f"a caption {i}", "score": rating}
            for i, rating in enumerate(ratings)
        ]
        write_lines(tmp_path / f"test.{perspective}.jsonl", rows)
    found = judge("longcap_arena", tmp_path, {"M": [0.9, 0.5, 0.1] * 3})
    assert [found.values()[name] for name in ("descriptiveness tau_c", "relevance tau_b")] == [100, -100]
    assert found.cells["M", "fluency tau_b"]["rows"] == "2" and found.left_out == ["1 score missing"]


def test_hat_ranks_low_scores_first(judge: Judge, tmp_path: Path) -> None:
    rows = [
        {"image": f"{i}.png", "caption": "x", "contains_hallucination": mark, "references": ["r"]}
        for i, mark in enumerate([True, False, False, None])
    ]
    write_lines(tmp_path / "captions.jsonl", rows)
    scores = {
        "low": [0.1, 0.5, 0.9],
        "high": [0.9, 0.5, 0.1],
        "flat": [0.5] * 3,
        "none": [math.nan, 0.5, 0.4],
    }
    found = judge("hat", tmp_path, scores)
    values = {name: found.values(name)["AP"] for name in scores}
    assert (values["low"], values["high"]) == (100, pytest.approx(100 / 3, abs=1e-5))
    assert math.isnan(values["flat"]) and math.isnan(values["none"])
    assert found.left_out == ["1 caption without contains_hallucination"]


def test_systems_have_the_corpus_value_and_not_a_mean_of_rows(judge: Judge, tmp_path: Path) -> None:
    references = {"a.png": ["a red circle on the left of a star"], "b.png": ["two blue stars and a heart"]}
    write_json(tmp_path / "reference_captions.json", references)
    write_json(
        tmp_path / "one.json", {"a.png": "a red circle", "b.png": "two blue stars and a big heart", "z": "?"}
    )
    write_json(tmp_path / "two.json", {"b.png": "stars and a heart", "a.png": "x"})
    found = judge("coco_systems", tmp_path, None, "--metrics", "bleu")
    assert found.left_out == ["1 caption of images without references"]
    texts = ["a red circle", "two blue stars and a big heart"]
    result = capeval_core.load("bleu").score(texts, references=list(references.values()))
    for n in (1, 2, 3, 4):
        assert found.values(f"BLEU-{n}")["one"] == pytest.approx(100 * result.numbers[f"bleu_{n}"], abs=1e-5)
    labels = list(dict.fromkeys(label for label, _ in found.cells))
    assert labels == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]
    assert found.values("BLEU-4").keys() == {"one", "two"}
    assert result.numbers["bleu_4"] != pytest.approx(np.mean(result.scores))


def test_a_corpus_value_has_no_interval_of_means_of_rows(judge: Judge, tmp_path: Path) -> None:
    numbers = range(8)
    references = {f"{i}.png": [f"a red circle on the left of {i} stars"] for i in numbers}
    write_json(tmp_path / "reference_captions.json", references)
    captions = {
        f"{i}.png": f"a red circle {'on the left' if i % 2 else 'above'} of {i} stars" for i in numbers
    }
    write_json(tmp_path / "one.json", captions)
    found = judge("coco_systems", tmp_path, None, "--metrics", "bleu,rougel", draws=20)
    assert found.cells["BLEU-4", "one"]["low"] == ""
    assert found.cells["ROUGE-L", "one"]["low"] != ""


@pytest.mark.filterwarnings("ignore:eco")  # of pools so small
def test_pools_are_worth_what_is_chosen(judge: Judge, tmp_path: Path) -> None:
    circle = SceneObject("circle", "red", "large", (0.5, 0.5), 0.35)
    stars = [SceneObject("star", "blue", "large", (x, 0.5), 0.3) for x in (0.3, 0.7)]
    (tmp_path / "images").mkdir()
    for name, objects in (("a.png", [circle]), ("b.png", stars)):
        draw(Scene(tuple(objects), "white"), 96).save(tmp_path / "images" / name)
    pools = {
        "a.png": ["a red circle", "two blue stars on the left"],
        "b.png": ["a green heart", "stars", "x y"],
    }
    write_json(tmp_path / "set" / "pools.json", pools)
    write_json(tmp_path / "set" / "references.json", REFERENCES)
    flags = ["--metrics", "eco", "--weights", "tiny", "--images", tmp_path / "images"]
    found = judge(
        "nice_pools", tmp_path / "set", {"first": [1.0, 1, 0, 2, 2], "failed": [0.1] + [math.nan] * 4}, *flags
    )
    paths = [tmp_path / "images" / name for name in pools]
    choices = capeval_core.load("eco", weights="tiny").score(list(pools.values()), paths).parts["choice"]
    chosen = {"first": [0, 1], "ECO": choices}
    for label, picks in chosen.items():
        texts = [pool[int(pick)] for pool, pick in zip(pools.values(), picks, strict=True)]
        expected = 100 * np.mean(rouge(texts, [REFERENCES[name] for name in pools]))
        assert found.values(label)["ROUGE-L"] == pytest.approx(expected, abs=1e-5)
    alone = 100 * rouge(["a red circle"], [REFERENCES["a.png"]])[0]  # of the pool that has a choice
    assert found.values("failed")["ROUGE-L"] == pytest.approx(alone, abs=1e-5)


def test_a_set_of_ones_own_has_numbers_for_ids_and_may_lack_references(judge: Judge, tmp_path: Path) -> None:
    rows = [
        {"image": image, "candidate": "x", "rating": rating} for image, rating in ((42, 1), ("b", 2), (7, 4))
    ]
    write_lines(tmp_path / "judgements.jsonl", rows)
    assert judge("own", tmp_path, {"M": [1, 2, 3]}).values() == {"tau_b": 100, "tau_c": 100}
    # Several ratings of a caption are one, their mean, where pairs of an image are compared.
    ratings = [(0, [1, 5, 5]), (0, [3])]
    write_lines(
        tmp_path / "judgements.jsonl",
        [{"image": "a", "candidate": f"{i}", "ratings": own} for i, (_, own) in enumerate(ratings)],
    )
    assert judge("own", tmp_path, {"M": [0.9, 0.1]}, "--statistics", "acc_eq").values() == {"acc_eq": 100}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("judgements.jsonl", ""),
        ("judgements.jsonl", "[1]\n"),
        ("judgements.jsonl", '{"image": "a", "candidates": "x", "ratings": []}\n'),
        ("judgements.jsonl", '{"image": 3.5, "candidate": "x", "ratings": []}\n'),
        ("judgements.jsonl", "{\n"),
        ("references.json", '{"q": ["no image of the set"]}'),
        ("references.json", "[]"),
        ("references.json", '{"a.png": "x", "b.png": []}'),
        ("references.json", '"\udcff"'),
        ("scores.json", "[1, 2]"),
        ("scores.json", '{"m": [[1, 2], [3, 4]]}'),
        ("scores.json", '{"m": [1, "x", 2, 3]}'),
        ("scores.json", '{"m": [true, false, true, true]}'),
        ("scores.json", '{"scores": [1, 2, 3, 4], "captions": ["two stars", "x", "y", "z"]}'),
        ("scores.json", "{}"),
        ("scores.npz", "PK\x03\x04 no archive"),
        ("scores.txt", "1"),
        ("../absent/scores.npz", None),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    name: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_expert(tmp_path / "set")
    if content is not None:
        (folder / name).write_text(content, errors="surrogateescape")
    scores = folder / name if "scores" in name else folder / "scores.json"
    if "scores" not in name:
        scores.write_text("[1, 2, 3, 4]")
    arguments = ["judge", "flickr8k_expert", "--data", str(folder), "--scores", str(scores)]
    assert main(arguments) == 2 and name.rpartition("/")[2] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "named", "count"),
    [
        ("references.json", {**REFERENCES, "c.png": [], "d.png": "x"}, ["key 'c.png'", "key 'd.png'"], 2),
        ("references.json", {**REFERENCES, "c.png": ["x", 3]}, ["key 'c.png'"], 1),
        ("scores.json", {"n": [1, 2, 3, 4], "m": [1, "x", 2, True]}, ["m[1]", "m[3]"], 2),
        ("scores.json", {"m": [1, 2, 3], "n": [1, 2]}, ["m: 3 scores", "n: 2 scores", "4 captions"], 2),
        (
            "scores.json",
            {"scores": [1, 2, 3, 4], "captions": ["a red round circle", "two stars", "y", "z"]},
            ["caption 2", "'y'", "'a green circle'"],
            1,
        ),
        ("scores.json", {"scores": [1, 2, 3, 4], "captions": ["x"]}, ["captions and scores"], 1),
        ("scores.json", {"scores": [1, 2, 3, 4], "ids": ["x"]}, ["ids and scores"], 1),
    ],
)
def test_all_wrong_places_of_a_file_are_named_and_no_others(
    name: str,
    content: object,
    named: list[str],
    count: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_expert(tmp_path / "set")
    write_json(folder / "scores.json", [1, 2, 3, 4])
    write_json(folder / name, content)
    scores = str(folder / "scores.json")
    assert main(["judge", "flickr8k_expert", "--data", str(folder), "--scores", scores]) == 2
    refusal = capsys.readouterr().err
    assert all(place in refusal for place in named), refusal
    assert refusal.count(f"{name}: ") + refusal.count(f"{name} has") == count, refusal


def test_scores_are_read_by_name(judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_expert(tmp_path / "set")
    captions = ["a red  round circle", "two stars", "a green circle", "some blue stars here"]
    contents = [[1, 2, 3, 4], {"mine": [1, 2, 3, 4]}, {"metric": "mine", "scores": [1, 2, 3, 4]}]
    contents.append({"scores": [1, 2, 3, 4], "captions": captions})
    for content in contents:
        write_json(tmp_path / "mine.json", content)
        found = judge(
            "flickr8k_expert",
            folder,
            {"FLEUR": range(4), "rating": range(4)},
            "--scores",
            tmp_path / "mine.json",
        )
        assert {label for label, _ in found.cells} == {"FLEUR", "mine"}
        assert found.values("mine") == found.values("FLEUR")
    write_json(tmp_path / "mine.json", [1, None, 3, 4])
    assert judge("flickr8k_expert", folder, None, "--scores", tmp_path / "mine.json").rows("mine") == [6, 6]


def test_a_set_is_found_by_its_name_in_a_folder_of_sets(judge: Judge, tmp_path: Path) -> None:
    write_expert(tmp_path / "flickr8k_expert")
    folder = write_foil(tmp_path / "nocaps-FOIL")
    assert judge("flickr8k_expert", tmp_path, {"M": range(4)}).rows() == [9, 9]
    given = ["judge", "foil", "--metrics", "rougel", "--data"]
    assert main([*given, str(folder)]) == 2  # the folder of another set, whatever its files are called
    assert main([*given, str(folder.rename(tmp_path / "mine"))]) == 0
    assert main([*given, str(tmp_path / "absent")]) == 2


def test_a_set_comes_from_the_hub_by_its_id(tmp_path: Path) -> None:
    folder = write_expert(tmp_path / "set")
    (tmp_path / "home").mkdir()
    code = """
import json
from capeval_core.cli import main
names = ["org/judged", "org/judged@v1", "org/none"]
given = ["judge", "flickr8k_expert", "--metrics", "rougel", "--resamples", "0", "--data"]
print(json.dumps([main([*given, name]) for name in names]))
"""
    repositories = {"datasets/org/judged": Repository.of({"main": folder, "v1": folder})}
    with serving(repositories) as hub:
        assert ask_here(code, hub.address, tmp_path / "home") == [0, 0, 2]
