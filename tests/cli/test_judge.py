"""`capeval judge`, `correlate` and `verify`: their files, and numbers beside SciPy's and published ones."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image
from scipy.stats import kendalltau

from tests.cli.conftest import Capeval, write_json
from tests.judgements.data import SHARED, needs_shared, write_foil

WORDS = ("red", "blue", "green", "yellow", "purple", "black")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Six images, each with a right and a wrong caption, a rating that is missing, and references."""
    folder = tmp_path / "own"
    (folder / "images").mkdir(parents=True)
    rows, references = [], {}
    for index, colour in enumerate(WORDS):
        name, other = f"{index}.png", WORDS[(index + 1) % len(WORDS)]
        Image.new("RGB", (64, 48), colour).save(folder / "images" / name)
        rows.append({"image": name, "candidate": f"a {colour} circle", "ratings": [5, 4]})
        rows.append({"image": name, "candidate": f"a {other} star", "ratings": [1, None if index else "?"]})
        references[name] = [f"a {colour} circle in the middle", f"one {colour} circle"]
    (folder / "judgements.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_json(folder / "references.json", references)
    return folder


def _besides_notes(err: str) -> str:
    """What is on stderr but for notes on how files were read."""
    return "\n".join(line for line in err.splitlines() if not line.startswith("capeval: note: "))


def cells_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_set_is_judged_and_every_file_is_written(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ["judge", "own", "--data", own, "--images", own / "images", "--weights", "tiny", "--out", out]
    ran = capeval(*run, "--metrics", "pacs,rougel", "--resamples", 50)
    assert ran.status == 0 and _besides_notes(ran.err) == ""
    cells = cells_of(out / "own.csv")
    columns = [(metric, column) for metric in ("PAC-S", "ROUGE-L") for column in ("tau_b", "tau_c")]
    assert [(cell["metric"], cell["column"]) for cell in cells] == columns
    for cell in cells:
        assert float(cell["low"]) <= float(cell["value"]) <= float(cell["high"]) and cell["rows"] == "18"
    assert "|refs:2|" in cells[2]["signature"] and "refs:" not in cells[0]["signature"]
    assert "| PAC-S |" in (out / "own.md").read_text() and "$\\tau_b$" in (out / "own.tex").read_text()
    contest, _ = cells_of(out / "own-differences.csv")
    difference = float(cells[0]["value"]) - float(cells[2]["value"])
    assert float(contest["difference"]) == pytest.approx(difference, abs=1e-3)
    for name in ("own.png", "own-scores.png"):
        with Image.open(out / name) as image:
            assert image.width > 600 and len(image.getcolors(1 << 24) or []) > 20
    assert not (out / "eval_results").exists()  # it is not on the Hub
    run = ["judge", "flickr8k_expert", *run[2:], "--metrics", "pacs", "--resamples", 0]
    assert capeval(*run).status == 0
    (path,) = (out / "eval_results").rglob("*.yaml")
    assert path.relative_to(out).as_posix() == "eval_results/pac-s/.eval_results/flickr8k_expert.yaml"
    (first, *_) = yaml.safe_load(path.read_text())
    assert first["dataset"]["id"].endswith("/flickr8k-expert") and "weights:tiny" in first["notes"]
    value = float(cells_of(out / "flickr8k_expert.csv")[0]["value"])
    assert first["dataset"]["task_id"] == "tau_b" and first["value"] == pytest.approx(value, abs=1e-4)
    assert any((out / "rows/own/rougel").glob("*.parquet"))
    capeval("judge", "foil", "--data", write_foil(tmp_path / "foil"), "--metrics", "rougel", "--out", out)
    assert any((out / "rows/foil/rougel").glob("*.parquet"))  # rows of two sets would take each other's place


def test_empty_texts_are_refused_before_any_metric_is_opened(capeval: Capeval, own: Path) -> None:
    references = json.loads((own / "references.json").read_text())
    write_json(own / "references.json", {**references, "0.png": ["a red circle", ""]})
    run = ["judge", "own", "--data", own, "--resamples", 0, "--metrics", "rougel,pacs", "--images", own]
    ran = capeval(*run, "--weights", own / "none")
    assert ran.status == 2 and "image '0.png'" in ran.err and "none" not in ran.err
    ran = capeval(
        *run[:6], "--metrics", "rougel,ciderd", *(f"--set={m}.empty=score" for m in ("rougel", "ciderd"))
    )
    assert ran.status == 0 and _besides_notes(ran.err) == ""


def test_scores_of_several_files_are_rows_of_their_own(capeval: Capeval, own: Path, tmp_path: Path) -> None:
    names = ("one.json", "two.json", "three.json")
    for place, name in enumerate(names):
        write_json(tmp_path / name, [float(place == 1) - row * (place - 1) for row in range(12)])
    scores = [f"Mine={tmp_path / name}" for name in names[:2]] + [f"ROUGE-L={tmp_path / names[2]}"]
    line: list[object] = ["judge", "own", "--data", own, "--resamples", 0, "--metrics", "rougel"]
    for one in scores:
        line += ["--scores", one]
    ran = capeval(*line, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    cells = [cell for cell in cells_of(tmp_path / "out" / "own.csv") if cell["column"] == "tau_b"]
    labels = ["Mine", "Mine (two.json)", "ROUGE-L (three.json)", "ROUGE-L"]
    assert [cell["metric"] for cell in cells] == labels
    assert len({cell["value"] for cell in cells}) > 2


def test_what_cannot_be_written_is_refused_before_anything_is_scored(capeval: Capeval, own: Path) -> None:
    (own / "out" / "own.tex").mkdir(parents=True)
    ran = capeval("judge", "own", "--data", own, "--metrics", "rougel", "--out", own / "out")
    assert ran.status == 2 and "own.tex" in ran.err and ran.out == ""
    assert [path.name for path in (own / "out").iterdir()] == ["own.tex"]
    if Path("/proc/self").exists():  # a folder in which no file can be made
        ran = capeval("judge", "own", "--data", own, "--metrics", "rougel", "--out", "/proc/out")
        assert ran.status == 2 and re.search(r"--out /proc/out cannot be written \(\w+ .+\)", ran.err)


@needs_shared
def test_published_values_come_out(capeval: Capeval, tmp_path: Path) -> None:
    scores = SHARED / "pascal50s" / "scores_references5.npz"
    labels = ["--labels", "label_fleur_run", "--resamples", 0, "--scores", scores]
    lines = [
        line.split() for line in capeval("judge", "pascal50s", "--data", SHARED, *labels).out.splitlines()
    ]
    fleur = next(index for index, line in enumerate(lines) if line[:1] == ["FLEUR"])
    assert lines[fleur][1:] == ["61.30", "99.70", "97.60", "74.20", "83.20"]
    assert lines[fleur + 1][1::2] == ["61.3", "99.7", "97.6", "74.2", "83.2"]
    shutil.copytree(SHARED / "example_dogs" / "pacscore", tmp_path / "pacscore")
    for name in ("rougel", "ciderd", "bleu"):
        ran = capeval("verify", name, "--data", tmp_path)
        assert ran.status == 0 and "2 ok, 0 failed" in ran.out, ran.out
    (tmp_path / "flickr8k_expert").symlink_to(SHARED / "flickr8k_expert")
    ran = capeval("verify", "rougel", "--data", tmp_path)
    assert "4 ok, 0 failed" in ran.out and "32.139, published 32.139" in ran.out
    path = tmp_path / "pacscore" / "good_captions.json"
    path.write_text(path.read_text().replace(" a ", " the "))
    ran = capeval("verify", "bleu", "--data", tmp_path)
    assert ran.status == 1 and "FAIL" in ran.out


def test_ratings_are_joined_by_id_and_caption(capeval: Capeval, tmp_path: Path) -> None:
    scored = {
        "scores": [0.1, 0.9, 0.4, 0.4, 0.5, 0.2, None, 0.3, 0.7],
        "ids": ["a", "a", "b", "b", "c", "d", "e", "e", "f.jpg"],
        "captions": ["x", "x ", "x", "x", "x", "x", "x", "x", "x"],
    }
    write_json(tmp_path / "s.json", scored)
    rows = [
        {"image_id": i, "caption": "x", "rating": r}
        for i, r in zip("abcdef", (1, 2, 5, 3, 4, 4), strict=True)
    ]
    write_json(tmp_path / "h.json", rows)
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.json", "--csv", tmp_path / "o.csv")
    assert ran.status == 0 and "left out: 2 ratings of a caption that has different scores" in ran.out
    values = {cell["column"]: float(cell["value"] or "nan") for cell in cells_of(tmp_path / "o.csv")}
    kept = ([0.4, 0.5, 0.2, 0.7], [2, 5, 3, 4])
    assert values["tau_b"] == pytest.approx(100 * kendalltau(*kept).statistic, abs=1e-5)
    assert values["tau_c"] == pytest.approx(100 * kendalltau(*kept, variant="c").statistic, abs=1e-5)
