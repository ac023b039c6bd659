"""What `capeval score` says of a set beside its mean: BLEU-1 to BLEU-3, groups, METEOR, a row per caption."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.integrations import CocoScores
from tests.cli.conftest import Capeval, read_json, write_json

DOMAINS = ["in-domain", "near-domain", "out-of-domain"]
CAPTIONS = [f"{colour} dog runs over the {place}" for colour in ("a red", "the big") for place in (
    "grass", "old street", "white snow", "beach", "road", "wide field"
)]  # fmt: skip
REFERENCES = [
    [f"{text} in the sun", text.replace("dog", "cat" if number % 2 else "dog").replace("runs", "walks")]
    for number, text in enumerate(CAPTIONS)
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [
        {"image_id": number, "caption": text, "domain": DOMAINS[number % 2]}
        for number, text in enumerate(CAPTIONS)
    ]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_json(tmp_path / "plain.json", {str(row["image_id"]): row["caption"] for row in rows})
    write_json(tmp_path / "references.json", dict(enumerate(REFERENCES)))
    images = [
        {"id": number, "file_name": f"{number}.jpg", "domain": DOMAINS[number % 3]} for number in range(12)
    ]
    annotations = [
        {"id": 2 * number + i, "image_id": number, "caption": text}
        for number, texts in enumerate(REFERENCES)
        for i, text in enumerate(texts)
    ]
    write_json(tmp_path / "nocaps.json", {"images": images, "annotations": annotations})
    return tmp_path


def arguments(
    files: Path, candidates: str = "captions.jsonl", references: str = "references.json"
) -> list[Any]:
    return ["--candidates", files / candidates, "--references", files / references]


def result_of(name: str, rows: list[int] | None = None, **options: Any) -> capeval_core.Result:
    chosen = range(len(CAPTIONS)) if rows is None else rows
    texts = [CAPTIONS[row] for row in chosen], [REFERENCES[row] for row in chosen]
    return capeval_core.load(name, **options).score(texts[0], references=texts[1])


# ---- numbers of the set


def test_bleu_1_to_3_are_shown_and_written(capeval: Capeval, files: Path) -> None:
    numbers = result_of("bleu").numbers
    assert list(numbers) == ["bleu_4", "bleu_1", "bleu_2", "bleu_3"]
    found = capeval("score", "bleu", *arguments(files), "--json", files / "s.json")
    for number in (1, 2, 3, 4):
        assert re.search(rf"^BLEU-{number} +{numbers[f'bleu_{number}']:.4f}$", found.out, re.MULTILINE)
    assert read_json(files / "s.json")["corpus"] == pytest.approx(numbers)
    for form in ("text", "markdown", "latex"):
        table = capeval("score", "bleu,ciderd", *arguments(files), "--format", form).out
        assert all(f"{value:.4f}" in table and title_of(name) in table for name, value in numbers.items())
    lines = csv.DictReader(
        capeval("score", "bleu,ciderd", *arguments(files), "--format", "csv").out.splitlines()
    )
    means = {line["metric"]: float(line["mean"]) for line in lines}
    assert means == pytest.approx({"bleu": numbers["bleu_4"], "ciderd": result_of("ciderd").mean} | {
        name: value for name, value in numbers.items() if name != "bleu_4"
    })  # fmt: skip


def title_of(name: str) -> str:
    return name.upper().replace("_", "-")


def test_the_json_has_the_means_of_parts(capeval: Capeval, files: Path) -> None:
    capeval("score", "rougel,bleu", *arguments(files), "--json", files / "s.json")
    (system,) = read_json(files / "s.json")["systems"]
    rouge, bleu = (one["corpus"] for one in system["results"])
    expected = result_of("rougel")
    assert rouge["rouge_l"] == expected.mean
    assert rouge["precision"] == pytest.approx(sum(expected.parts["precision"]) / 12)
    assert bleu == pytest.approx(result_of("bleu").numbers)
    assert capeval("compare", files / "s.json", files / "s.json").status == 0


# ---- groups


def test_a_result_is_split_by_labels() -> None:
    labels = [DOMAINS[number % 2] for number in range(12)]
    for name in ("bleu", "rougel", "ciderd"):
        whole = result_of(name)
        groups = whole.by(labels)
        assert list(groups) == DOMAINS[:2]
        for label, group in groups.items():
            rows = [row for row in range(12) if labels[row] == label]
            own = {"statistics": capeval_core.load(name).prepare(REFERENCES)} if name == "ciderd" else {}
            alone = result_of(name, rows, **own)
            assert group.scores == pytest.approx(alone.scores, abs=1e-12)
            assert group.numbers == pytest.approx(alone.numbers, abs=1e-12)
            assert group.signature == whole.signature and group.counts == alone.counts
            assert vars(group.interval()) == pytest.approx(vars(alone.interval()), abs=1e-12)
    with pytest.raises(ValueError, match="labels"):
        result_of("bleu").by(["a"])


def test_groups_keep_errors_and_counts(grey_picture: Path) -> None:
    metric = capeval_core.load("pacs", weights="tiny", on_error="nan", empty="score")
    result = metric.score(["a", "", "word " * 100], [grey_picture, "none.png", grey_picture])
    first, second = result.by(["x", "y", "x"]).values()
    assert (first.counts.captions, first.counts.failed, first.counts.truncated) == (2, 0, 1)
    assert (second.counts.captions, second.counts.failed, second.counts.empty) == (1, 1, 1)
    assert second.errors == {0: result.errors[1]} and first[1]["pac_s"] == result[2]["pac_s"]
    assert [group.counts.failed for group in capeval_core.Result.from_dict(result_of("rougel").to_dict()).by(
        ["x"] * 12).values()] == [0]  # fmt: skip
    with pytest.raises(ValueError, match="by"):
        capeval_core.Result.from_dict(result.to_dict()).by(["x", "y", "x"])


@pytest.fixture
def grey_picture(tmp_path: Path) -> Path:
    from PIL import Image

    path = tmp_path / "grey.png"
    Image.new("RGB", (48, 48), "grey").save(path)
    return path


@pytest.mark.parametrize(("references", "groups"), [("references.json", 2), ("nocaps.json", 3)])
def test_results_by_group(references: str, groups: int, capeval: Capeval, files: Path) -> None:
    """By a column of the captions, or else of the images of COCO annotations; with intervals."""
    candidates = "captions.jsonl" if groups == 2 else "plain.json"
    given = arguments(files, candidates, references)
    found = capeval("score", "ciderd", *given, "--group-by", "domain", "--json", files / "s.json")
    assert found.status == 0
    by = read_json(files / "s.json")["by"]
    assert by["column"] == "domain" and [one["group"] for one in by["groups"]] == DOMAINS[:groups]
    labels = [DOMAINS[number % groups] for number in range(12)]
    for label, group in result_of("ciderd").by(labels).items():
        (own,) = (one["systems"][0]["results"][0] for one in by["groups"] if one["group"] == label)
        assert own["mean"] == pytest.approx(group.mean) and own["counts"]["captions"] == 12 // groups
        assert re.search(rf"^{label} \({12 // groups}\) +{group.mean:.4f}", found.out, re.MULTILINE)
        if groups == 2:
            interval = group.interval()
            assert f"{interval.low:.4f} to {interval.high:.4f}" in found.out
    assert "statistics of the whole set" in found.out


def test_groups_in_every_format_and_for_several_systems(capeval: Capeval, files: Path) -> None:
    shutil.copy(files / "captions.jsonl", files / "again.jsonl")
    given = ["--candidates", files / "captions.jsonl", files / "again.jsonl"]
    given += ["--references", files / "references.json", "--group-by", "domain"]
    for form in ("text", "markdown", "latex", "json", "csv"):
        found = capeval("score", "rougel,bleu", *given, "--format", form)
        assert found.status == 0 and "near-domain" in found.out, form
        assert ("## By domain\n" in found.out) == (form == "markdown"), form
    lines = [*csv.DictReader(found.out.splitlines())]
    assert {line["group"] for line in lines} == {"", *DOMAINS[:2]}
    assert {line["system"] for line in lines} == {"captions", "again"}
    assert len(lines) == 2 * 3 * 5


def test_a_column_that_is_not_there_is_refused(capeval: Capeval, files: Path) -> None:
    found = capeval("score", "rougel", *arguments(files), "--group-by", "domian")
    assert found.status == 2 and "domian" in found.err and "'domain'" in found.err


# ---- a row per caption


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_per_caption(suffix: str, capeval: Capeval, files: Path) -> None:
    out = files / f"rows.{suffix}"
    given = [*arguments(files), "--per-caption", out, "--group-by", "domain"]
    assert capeval("score", "bleu,ciderd", *given).status == 0
    rows = pq.read_table(out).to_pylist() if suffix == "parquet" else [*csv.DictReader(out.open())]
    bleu, cider = result_of("bleu"), result_of("ciderd")
    assert [row["id"] for row in rows] == list(map(str, range(12)))
    assert [row["caption"] for row in rows] == CAPTIONS
    assert [row["domain"] for row in rows] == [DOMAINS[number % 2] for number in range(12)]
    columns = {"bleu_4": bleu.scores, "bleu.bleu_1": bleu.parts["bleu_1"], "cider_d": cider.scores}
    for name, expected in columns.items():
        assert [float(row[name]) for row in rows] == pytest.approx(expected)
    lists = [row["ciderd.reference_cider_d"] for row in rows]
    assert [own if suffix == "parquet" else json.loads(own) for own in lists] == cider.parts[
        "reference_cider_d"
    ]
    assert not any(row["error"] for row in rows)


def test_a_failed_caption_has_its_reason(capeval: Capeval, files: Path, grey_picture: Path) -> None:
    images = files / "images"
    images.mkdir()
    shutil.copy(grey_picture, images / "a.png")
    (images / "b.png").write_bytes(b"broken")
    write_json(files / "few.json", {"a": "a dog", "b": "a cat"})
    given = ["--candidates", files / "few.json", "--images", images, "--weights", "tiny", "--on-error", "nan"]
    assert capeval("score", "pacs", *given, "--per-caption", files / "rows.csv").status == 0
    first, second = csv.DictReader((files / "rows.csv").open())
    assert float(first["pac_s"]) >= 0 and not first["error"]
    assert second["pac_s"] == second["pacs.cosine"] == "" and "b.png" in second["error"]
    # Of another system the captions of those numbers are whole.
    write_json(files / "other.json", [{"image": "a", "caption": text} for text in ("a dog", "a cat")])
    given[1:2] = [files / "few.json", files / "other.json"]
    assert capeval("score", "pacs", *given, "--per-caption", files / "rows.csv").status == 0
    rows = [*csv.DictReader((files / "rows.csv").open())]
    assert [(row["system"], bool(row["error"])) for row in rows] == [
        ("few", False), ("few", True), ("other", False), ("other", False)
    ]  # fmt: skip


def test_a_file_of_another_form_is_refused_at_once(capeval: Capeval, files: Path) -> None:
    found = capeval("score", "bleu", *arguments(files), "--per-caption", files / "rows.xlsx")
    assert found.status == 2 and "--per-caption" in found.err and ".parquet" in found.err


# ---- METEOR and SPICE

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")


@needs_java
@pytest.mark.system
def test_meteor_is_that_of_its_program(capeval: Capeval, files: Path) -> None:
    """Per caption and of the set, by pycocoevalcap's own reading of the program."""
    program = pytest.importorskip("pycocoevalcap.meteor.meteor").Meteor()
    odd = [*CAPTIONS[1:], REFERENCES[0][0], "zebra"]
    references = dict(enumerate([*REFERENCES[1:], REFERENCES[0], ["a dog"]]))
    value, scores = program.compute_score(references, {number: [text] for number, text in enumerate(odd)})
    result = capeval_core.load("meteor").score(odd, references=list(references.values()))
    assert result.scores == pytest.approx(scores, abs=1e-12) and result.mean == pytest.approx(
        value, abs=1e-12
    )
    assert max(scores) == 1 and min(scores) == 0
    coco = CocoScores(references, {number: [text] for number, text in enumerate(odd)}, metrics=["METEOR"])
    assert coco.eval == {"METEOR": pytest.approx(value, abs=1e-12)}
    interval = result.interval()
    assert interval.low < value < interval.high
    found = capeval("score", "meteor,ciderd", *arguments(files), "--json", files / "s.json")
    assert found.status == 0 and found.out.startswith("system    METEOR")
    assert capeval("compare", files / "s.json", files / "s.json").status == 0


@pytest.mark.parametrize("metric", ["meteor", "spice"])
def test_without_java_the_message_says_what_is_needed(
    metric: str, capeval: Capeval, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(files))  # where no program is
    found = capeval("score", f"bleu,{metric}", *arguments(files))
    assert found.status == 2 and metric.upper() in found.err
    assert "Java" in found.err or "pycocoevalcap" in found.err
    assert metric not in capeval_core.list_metrics()
    assert f"  {metric} " in capeval("score", "--help").out
