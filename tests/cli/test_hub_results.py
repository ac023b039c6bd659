"""`capeval score --eval-results` and `--every-eval-ever`: results as the Hub and leaderboards read them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from tests.cli.conftest import Capeval, read_json, write_json

CAPTIONS = {f"p{i}": [f"a red house {i}"] for i in range(6)} | {"broken": ["a wall"]}
REFERENCES = {name: ["a red wall", "a house"] for name in CAPTIONS}
OPTIONS = ("--weights", "tiny", "--device", "cpu", "--on-error", "nan")
ABOUT = ("--model", "acme/captioner", "--dataset", "acme/houses", "--dataset-split", "test")


@pytest.fixture
def score(capeval: Capeval, tmp_path: Path) -> Any:
    """`capeval score pacs,bleu` of seven captions, of which one image cannot be opened."""
    (tmp_path / "images").mkdir()
    for number, name in enumerate(CAPTIONS):
        Image.new("RGB", (40, 30), (36 * number, 90, 10)).save(tmp_path / "images" / f"{name}.png")
    picture = tmp_path / "images" / "broken.png"
    Image.effect_noise((90, 90), 50).save(picture)
    picture.write_bytes(picture.read_bytes()[:2000])
    captions = write_json(tmp_path / "captions.json", CAPTIONS)
    references = write_json(tmp_path / "references.json", REFERENCES)
    files = ["--candidates", captions, "--references", references, "--images", tmp_path / "images"]

    def run(*flags: object, metrics: str = "pacs,bleu") -> Any:
        return capeval("score", metrics, *files, *OPTIONS, *flags)

    return run


def records_of(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Path]:
    """The only record below a folder, its samples and its path."""
    (path,) = folder.rglob("*.json")
    record = read_json(path)
    samples = (folder / record["detailed_evaluation_results"]["file_path"]).read_bytes()
    assert hashlib.sha256(samples).hexdigest() == record["detailed_evaluation_results"]["checksum"]
    return record, [json.loads(line) for line in samples.splitlines()], path


def test_every_eval_ever_has_each_number_and_each_caption(score: Any, tmp_path: Path) -> None:
    out = tmp_path / "records"
    assert score("--every-eval-ever", out, "--json", tmp_path / "s.json", *ABOUT).status == 0
    record, samples, path = records_of(out)
    assert path.parent == out / "data" / "acme_houses" / "acme" / "captioner"
    (system,) = read_json(tmp_path / "s.json")["systems"]
    pacs, bleu = system["results"]
    numbers = {each["metric_config"]["metric_id"]: each for each in record["evaluation_results"]}
    assert set(numbers) == {"capeval.pac_s", *(f"capeval.bleu_{n}" for n in (1, 2, 3, 4))}
    for key, result in (("pac_s", pacs), ("bleu_4", bleu)):
        number = numbers[f"capeval.{key}"]
        assert number["score_details"]["score"] == result["mean"]
        assert number["metric_config"]["metric_parameters"]["signature"] == result["signature"]
        of_metric = [
            each for each in samples if each["evaluation_result_id"] == number["evaluation_result_id"]
        ]
        scores = [score for score in result["scores"] if score is not None]
        assert [each["evaluation"]["score"] for each in of_metric] == scores
    assert numbers["capeval.pac_s"]["score_details"]["details"]["failed"] == "1"
    interval = numbers["capeval.pac_s"]["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] == pacs["interval"]["low"] and interval["upper"] == pacs["interval"]["high"]
    assert interval["confidence_level"] == 0.95
    assert numbers["capeval.pac_s"]["score_details"]["uncertainty"]["num_samples"] == 6
    assert "uncertainty" not in numbers["capeval.bleu_1"]["score_details"]
    assert numbers["capeval.bleu_1"]["metric_config"]["metric_name"] == "BLEU-1"
    for key, kind in (("pac_s", "pacs"), ("bleu_4", "bleu"), ("bleu_1", "bleu")):
        number = numbers[f"capeval.{key}"]
        assert number["evaluation_name"] == f"acme/houses {key}"
        assert number["metric_config"]["metric_kind"] == kind
        assert number["evaluation_result_id"] == f"{record['evaluation_id']}#{key}"
        assert number["source_data"] == {
            "dataset_name": "acme/houses",
            "source_type": "hf_dataset",
            "hf_repo": "acme/houses",
            "samples_number": 7,
            "hf_split": "test",
        }
    bounds = [numbers["capeval.bleu_4"]["metric_config"][name] for name in ("min_score", "max_score")]
    assert bounds == bleu["range"] == [0.0, 1.0]
    assert record["source_metadata"]["source_organization_name"] == "unknown"
    assert record["source_metadata"]["evaluator_relationship"] == "other"
    about = record["model_info"]
    assert (about["name"], about["id"], about["developer"]) == ("captioner", "acme/captioner", "acme")
    assert len(samples) == 6 + 7 == record["detailed_evaluation_results"]["total_rows"]
    assert {each["evaluation_id"] for each in samples} == {record["evaluation_id"]}
    assert samples[0]["output"]["raw"] == CAPTIONS["p0"]
    assert samples[0]["input"]["reference"] == REFERENCES["p0"]
    assert [each["sample_id"] for each in samples] == [*list(CAPTIONS)[:6], *CAPTIONS]
    assert [each["metadata"]["metric"] for each in samples] == ["pacs"] * 6 + ["bleu"] * 7
    (answer,) = samples[0]["answer_attribution"]
    assert (answer["turn_idx"], answer["source"], answer["is_terminal"]) == (0, "output.raw", True)
    assert answer["extracted_value"] == CAPTIONS["p0"][0]
    # Of the input alone: one hash for an image and its references, whatever is said of it.
    digest = hashlib.sha256("\n".join(["p0", *REFERENCES["p0"]]).encode()).hexdigest()
    assert samples[0]["sample_hash"] == samples[6]["sample_hash"] == digest


def test_captions_of_one_image_are_samples_of_their_own(capeval: Capeval, tmp_path: Path) -> None:
    captions = {"1": ["a circle", "a box", "a star"], "2": ["a box"]}
    references = {"1": ["a circle"], "2": ["a box"]}
    files = ["--candidates", write_json(tmp_path / "c.json", captions)]
    files += ["--references", write_json(tmp_path / "r.json", references)]
    about = ("--model", "acme/captioner", "--dataset", "houses", "--evaluator", "acme")
    assert capeval("score", "rougel", *files, "--every-eval-ever", tmp_path / "out", *about).status == 0
    record, samples, _ = records_of(tmp_path / "out")
    assert [each["sample_id"] for each in samples] == ["1", "1#2", "1#3", "2"]
    assert [each["output"]["raw"] for each in samples] == [["a circle"], ["a box"], ["a star"], ["a box"]]
    assert record["source_metadata"]["source_organization_name"] == "acme"
    assert record["source_metadata"]["evaluator_relationship"] == "first_party"
    (number,) = record["evaluation_results"]
    assert number["source_data"] == {"dataset_name": "houses", "source_type": "other"}


def test_a_record_says_where_lower_is_better(score: Any, capeval: Capeval, tmp_path: Path) -> None:
    captions = write_json(tmp_path / "shapes.json", {"1": "a circle", "2": "a box"})
    objects = write_json(tmp_path / "objects.json", {"1": ["circle"], "2": []})
    files = ["--candidates", captions, "--objects", objects, "--synonyms", "tiny"]
    assert capeval("score", "chair", *files, "--every-eval-ever", tmp_path / "low", *ABOUT).status == 0
    assert score("--every-eval-ever", tmp_path / "high", *ABOUT).status == 0
    for name, lower_is_better in (("low", True), ("high", False)):
        numbers = records_of(tmp_path / name)[0]["evaluation_results"]
        assert {each["metric_config"]["lower_is_better"] for each in numbers} == {lower_is_better}
        assert not any(each["metric_config"]["metric_id"] == "capeval.recall" for each in numbers)


def test_the_same_scores_are_one_record(score: Any, tmp_path: Path) -> None:
    out = tmp_path / "records"
    for _ in range(2):
        assert score("--every-eval-ever", out, *ABOUT).status == 0
    records_of(out)


def test_records_are_valid_by_their_own_schema(score: Any, tmp_path: Path) -> None:
    validator = pytest.importorskip("every_eval_ever.validator.validation_core", reason="not installed")
    out = tmp_path / "records"
    assert score("--every-eval-ever", out, *ABOUT).status == 0
    for path in out.rglob("*.json*"):
        report = validator.validate_file(path)
        assert report.valid and not report.warnings, report


def test_eval_results_are_read_by_the_hub_s_own_package(score: Any, tmp_path: Path) -> None:
    from huggingface_hub import parse_eval_result_entries

    out = tmp_path / "results.yaml"
    assert score("--eval-results", out, "--json", tmp_path / "s.json", *ABOUT).status == 0
    entries = parse_eval_result_entries(yaml.safe_load(out.read_text()))
    means = [result["mean"] for result in read_json(tmp_path / "s.json")["systems"][0]["results"]]
    values = {entry.task_id: entry.value for entry in entries}
    assert values["test_pac_s"] == pytest.approx(means[0], abs=1e-6)
    assert values["test_bleu_4"] == pytest.approx(means[1], abs=1e-6)
    assert {entry.dataset_id for entry in entries} == {"acme/houses"}
    assert [*values] == ["test_pac_s", *(f"test_bleu_{n}" for n in (4, 1, 2, 3))]
    notes = {entry.task_id: entry.notes for entry in entries}
    assert notes["test_pac_s"].startswith("PAC-S, pac_s, 7 captions, capeval:pacs|weights:tiny@")
    assert notes["test_bleu_1"].startswith("BLEU-4, bleu_1, 7 captions, capeval:bleu|")
    assert score("--eval-results", out, *ABOUT[:4], metrics="pacs").status == 0
    (entry,) = parse_eval_result_entries(yaml.safe_load(out.read_text()))
    assert (entry.task_id, entry.value) == ("pac_s", round(means[0], 6))


@pytest.mark.parametrize(
    ("flags", "argument"),
    [
        (["--every-eval-ever", "OUT"], "--model"),
        (["--every-eval-ever", "OUT", "--model", "acme/captioner"], "--dataset"),
        (["--every-eval-ever", "OUT", "--model", "captioner", "--dataset", "d"], "--model"),
        (["--every-eval-ever", "OUT", "--model", "acme/..", "--dataset", "d"], "--model"),
        (["--every-eval-ever", "OUT", "--model", "acme/m", "--dataset", "../../x"], "--dataset"),
        (["--every-eval-ever", "OUT", "--model", "acme/m", "--dataset", "a\nb"], "--dataset"),
        (["--eval-results", "OUT", "--model", "acme/m", "--dataset", "coco"], "--dataset"),
        (["--model", "acme/m"], "--model"),
        (["--evaluator", "acme"], "--evaluator"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_scored(
    score: Any, tmp_path: Path, flags: list[str], argument: str
) -> None:
    out = tmp_path / "out"
    outcome = score(*[str(out) if flag == "OUT" else flag for flag in flags])
    assert outcome.status == 2 and argument in outcome.err
    assert not out.exists()
