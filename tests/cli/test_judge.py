"""`capeval judge`: tables, files, and every refusal before anything is opened."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from capeval_core.judgements.sets import SETS
from tests.cli.conftest import Ran
from tests.judgements.data import SHARED, needs_shared, write_foil, write_json, write_lines, write_pascal
from tools.scenes import COLOURS, Scene, SceneObject, draw

Capeval = Callable[..., Ran]
WORDS = tuple(COLOURS)[:6]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Six images, each with a right and a wrong caption, a rating that is missing, and references."""
    folder = tmp_path / "own"
    (folder / "images").mkdir(parents=True)
    rows, references = [], {}
    for index, colour in enumerate(WORDS):
        name = f"{index}.png"
        scene = Scene((SceneObject("circle", colour, "large", (0.5, 0.5), 0.35),), "white")
        draw(scene, 64).save(folder / "images" / name)
        other = WORDS[(index + 1) % len(WORDS)]
        rows.append({"image": name, "candidate": f"a {colour} circle", "ratings": [5, 4]})
        rows.append({"image": name, "candidate": f"a {other} star", "ratings": [1, None if index else "?"]})
        references[name] = [f"a {colour} circle in the middle", f"one {colour} circle"]
    write_lines(folder / "judgements.jsonl", rows)
    write_json(folder / "references.json", references)
    return folder


def test_a_set_is_judged_and_every_file_is_written(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ["judge", "own", "--data", own, "--images", own / "images", "--weights", "tiny", "--out", out]
    ran = capeval(*run, "--metrics", "pacs,rougel", "--resamples", 50)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "Own set: ratings of your own, each a row; Kendall's tau-b and tau-c"
    assert lines[2].split() == ["metric", "tau_b", "tau_c"]
    assert [line.split()[0] for line in lines[3:5]] == ["PAC-S", "ROUGE-L"]
    assert "left out: 5 ratings missing" in lines and "left out: 1 rating not a number" in lines
    assert "times 100; 18 ratings of 6 images; intervals: 95%, 50 bootstrap resamples of images" in lines
    assert any("published values are for the published weights" in line for line in lines)

    with (out / "own.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [(cell["metric"], cell["column"]) for cell in cells] == [
        ("PAC-S", "tau_b"), ("PAC-S", "tau_c"), ("ROUGE-L", "tau_b"), ("ROUGE-L", "tau_c"),
    ]  # fmt: skip
    for cell in cells:
        assert float(cell["low"]) <= float(cell["value"]) <= float(cell["high"])
        assert cell["rows"] == "18" and cell["signature"].startswith("capeval:")
    assert "|refs:2|" in cells[2]["signature"] and "refs:" not in cells[0]["signature"]
    assert f"PAC-S         {float(cells[0]['value']):.2f}"[:7] in ran.out
    markdown = (out / "own.md").read_text()
    assert "| PAC-S |" in markdown and "## Differences between metrics" in markdown
    assert "$\\tau_b$" in (out / "own.tex").read_text()
    with (out / "own-differences.csv").open(newline="") as file:
        (contest, _) = csv.DictReader(file)
    difference = float(cells[0]["value"]) - float(cells[2]["value"])
    assert float(contest["difference"]) == pytest.approx(difference, abs=1e-3)
    for name in ("own.png", "own-scores.png"):
        with Image.open(out / name) as image:
            assert image.width == 960 and len(image.getcolors(1 << 24) or []) > 20
    assert not (out / "eval_results").exists() and ".eval_results" not in ran.out  # it is not on the Hub

    again = capeval(*run, "--metrics", "pacs,rougel", "--resamples", 50)
    assert (again.status, again.out) == (0, ran.out)


def test_results_of_weights_name_the_data_set(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    run = ["judge", "flickr8k_expert", "--data", own, "--images", own / "images", "--weights", "tiny"]
    assert capeval(*run, "--metrics", "pacs,rougel", "--out", tmp_path, "--resamples", 0).status == 0
    with (tmp_path / "flickr8k_expert.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    (path,) = (tmp_path / "eval_results").rglob("*.yaml")
    name = path.relative_to(tmp_path).as_posix()
    assert name == "eval_results/pac-s/.eval_results/flickr8k_expert.yaml"
    results = yaml.safe_load(path.read_text())
    assert [entry["dataset"]["task_id"] for entry in results] == ["tau_b", "tau_c"]
    assert results[0]["dataset"]["id"].endswith("/flickr8k-expert")
    assert results[0]["value"] == pytest.approx(float(cells[0]["value"]), abs=1e-4)
    assert "weights:tiny" in results[0]["notes"]


def test_stored_scores_stand_beside_computed_ones(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    scores = tmp_path / "mine.json"
    scores.write_text(json.dumps([*range(12)]))
    (tmp_path / "more.json").write_text(json.dumps({"ROUGE-L": [0.5] * 12}))
    ran = capeval(
        "judge", "own", "--data", own, "--metrics", "rougel", "--scores", f"Mine={scores}",
        "--scores", tmp_path / "more.json", "--resamples", 0, "--statistics", "spearman,acc_eq",
    )  # fmt: skip
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[2].split() == ["metric", "spearman", "acc_eq"]
    assert {line.split("  ")[0] for line in lines[3:6]} == {"Mine", "ROUGE-L", "ROUGE-L (more.json)"}
    assert "ROUGE-L (more.json): undefined where n/a: all 18 scores are equal" in lines


def test_nothing_but_undefined_cells_is_a_failure(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    (tmp_path / "flat.json").write_text(json.dumps([0.5] * 12))
    ran = capeval("judge", "own", "--data", own, "--scores", tmp_path / "flat.json")
    assert ran.status == 1 and "flat: undefined where n/a: all 18 scores are equal" in ran.out


def test_the_mean_of_categories_is_not_that_of_their_pairs(capeval: Capeval, tmp_path: Path) -> None:
    data = write_pascal(tmp_path / "pascal")
    pairs = [("HC", "a"), ("HC", "a"), ("HC", "a"), ("HI", "b")]
    row = {"image": "a.png", "caption_a": "a red circle", "caption_b": "two stars"}
    write_lines(data / "pairs.jsonl", [{**row, "category": name, "label": label} for name, label in pairs])
    (data / "draws.json").unlink()
    run = ["judge", "pascal50s", "--data", data, "--metrics", "rougel", "--out", tmp_path / "out"]
    assert capeval(*run, "--resamples", 0).status == 0
    with (tmp_path / "out" / "pascal50s.csv").open(newline="") as file:
        values = {cell["column"]: float(cell["value"]) for cell in csv.DictReader(file)}
    assert values == {"HC": 100.0, "HI": 0.0, "mean": 50.0}


def test_ratings_that_are_all_missing_leave_nothing_to_compare(capeval: Capeval, own: Path) -> None:
    rows = [json.loads(line) for line in (own / "judgements.jsonl").read_text().splitlines()]
    write_lines(own / "judgements.jsonl", [{**row, "ratings": [None]} for row in rows])
    ran = capeval("judge", "own", "--data", own, "--metrics", "rougel")
    assert (ran.status, ran.err) == (1, "")
    assert "left out: 12 ratings missing" in ran.out
    assert "ROUGE-L: undefined where n/a: there are no rows, and a correlation needs two" in ran.out


def test_sets_keep_their_rows_apart(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    write_foil(tmp_path / "foil")
    for name, data in (("own", own), ("foil", tmp_path / "foil")):
        capeval("judge", name, "--data", data, "--metrics", "rougel", "--out", tmp_path / "out")
    assert (tmp_path / "out/rows/own/rougel/stamp.json").exists()
    assert (tmp_path / "out/rows/foil/rougel/stamp.json").exists()


def test_images_that_are_missing_cost_their_captions_alone(capeval: Capeval, own: Path) -> None:
    (own / "images" / "3.png").unlink()
    (own / "images" / "4.png").write_bytes(b"no image")
    ran = capeval(
        "judge", "own", "--data", own, "--images", own / "images", "--set", "pacs.weights=tiny",
        "--metrics", "pacs", "--resamples", 0,
    )  # fmt: skip
    assert ran.status == 0
    assert "warning: 1 of 6 images are not in" in ran.err
    assert "PAC-S: 4 captions have no score" in ran.out


def test_pools_and_pairs_have_tables_too(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    pools = {"0.png": ["a red circle", "a star"], "1.png": ["stars", "a blue circle"]}
    write_json(own / "pools.json", pools)
    ran = capeval(
        "judge", "nice_pools", "--data", own, "--images", own / "images", "--weights", "tiny",
        "--metrics", "pacs", "--out", tmp_path / "pools",
    )  # fmt: skip
    assert ran.status == 0
    assert ran.out.splitlines()[2].split() == ["metric", "BLEU-4", "ROUGE-L", "CIDEr-D"]
    ran = capeval("judge", "foil", "--data", write_foil(tmp_path / "foil"), "--metrics", "rougel")
    assert ran.status == 0
    assert "no intervals, which need at least 5 images" in ran.out
    assert "published" in ran.out and "54.6 (" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["judge"], "the set comes first: capeval judge {flickr8k_expert,"),
        (["judge", "flicker8k_cf"], "unknown set 'flicker8k_cf': did you mean 'flickr8k_cf'"),
        (["judge", "own"], "nothing to judge: name --metrics, or a file of --scores"),
        (["judge", "own", "--metrics", "pasc"], "unknown metric 'pasc': did you mean 'pacs'"),
        (["judge", "own", "--metrics", "bleu,rougel,bleu"], "--metrics bleu,rougel,bleu: bleu comes twice"),
        (["judge", "own", "--metrics", "bleu"], "--data is missing"),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN/x"], "x: there is no such folder"),
        (
            ["judge", "own", "--metrics", "pacs", "--weights", "tiny", "--data", "OWN"],
            "--images is missing: pacs needs the images of the set",
        ),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--out", "OWN/references.json"], "is a file"),
        (["judge", "own", "--metrics", "bleu", "--set", "bleu"], "--set bleu: expected METRIC.OPTION=VALUE"),
        (
            ["judge", "own", "--metrics", "bleu", "--set", "blue.empty=score"],
            "did you mean 'bleu'?",
        ),
        (["judge", "own", "--metrics", "bleu", "--set", "bleu.empti=score"], "did you mean 'empty'"),
        (["judge", "own", "--metrics", "pacs", "--weights", "pacs=tiny"], "--set pacs.weights=tiny"),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--statistics", ""], "names no statistic"),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--statistics", "tau"], "'tau': unknown"),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--labels", "x"], "(there is of pascal50s)"),
        (
            ["judge", "pascal50s", "--metrics", "bleu", "--data", "OWN", "--labels", "lable"],
            "lable: unknown: did you mean 'label'",
        ),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--scores", "OWN/no.npz"], "no such file"),
        (["judge", "own", "--metrics", "bleu", "--data", "OWN", "--level", "2"], "--level 2: expected"),
        (["judge", "own", "--metrics", "bleu", "--resamples", "-1"], "--resamples -1: expected 0"),
        (["judge", "own", "--metrics", "bleu", "--seed", "-1"], "--seed -1: expected 0 or more"),
        (["judge", "own", "--metrics", "eco", "--weights", "tiny", "--data", "OWN"], "with nice_pools"),
        (["judge", "vatex_eval", "--metrics", "umic", "--data", "OWN"], "umic is about image or boxes"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    capeval: Capeval, own: Path, arguments: list[str], message: str
) -> None:
    ran = capeval(*(argument.replace("OWN", str(own)) for argument in arguments))
    assert ran.status == 2
    assert message in ran.err


def test_metrics_that_need_references_are_refused_where_there_are_none(capeval: Capeval, own: Path) -> None:
    (own / "references.json").unlink()
    ran = capeval("judge", "own", "--data", own, "--metrics", "bleu,rougel")
    assert ran.status == 2
    assert "bleu, rougel need references: put references.json beside judgements.jsonl" in ran.err


def test_empty_texts_are_refused_before_any_metric_is_opened(capeval: Capeval, own: Path) -> None:
    lines = (own / "judgements.jsonl").read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "candidate": " "})
    (own / "judgements.jsonl").write_text("\n".join(lines))
    run = ["judge", "own", "--data", own, "--resamples", 0, "--weights", own / "none", "--images", own]
    ran = capeval(*run, "--metrics", "pacs,rougel")
    fix = "write the caption, or pass --set pacs.empty=score --set rougel.empty=score"
    assert ran.status == 2 and f"{own}: judgements.jsonl line 3 has an empty caption: {fix}\n" in ran.err
    references = json.loads((own / "references.json").read_text())
    write_json(own / "references.json", {**references, "0.png": ["a red circle", ""]})
    run = [*run[:6], "--set", "rougel.empty=score", "--metrics"]
    ran = capeval(*run, "rougel,ciderd", "--set", "ciderd.empty=score")
    assert (ran.status, ran.err) == (0, "")
    ran = capeval(*run, "rougel,bleu")
    assert ran.status == 2 and "2 problems with the input" in ran.err
    fix = "write the reference, or pass --set bleu.empty=score"
    assert f"{own}: references.json image '0.png' has an empty reference: {fix}\n" in ran.err


def test_help_names_form_and_source_of_each_set(capeval: Capeval) -> None:
    for name, entry in SETS.items():
        ran = capeval("judge", name, "--help")
        assert ran.status == 0
        assert entry.files[0] in ran.out and f"--{entry.media}s" in ran.out


@needs_shared
def test_fleurs_labels_give_fleurs_table(capeval: Capeval) -> None:
    ran = capeval(
        "judge", "pascal50s", "--data", SHARED, "--labels", "label_fleur_run", "--resamples", 0,
        "--scores", SHARED / "pascal50s" / "scores_references5.npz",
    )  # fmt: skip
    lines = [line.split() for line in ran.out.splitlines()]
    fleur = next(index for index, line in enumerate(lines) if line[:1] == ["FLEUR"])
    assert lines[fleur][1:] == ["61.30", "99.70", "97.60", "74.20", "83.20"]
    assert lines[fleur + 1][1::2] == ["61.3", "99.7", "97.6", "74.2", "83.2"]
    assert not math.isnan(float(lines[fleur][1]))
