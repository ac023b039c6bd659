"""Loaders: the protocol of each set, what is left out and counted, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from capeval_core.errors import FileError
from capeval_core.judgements.judged_set import Scored
from capeval_core.judgements.others import MarkedSet, PoolSet, SystemSet
from capeval_core.judgements.pairs import PairedSet
from capeval_core.judgements.published import PUBLISHED
from capeval_core.judgements.ratings import RatedSet
from capeval_core.judgements.sets import SETS, load_set, set_entry
from tests.hub import Repository, ask, serving
from tests.judgements.data import REFERENCES, write_expert, write_foil, write_json, write_lines, write_pascal


def rated(name: str, folder: Path) -> RatedSet:
    judged = load_set(name, folder)
    assert isinstance(judged, RatedSet)
    return judged


def test_expert_keeps_every_rating_and_leaves_out_candidates_that_are_references(tmp_path: Path) -> None:
    judged = rated("flickr8k_expert", write_expert(tmp_path))
    assert judged.items.captions == [
        "a red round circle", "two stars", "a green circle", "some blue stars here"
    ]  # fmt: skip
    assert judged.item.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert judged.ratings["rating"].tolist() == [4, 3, 4, 1, 1, 2, 1, 2, 3]
    assert judged.dropped == {
        "ratings of a candidate that is a reference of its image": 3,
        "rating missing": 1,
        "rating not a number": 2,
    }
    assert judged.clusters == ["a.png"] * 6 + ["b.png"] * 3


def test_cf_has_the_references_that_its_file_has(tmp_path: Path) -> None:
    captions = {"a.png#0": "a red circle", "b.png#1": "blue stars"}
    write_json(tmp_path / "captions.json", captions)
    write_json(tmp_path / "references.json", REFERENCES)
    rows = ["a.png,a.png#0,3,0", "a.png,b.png#1,1,2", "b.png,b.png#1,0,0", "b.png,a.png#0,,3"]
    header = "image,caption_id,n_yes,n_no\n"
    (tmp_path / "judgements.csv").write_text(header + "\n".join(rows) + "\n")
    judged = rated("flickr8k_cf", tmp_path)
    assert judged.items.references == [REFERENCES["a.png"]] * 2 + [REFERENCES["b.png"]] * 2
    assert judged.ratings["rating"].tolist() == [1.0, pytest.approx(1 / 3)]
    write_json(tmp_path / "captions.json", {"a.png#0": "x"})
    with pytest.raises(FileError, match=r"captions\.json has no caption of 'b\.png#1'"):
        load_set("flickr8k_cf", tmp_path)


def test_composite_takes_the_human_candidate_out_for_all_three(tmp_path: Path) -> None:
    rows = [
        {"subset": "8k", "image": "a.png", "slot": slot, "candidate": text, "rating": rating}
        for slot, (text, rating) in enumerate([("a red circle", 5), ("two stars", 1), ("a circle", None)])
    ] + [{"subset": "coco", "image": "b.png", "slot": 0, "candidate": "stars", "rating": 3}]
    write_lines(tmp_path / "judgements.jsonl", rows)
    references = {
        "8k/a.png": {"references": REFERENCES["a.png"], "human_candidate_index": 0},
        "coco/b.png": {"references": REFERENCES["b.png"], "human_candidate_index": None},
    }
    write_json(tmp_path / "references.json", references)
    judged = rated("composite", tmp_path)
    assert judged.items.references == [REFERENCES["a.png"][1:]] * 3 + [REFERENCES["b.png"]]
    assert judged.items.images == ["8k/a.png"] * 3 + ["coco/b.png"]
    assert (judged.item.tolist(), judged.dropped) == ([0, 1, 3], {"rating missing": 1})
    references["8k/a.png"]["human_candidate_index"] = 7
    write_json(tmp_path / "references.json", references)
    with pytest.raises(FileError, match=r"key '8k/a\.png' has no references"):
        load_set("composite", tmp_path)


def test_pascal_has_draws_labels_and_categories(tmp_path: Path) -> None:
    judged = load_set("pascal50s", write_pascal(tmp_path))
    assert isinstance(judged, PairedSet)
    assert judged.columns == ("HC", "HI", "MM", "mean")
    assert judged.dropped == {"pairs without label": 1}
    assert judged.preferred == ([0, 0, 1], [0, 0, 1])
    assert judged.scorings[1].references() == [[REFERENCES[i][2]] for i in judged.scorings[1].items.images]
    own = load_set("pascal50s", tmp_path, labels="label_fleur_run", draws="fixed")
    assert isinstance(own, PairedSet) and own.preferred == ([1, 0, 1, 0],)
    runs = [Scored(np.array([2.0, 1, 1, 1, 0, 3])), Scored(np.array([1.0, 2, 2, 1, 0, 3]))]
    cells = judged.cells(runs, None)
    assert cells["HC"].runs == (1.0, 0.0) and cells["HI"].runs == (0.0, 1.0)
    assert [cells[name].value for name in judged.columns] == pytest.approx([0.5, 0.5, 1.0, 2 / 3])
    assert cells["HC"].deviation == pytest.approx(math.sqrt(0.5))


def test_draws_are_made_where_none_are_recorded(tmp_path: Path) -> None:
    (write_pascal(tmp_path) / "draws.json").unlink()
    judged = load_set("pascal50s", tmp_path)
    assert len(judged.scorings) == 5
    for scoring in judged.scorings:
        chosen = scoring.chosen or []
        assert all(len(set(own)) == len(own) == 3 for own in chosen) and chosen[0] == chosen[1]
    again = load_set("pascal50s", tmp_path)
    assert [s.chosen for s in again.scorings] == [s.chosen for s in judged.scorings]


def test_abstract_decides_tied_votes_by_the_labels_of_a_draw(tmp_path: Path) -> None:
    pair = {"image": "a.png", "caption_b": "x", "caption_c": "y", "references": ["1", "2"]}
    votes = ([1, 1], [-1, -1], [1, -1])
    write_lines(tmp_path / "pairs.jsonl", [{**pair, "votes": own} for own in votes])
    indices = [[0], [1], [0]]
    draws = [{"reference_indices": indices, "labels": ["b", "c", label]} for label in "bc"]
    write_json(tmp_path / "draws.json", draws)
    judged = load_set("abstract50s", tmp_path)
    assert isinstance(judged, PairedSet) and judged.preferred == ([0, 1, 0], [0, 1, 1])
    (tmp_path / "draws.json").unlink()
    drawn = load_set("abstract50s", tmp_path)
    assert isinstance(drawn, PairedSet)
    assert all(list(own[:2]) == [0, 1] for own in drawn.preferred) and len(drawn.preferred) == 5
    write_json(tmp_path / "draws.json", [{"reference_indices": [[0], [2], [0]], "labels": list("bcb")}])
    with pytest.raises(FileError, match=r"pair 1 has \[2\], of 2 references"):
        load_set("abstract50s", tmp_path)
    write_json(tmp_path / "draws.json", [{"reference_indices": indices, "labels": list("bca")}])
    with pytest.raises(FileError, match="3 labels, expected b or c for each of 3 pairs"):
        load_set("abstract50s", tmp_path)


def test_foil_takes_the_first_references_and_needs_a_strictly_higher_score(tmp_path: Path) -> None:
    judged = load_set("foil", write_foil(tmp_path))
    assert judged.columns == ("1 reference", "4 references")
    assert judged.scorings[0].references() == [[REFERENCES[i][0]] for i in ("a.png", "a.png", *["b.png"] * 4)]
    assert judged.scorings[1].references() == [REFERENCES[i] for i in judged.scorings[0].items.images]
    runs = [Scored(np.array([2.0, 1, 1, 1, 1, math.nan])), Scored(np.array([2.0, 1, 2, 1, 1, 3]))]
    cells = judged.cells(runs, None)
    assert [(cell.value, cell.rows) for cell in cells.values()] == [(0.5, 2), (pytest.approx(2 / 3), 3)]


def test_paragraphs_of_videos_are_compared_by_the_mean_of_their_sentences(tmp_path: Path) -> None:
    row = {"true_caption": "x", "foil_caption": "y", "references": ["r"]}
    places = [("v1", "1"), ("v1", "1"), ("v1", "2"), ("v2", "1")]
    write_lines(tmp_path / "pairs.jsonl", [{"video": v, "paragraph": p, **row} for v, p in places])
    judged = load_set("activitynet_foil", tmp_path)
    # paragraph v1/1: 0.5 and 0.9 against 0.6 and 0.7; v1/2: tied; v2/1: lost
    scores = np.array([0.5, 0.6, 0.9, 0.7, 0.4, 0.4, 0.1, 0.2])
    (cell,) = judged.cells([Scored(scores)], None).values()
    assert (cell.value, cell.rows) == (pytest.approx(1 / 3), 3)
    assert judged.clusters == ["v1", "v1", "v2"]


def test_vatex_averages_annotators_and_leaves_out_half_rated_captions(tmp_path: Path) -> None:
    ratings = [[5, 4, 5], [1, 2, 1], [3, 3, None], [2, 3], [4, 3, 3]]
    rows = [{"video": "a.png", "candidate": f"caption {i}", "ratings": own} for i, own in enumerate(ratings)]
    write_lines(tmp_path / "judgements.jsonl", rows)
    write_json(tmp_path / "references.json", {"a.png": [f"reference {i}" for i in range(12)]})
    judged = rated("vatex_eval", tmp_path)
    assert judged.item.tolist() == [0, 1, 4]
    assert judged.dropped == {"rating missing": 1, "captions that not all annotators rated": 1}
    assert [len((s.references() or [])[0]) for s in judged.scorings] == [0, 1, 9]
    scores = np.array([0.9, 0.1, 0.2, 0.3, 0.5])
    nothing = np.full(5, np.nan)
    cells = judged.cells([Scored(nothing), Scored(scores), Scored(-scores)], None)
    assert cells["tau_b no reference"].undefined == "there are no rows, and a correlation needs two"
    assert cells["tau_b 1 reference"].value == 1.0 and cells["spearman 9 references"].value == -1.0


def test_thumb_compares_a_metrics_own_precision_and_recall_where_it_has_them(tmp_path: Path) -> None:
    rows = [
        {"SYS": system, "seg_id": "7", "hyp": "x", "image": "a.png", "P": p, "R": r, "human_score": p}
        for system, p, r in [("Human", 5, 1), ("M", 4, 2), ("M", 3, 4), ("M", 1, 3), ("M", 2, None)]
    ]
    write_lines(tmp_path / "captions.jsonl", rows)
    write_json(tmp_path / "references.json", {"7": ["r"]})
    judged = rated("thumb", tmp_path)
    assert judged.dropped == {"R missing": 1}
    scores = np.array([5.0, 4, 3, 1, 9])
    parts = {"precision": scores, "recall": np.array([1.0, 2, 4, 3, 9])}
    cells = judged.cells([Scored(scores, parts)], None)
    assert cells["P"].value == pytest.approx(1.0) and cells["R"].value < 0
    assert cells["precision with P"].value == cells["recall with R"].value == pytest.approx(1.0)
    assert (cells["P"].rows, cells["P without human captions"].rows) == (4, 3)
    without = judged.cells([Scored(scores)], None)
    assert without["recall with R"].undefined == "the metric has no recall"


def test_hat_ranks_low_scores_first(tmp_path: Path) -> None:
    rows = [
        {"image": f"{i}.png", "caption": "x", "contains_hallucination": mark, "references": ["r"]}
        for i, mark in enumerate([True, False, False, None])
    ]
    write_lines(tmp_path / "captions.jsonl", rows)
    judged = load_set("hat", tmp_path)
    assert isinstance(judged, MarkedSet) and judged.dropped == {"captions without contains_hallucination": 1}
    assert judged.cells([Scored(np.array([0.1, 0.5, 0.9]))], None)["AP"].value == 1.0
    assert judged.cells([Scored(np.array([0.9, 0.5, 0.1]))], None)["AP"].value == pytest.approx(1 / 3)
    flat = judged.cells([Scored(np.array([0.5, 0.5, 0.5]))], None)["AP"]
    assert math.isnan(flat.value) and flat.undefined == "all 3 scores are equal"
    none = judged.cells([Scored(np.array([math.nan, 0.5, 0.4]))], None)["AP"]
    assert none.undefined == "of 2 captions none are marked"


def test_systems_report_what_a_metric_reports(tmp_path: Path) -> None:
    write_json(tmp_path / "reference_captions.json", REFERENCES)
    write_json(tmp_path / "one.json", {"a.png": "a red circle", "z.png": "?"})
    write_json(tmp_path / "two.json", {"b.png": "stars", "a.png": "x"})
    judged = load_set("coco_systems", tmp_path)
    assert isinstance(judged, SystemSet) and judged.columns == ("one", "two")
    assert judged.dropped == {"captions of images without references": 1}
    cells = judged.cells([Scored(np.array([0.5])), Scored(np.array([0.5, 0.7]), corpus=0.9)], None)
    assert (cells["one"].value, cells["two"].value) == (0.5, 0.9)
    for path in ("one.json", "two.json"):
        (tmp_path / path).unlink()
    with pytest.raises(FileError, match=r"no file of a system beside reference_captions\.json"):
        load_set("coco_systems", tmp_path)


def test_pools_are_worth_what_is_chosen(tmp_path: Path) -> None:
    write_json(tmp_path / "pools.json", {"a.png": ["x", "a red circle"], "b.png": ["stars", "y"]})
    write_json(tmp_path / "references.json", REFERENCES)
    judged = load_set("nice_pools", tmp_path)
    assert isinstance(judged, PoolSet)
    assert judged.chosen(Scored(np.array([0.1, 0.2, 0.3, 0.3]))) == [1, 2]  # the first of equal ones
    assert judged.chosen(Scored(np.array([0.1, math.nan, math.nan, math.nan]))) == [0]


def test_a_set_of_ones_own_may_lack_references(tmp_path: Path) -> None:
    rows = [
        {"image": "a.png", "candidate": "x", "rating": 1},
        {"image": "a.png", "candidate": "y", "rating": 2},
    ]
    write_lines(tmp_path / "judgements.jsonl", rows)
    judged = rated("own", tmp_path)
    assert judged.items.references is None and judged.ratings["rating"].tolist() == [1, 2]


def test_ids_of_ones_own_images_may_be_numbers(tmp_path: Path) -> None:
    write_lines(tmp_path / "judgements.jsonl", [{"image": 42, "candidate": "x", "rating": 1}])
    write_json(tmp_path / "references.json", {"42": ["y"]})
    judged = rated("own", tmp_path)
    assert (judged.image_ids, judged.items.references) == (["42"], [["y"]])
    write_lines(tmp_path / "judgements.jsonl", [{"image": True, "candidate": "x", "rating": 1}])
    with pytest.raises(FileError, match=r"image: .*: expected a text or a whole number"):
        load_set("own", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ("[1]\n", "line 1 is a list of length 1: expected an object with image, candidate, ratings"),
        ('{"image": "a", "candidates": "x", "ratings": []}\n', "no 'candidate': did you mean 'candidates'"),
        ('{"image": 3, "candidate": "x", "ratings": []}\n', "line 1: image: the number 3: expected a text"),
        ("{\n", r"is not jsonl \("),
        ('{"image": "q", "candidate": "x", "ratings": [1]}\n', r"1 of 1 images \('q'\) have no references"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    write_expert(tmp_path)
    (tmp_path / "judgements.jsonl").write_text(text)
    with pytest.raises(FileError, match=message):
        load_set("flickr8k_expert", tmp_path)


def test_files_of_other_forms_are_refused(tmp_path: Path) -> None:
    write_expert(tmp_path)
    for content, message in [
        ([], "a list of length 0, expected {image: "),
        ({"a.png": "x", "b.png": []}, r"key 'a\.png': a str"),
    ]:
        (tmp_path / "references.json").write_text(json.dumps(content))
        with pytest.raises(FileError, match=message):
            load_set("flickr8k_expert", tmp_path)
    (tmp_path / "references.json").write_bytes(b"\xff")
    with pytest.raises(FileError, match="not UTF-8"):
        load_set("flickr8k_expert", tmp_path)


def test_a_set_that_is_not_there_says_where_it_comes_from_and_in_which_form(tmp_path: Path) -> None:
    for name, entry in SETS.items():
        with pytest.raises(FileError) as caught:
            load_set(name, tmp_path)
        message = str(caught.value)
        assert entry.title in message and entry.source in message and entry.files[0] in message
        assert f"`{entry.files[0]}`" in message  # the form
    with pytest.raises(FileError, match="there is no such folder"):
        load_set("foil", tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file, expected a folder"):
        load_set("foil", tmp_path / "file")


def test_a_set_is_found_by_its_name_in_a_folder_of_sets(tmp_path: Path) -> None:
    write_expert(tmp_path / "flickr8k_expert")
    write_foil(tmp_path / "foil")
    assert len(load_set("flickr8k-expert", tmp_path).clusters) == 9
    assert len(load_set("foil", tmp_path).clusters) == 3
    with pytest.raises(ValueError, match="unknown set 'flicker8k': did you mean 'flickr8k_cf'"):
        set_entry("flicker8k")


def test_the_folder_of_another_set_is_refused_whatever_its_files_are_called(tmp_path: Path) -> None:
    folder = write_foil(tmp_path / "nocaps-FOIL")
    with pytest.raises(FileError, match=r"is the folder of nocaps-FOIL, not of FOIL: .*judge nocaps_foil"):
        load_set("foil", folder)
    assert len(load_set("foil", folder.rename(tmp_path / "mine")).clusters) == 3
    expert = write_expert(tmp_path / "flickr8k_expert")
    assert load_set("own", expert).name == "own"  # for which nothing is published


def test_published_tables_name_columns_and_sets_that_exist(tmp_path: Path) -> None:
    assert PUBLISHED.keys() <= SETS.keys()
    write_pascal(tmp_path / "pascal50s")
    write_foil(tmp_path / "foil")
    write_expert(tmp_path / "flickr8k_expert")
    columns = {name: load_set(name, tmp_path).columns for name in ("foil", "flickr8k_expert")}
    columns["pascal50s"] = ("HC", "HI", "HM", "MM", "mean")
    for name, known in columns.items():
        for table in PUBLISHED[name]:
            assert set(table.columns) <= set(known)
    for tables in PUBLISHED.values():
        for table in tables:
            assert {len(values) for values in table.values.values()} == {len(table.columns)}


def test_a_set_comes_from_the_hub_by_its_id(tmp_path: Path) -> None:
    folder = write_expert(tmp_path / "set")
    (tmp_path / "home").mkdir()
    code = """
import json
from capeval_core.judgements.sets import load_set
answers = []
for name in ("org/judged", "org/judged@v1", "org/none"):
    try:
        judged = load_set("flickr8k_expert", name)
        answers.append([len(judged.clusters), judged.dropped])
    except ValueError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""
    repositories = {"datasets/org/judged": Repository.of({"main": folder, "v1": folder})}
    with serving(repositories) as hub:
        newest, tagged, missing = ask(code, hub.address, tmp_path / "home")
    assert newest == tagged == [9, load_set("flickr8k_expert", folder).dropped]
    assert missing.startswith("org/none: the data set could not be loaded from the Hub (")
