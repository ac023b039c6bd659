"""`capeval score` on the user's own files."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import capeval_core
from capeval_core.commands.arguments import FlagWords, add_flags, chosen, in_words_of_the_user
from capeval_core.commands.terminal import Parser
from capeval_core.errors import Argument, InputError, Problem, Setting, Text
from capeval_core.inputs.sources import OnDisk
from capeval_core.options import Options, describe_options, option
from capeval_core.registry import METRICS, metric_class
from capeval_core.result import Result
from tests.cli.conftest import CAPTIONS, REFERENCES, Ran

Score = Callable[..., Ran]
Scored = Callable[..., dict[str, Any]]
PAIRS = [(image_id, text) for image_id, texts in CAPTIONS.items() for text in texts]
ROWS = [{"image_id": image_id, "caption": text} for image_id, text in PAIRS]


@pytest.mark.parametrize("metric", ["pacs", "refpacs", "clips", "refclips"])
def test_the_numbers_are_those_of_the_library(
    metric: str, scored: Scored, files: Path, seeded_weights: Path
) -> None:
    references = ["--references", files / "references.json"] if metric.startswith("ref") else []
    content = scored(metric, *references)

    names = {"dog.1": "dog.1.jpg", "dog.2": "dog.2.png", "42": "COCO_val2014_000000000042.png"}
    expected = capeval_core.load(metric, weights=seeded_weights, device="cpu").score(
        [text for _, text in PAIRS],
        [files / "images" / names[image_id] for image_id, _ in PAIRS],
        [REFERENCES[image_id] for image_id, _ in PAIRS] if references else None,
    )
    assert {key: content[key] for key in expected.to_dict()} == expected.to_dict()
    assert content["ids"] == [image_id for image_id, _ in PAIRS]
    assert content["captions"] == [text for _, text in PAIRS]
    assert content["interval"] is None  # of three images
    assert Result.from_dict(content) == expected


def test_the_summary_says_mean_interval_counts_and_signature(score: Score, scored: Scored) -> None:
    content = scored("pacs")
    ran = score("pacs")
    assert ran.out.splitlines() == [
        f"PAC-S      {content['mean']:.4f}",
        "interval   none: an interval needs at least 5 images with a score, found 3: score more images",
        "captions   4 (0 failed, 0 truncated, 0 empty)",
        f"signature  {content['signature']}",
    ]
    assert ran.err == ""


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_csv(path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image_id", "caption"])
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def write_parquet(path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "lists": lambda folder: write_json(folder / "c.json", CAPTIONS),
    "COCO results": lambda folder: write_json(folder / "c.json", ROWS),
    "COCO annotations": lambda folder: write_json(
        folder / "c.json",
        {
            "images": [{"id": 7, "file_name": "dog.1.jpg"}],
            "annotations": [
                {**row, "image_id": 7 if row["image_id"] == "dog.1" else row["image_id"]} for row in ROWS
            ],
        },
    ),
    "JSON lines": lambda folder: Path(shutil.copy(write_lines(folder), folder / "c.jsonl")),
    "CSV": lambda folder: write_csv(folder / "c.csv"),
    "Parquet": lambda folder: write_parquet(folder / "c.parquet"),
}


def write_lines(folder: Path) -> Path:
    path = folder / "lines.txt"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_scores(form: str, scored: Scored, files: Path) -> None:
    assert scored("pacs", "--candidates", FORMS[form](files))["scores"] == scored("pacs")["scores"]


def test_one_caption_per_image_and_one_image(score: Score, files: Path) -> None:
    ran = score("pacs", "--candidates", write_json(files / "one.json", {"dog.1": "a dog"}))
    assert ran.status == 0
    assert "interval   none: an interval needs at least 5 images with a score, found 1" in ran.out


def test_five_images_have_an_interval(score: Score, files: Path) -> None:
    for i in range(5):
        Image.new("RGB", (40, 30), (50 * i, 200, 255 - 50 * i)).save(files / "images" / f"plain{i}.png")
    captions = write_json(files / "five.json", {f"plain{i}": "a wall" for i in range(5)})
    ran = score("pacs", "--candidates", captions, "--json", files / "five.out")
    content = json.loads((files / "five.out").read_text())
    assert content["interval"] == vars(Result.from_dict(content).interval())
    low, high = content["interval"]["low"], content["interval"]["high"]
    assert f"interval   {low:.4f} to {high:.4f} (95%, 5 images)" in ran.out


def test_evidence_goes_into_the_json(scored: Scored) -> None:
    evidence = scored("pacs", "--evidence")["evidence"]
    assert [entry["caption"] for entry in evidence] == [text for _, text in PAIRS]
    assert "evidence" not in scored("pacs")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_does_not_cost_the_score(score: Score) -> None:
    ran = score("pacs", "--json", "/dev/full")
    assert ran.status == 2 and ran.out.startswith("PAC-S")
    assert ran.err == "capeval: --json /dev/full cannot be written (No space left on device)\n"


@pytest.mark.parametrize("flag", ["candidates", "references"])
def test_an_input_file_is_not_overwritten(flag: str, score: Score, files: Path) -> None:
    path = files / ("captions.json" if flag == "candidates" else "references.json")
    before = path.read_bytes()
    more = ["--references", path] if flag == "references" else []
    ran = score("refpacs" if more else "pacs", *more, "--json", path)
    assert ran.status == 2 and f"is the file of --{flag}" in ran.err
    assert path.read_bytes() == before
    assert score("pacs", "--json", "-").status == 2


def test_references_are_ignored_with_one_warning_where_none_are_needed(score: Score, files: Path) -> None:
    ran = score("pacs", "--references", files / "no such file")
    assert ran.status == 0
    assert ran.err == "capeval: warning: pacs needs no references: --references is ignored\n"


def test_rows_resume_and_refuse_other_settings(scored: Scored, score: Score, files: Path) -> None:
    first = scored("pacs", "--rows", files / "rows")
    assert scored("pacs", "--rows", files / "rows") == first == scored("pacs")
    ran = score("pacs", "--rows", files / "rows", "--prompt", "An image of ")
    assert ran.status == 2
    assert ran.err.startswith(f"capeval: --rows {files / 'rows'} holds rows of other settings")


def test_a_broken_image_is_named_by_its_id(score: Score, files: Path) -> None:
    broken = files / "images" / "dog.1.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    ran = score("pacs")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("capeval: image of 'dog.1': ")
    assert "dog.1.jpg" in ran.err and "images[" not in ran.err


def test_with_nan_a_broken_image_costs_its_captions_alone(score: Score, scored: Scored, files: Path) -> None:
    whole = scored("pacs")
    broken = files / "images" / "dog.1.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    ran = score("pacs", "--on-error", "nan")
    assert ran.status == 0
    assert "captions   4 (2 failed, 0 truncated, 0 empty)" in ran.out
    assert ran.err.startswith("capeval: 2 of 4 captions failed:\n  image of 'dog.1': ")
    content = scored("pacs", "--on-error", "nan")
    assert content["scores"] == [None, None, *whole["scores"][2:]]
    assert list(content["errors"]) == ["0", "1"]


def test_a_resumed_run_checks_and_counts_what_is_new_alone(
    score: Score, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    decode = OnDisk.decode

    def record(self: OnDisk, reduced: bool = False) -> Any:
        decoded.append(Path(self.path).name)
        return decode(self, reduced)

    monkeypatch.setattr(OnDisk, "decode", record)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fewer = write_json(files / "fewer.json", {"dog.1": CAPTIONS["dog.1"]})
    rows = ["--rows", files / "rows", "--references", files / "references.json"]
    assert score("refpacs", *rows, "--candidates", fewer).status == 0
    assert set(decoded) == {"dog.1.jpg"}
    decoded.clear()
    ran = score("refpacs", *rows)
    assert ran.status == 0 and set(decoded) == {"dog.2.png", "COCO_val2014_000000000042.png"}
    assert re.search(r"checking: 100%.* 3/3 ", ran.err)
    decoded.clear()
    ran = score("refpacs", *rows)
    assert ran.status == 0 and decoded == []
    assert re.search(r"refpacs: 100%.* 4/4 \[00:0\d<\?, \? ?caption/s\]", ran.err)  # no speed: none was made
    (files / "images" / "dog.2.png").write_bytes(b"no image")
    ran = score("refpacs", *rows)
    assert ran.status == 2 and "image of 'dog.2': " in ran.err


def test_all_that_is_wrong_with_captions_and_images_is_one_list(score: Score, files: Path) -> None:
    captions = {"dog.1": ["a dog", ""], "dog.2": "a cat", "42": None, "bird": "a bird"}
    (files / "images" / "dog.2.png").write_bytes(b"no image")
    ran = score("pacs", "--candidates", write_json(files / "c.json", captions))
    assert (ran.status, ran.out) == (2, "")
    title, *lines = ran.err.splitlines()
    assert title == "capeval: 4 problems with the input:"
    for found in (
        "id '42' is null",
        "ids ('bird') has no image",
        "caption 2 of 'dog.1'",
        "image of 'dog.2': ",
    ):
        assert sum(found in line for line in lines) == 1


@pytest.mark.parametrize("missing", ["bird", "birds/1.jpg", "../captions", "/etc/hosts"])
def test_with_nan_a_missing_image_costs_its_captions_alone(
    missing: str, score: Score, scored: Scored, files: Path
) -> None:
    whole = scored("pacs")
    given = write_json(files / "c.json", {**CAPTIONS, missing: "a bird"})
    ran = score("pacs", "--on-error", "nan", "--candidates", given)
    assert ran.status == 0
    assert ran.err.startswith(f"capeval: 1 of 5 captions failed:\n  image of '{missing}': there is no file ")
    content = scored("pacs", "--on-error", "nan", "--candidates", given)
    assert content["scores"] == [*whole["scores"], None]

    none_there = write_json(files / "n.json", {missing: "a bird"})
    ran = score("pacs", "--on-error", "nan", "--candidates", none_there)
    assert ran.status == 2 and "1 of 1 ids" in ran.err


def test_status_1_when_no_caption_has_a_score(score: Score, files: Path) -> None:
    for image in (files / "images").iterdir():
        image.write_bytes(b"no image")
    ran = score("pacs", "--on-error", "nan")
    assert ran.status == 1
    assert ran.out.startswith(
        "PAC-S      n/a\ninterval   none: an interval needs at least 5 images with a score, found 0"
    )


def test_empty_captions_are_named_or_scored(score: Score, files: Path) -> None:
    content = {"dog.1": ["a dog", ""], "dog.2": " ", "COCO_val2014_000000000042": "a cat"}
    captions = write_json(files / "c.json", content)
    ran = score("pacs", "--candidates", captions)
    assert ran.status == 2
    assert ran.err.splitlines() == [
        "capeval: 2 problems with the input:",
        "  caption 2 of 'dog.1' is empty: write a caption or pass --empty score",
        "  caption of 'dog.2' is empty (only whitespace): write a caption or pass --empty score",
    ]
    ran = score("pacs", "--candidates", captions, "--empty", "score")
    assert ran.status == 0
    assert "2 empty" in ran.out


def test_empty_references_are_named(score: Score, files: Path) -> None:
    references = write_json(files / "r.json", {**REFERENCES, "42": ["rain", ""]})
    ran = score("refpacs", "--references", references)
    assert ran.status == 2
    assert ran.err.startswith("capeval: reference 2 of '42' is empty: ")


WRONG: dict[str, tuple[list[str], str]] = {
    "no metric": ([], f"the metric comes first: capeval score {{{','.join(METRICS)}}} ..."),
    "metric last": (["--images", "x", "pacs"], "the metric comes first"),
    "unknown metric": (["pasc"], "unknown metric 'pasc': did you mean 'pacs'?"),
    "no files": (["pacs"], "the following arguments are required: --candidates, --images"),
    "no references": (["refpacs", "--candidates", "c", "--images", "i"], "are required: --references"),
    "unknown flag": (
        ["pacs", "--candidate", "c"],
        "unknown option --candidate: did you mean '--candidates'?",
    ),
    "no number": (
        ["pacs", "--candidates", "c", "--images", "i", "--w", "x"],
        "--w x: expected a number",
    ),
    "wrong choice": (
        ["pacs", "--candidates", "c", "--images", "i", "--dtype", "float23"],
        "--dtype float23: expected 'float32' or 'bfloat16' or 'float16': did you mean 'float32'?",
    ),
    "out of range": (["pacs", "--candidates", "c", "--images", "i", "--batch-size=0"], "--batch-size 0: "),
    "no file": (["pacs", "--candidates", "c.json", "--images", "."], "c.json: there is no such file"),
    "no folder": (["pacs", "--candidates", "c.json", "--images", "i"], "i: there is no such folder"),
    "no place": (
        ["pacs", "--candidates", "c", "--images", "i", "--json", "no/o.json"],
        "--json no/o.json: there is no folder no",
    ),
    "no file name": (["pacs", "--candidates", "c", "--images", "i", "--json", "."], "--json . is a folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_a_message_and_status_2(case: str, capeval: Callable[..., Ran]) -> None:
    arguments, message = WRONG[case]
    ran = capeval("score", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("capeval: ") and message in ran.err


def test_ids_without_a_image_and_wrong_weights(score: Score, files: Path) -> None:
    ran = score("pacs", "--candidates", write_json(files / "c.json", {"dog.1": "x", "bird": "y"}))
    assert ran.status == 2
    assert "1 of 2 ids ('bird') has no image" in ran.err
    ran = score("pacs", "--weights", files / "nothing")
    assert ran.status == 2
    assert f"--weights {files / 'nothing'} is neither a folder" in ran.err


def test_an_unexpected_error_keeps_its_traceback(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("capeval_core.scores.pac.PacS.aggregate")
    with pytest.raises(AttributeError):
        score("pacs")


def test_weights_of_another_metric_are_warned_of(
    score: Callable[..., Ran], files: Path, seeded_weights: Path
) -> None:
    named = shutil.copytree(seeded_weights, files / "pacs-clip-vit-b-32")
    ran = score("clips", "--weights", named)
    assert ran.status == 0
    assert "warning: PAC-S, CLIP ViT-B/32 (pacs-clip-vit-b-32) is for pacs and refpacs: " in ran.err
    assert "not CLIP-S" in ran.err
    assert not score("pacs", "--weights", named).err


def test_help_shows_every_option_with_its_default(capeval: Callable[..., Ran]) -> None:
    for metric in capeval_core.list_metrics():
        ran = capeval(*(["rerank"] if metric == "eco" else ["score", metric]), "--help")
        assert ran.status == 0
        options = {one.name: one for one in describe_options(metric_class(metric).Options)}
        for flag in ("--on-error {raise,nan}", "--cache", "--rows"):
            assert flag in ran.out
        for name, flag in (("weights", "--weights"), ("batch_size", "--batch-size N")):
            assert (flag in ran.out) == (name in options)
        assert " X " in ran.out or not any(one.type == "float" for one in options.values())
        assert "None:" not in ran.out
        assert max(map(len, ran.out.splitlines())) <= 80
    assert "(default: 2.5)" in capeval("score", "clips", "--help").out
    assert "refpacs" in capeval("score", "--help").out


@dataclass(frozen=True, kw_only=True)
class ManyOptions(Options):
    idf: bool = option(True, "weigh words")
    layer: int = option(-1, "which layer, 100 % of them from the end")
    mode: Literal["fast", "exact"] = option("exact", "how")


def test_flags_follow_any_options_class() -> None:
    parser = Parser(prog="x")
    add_flags(parser, ManyOptions)
    given = parser.read(["--no-idf", "--layer", "-2", "--mode", "fast", "--evidence", "--cache", "here"])
    assert chosen(given, ManyOptions) == {
        "idf": False,
        "layer": -2,
        "mode": "fast",
        "evidence": True,
        "cache": "here",
    }
    assert chosen(parser.read([]), ManyOptions) == {}
    assert "100 % of them" in " ".join(parser.format_help().split())


def of_metric(name: str, found: Text = "", fix: Text = "", **keywords: Any) -> str:
    options = capeval_core.registry.metric_class("pacs").Options
    error = InputError(Problem(name, None, found, fix, verb="", **keywords))
    with pytest.raises(ValueError) as caught, in_words_of_the_user(options):
        raise error
    return str(caught.value)


def test_messages_speak_of_flags() -> None:
    assert of_metric("batch_size", "", "expected 1", value=0) == "--batch-size 0: expected 1"
    assert of_metric("w", "", "expected 1", value=-1.5) == "--w -1.5: expected 1"
    assert of_metric("rows", "nothing there", value="") == "--rows '': nothing there"
    assert of_metric("", "x", Setting("weights", "a b/c", "pass ")) == "x: pass --weights 'a b/c'"
    assert of_metric("", "x", (Setting("weights", "tiny", "pass "), " (it")) == "x: pass --weights tiny (it"
    assert of_metric("", ("len(", Argument("captions"), ")=3 but row=4")) == "len(captions)=3 but row=4"
    assert of_metric("cherries", "red", value=3) == "cherries=3: red"  # no option of the metric
    assert of_metric("", "weights='a' is what a program says") == "weights='a' is what a program says"


def test_rows_are_named_by_the_ids_of_their_images() -> None:
    words = FlagWords(Options, ["dog", "dog", "cat"])
    assert words.line(Problem("captions", 1, "empty")) == "caption 2 of 'dog' is empty"
    assert words.line(Problem("captions", (2, 3), "empty")) == "caption 4 of 'cat' is empty"
    assert words.line(Problem("captions", 2, "empty")) == "caption of 'cat' is empty"
    assert words.line(Problem("references", (0, 1), "empty")) == "reference 2 of 'dog' is empty"
    assert words.line(Problem("references", 0, "empty")) == "references of 'dog' is empty"
    broken = Problem("images", 0, "cannot decode 'x.jpg'", verb="")
    assert words.line(broken, [0, 1]) == "image of 'dog': cannot decode 'x.jpg'"  # one image, two captions
    assert words.line(Problem("images", 7, "empty")) == "images[7] is empty"  # of no id


def test_a_mean_beyond_the_range_of_numbers_is_null_in_the_file(scored: Scored, files: Path) -> None:
    captions = write_json(files / "many.json", {"dog.1": [f"a dog {i}" for i in range(40)]})
    content = scored("pacs", "--candidates", captions, "--w", "1.7e308")  # read strictly
    assert any(score is not None and score > 1e306 for score in content["scores"])
    assert content["mean"] is None and content["interval"] is None
