"""`capeval score` and `compare` of several systems by several metrics."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.commands.systems import names_of_files
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.sources import OnDisk
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class
from capeval_core.result import Result
from capeval_core.scores.ngram.cider import Cider
from capeval_core.scores.pac import PacS
from capeval_core.statistics import holm
from capeval_core.values import signed
from tests.cli.conftest import Ran, refuse_token

Run = Callable[..., Ran]
IDS = [f"p{i}" for i in range(7)]
COLOURS = ["red", "green", "blue", "yellow", "grey", "white", "black"]
SYSTEMS = {
    "A": {name: f"a {colour} house" for name, colour in zip(IDS, COLOURS, strict=True)},
    "B": dict.fromkeys(IDS, "a red circle"),
    "C": {name: f"{colour}" for name, colour in zip(IDS, reversed(COLOURS), strict=True)},
}
REFERENCES = {
    name: [f"a {colour} wall", f"the wall is {colour}"] for name, colour in zip(IDS, COLOURS, strict=True)
}
METRICS = "pacs,refpacs,cider,rougel"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A.json, B.json and C.json, refs.json, and images/ of seven plain pictures."""
    (tmp_path / "images").mkdir()
    for i, name in enumerate(IDS):
        colour = (36 * i, 200 - 20 * i, (90 * i) % 256)
        Image.new("RGB", (40, 30), colour).save(tmp_path / "images" / f"{name}.png")
    for name, captions in {**SYSTEMS, "refs": REFERENCES}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(captions))
    return tmp_path


@pytest.fixture
def score(capeval: Run, folder: Path) -> Run:
    """`capeval score METRICS` of systems, with the small weights."""

    def run(metrics: str, systems: str, *arguments: object) -> Ran:
        candidates = [folder / f"{name}.json" for name in systems.split()]
        given: list[object] = ["--candidates", *candidates]
        if "--images" not in arguments:
            given += ["--images", folder / "images"]
        if any(metric_class(name).needs_references for name in metrics.split(",")):
            given += ["--references", folder / "refs.json"]
        if not set(metrics.split(",")) <= {"cider", "bleu"}:
            given += ["--weights", "tiny"]
        return capeval("score", metrics, *given, "--device", "cpu", *arguments)

    return run


def written(path: Path) -> Any:
    return json.loads(path.read_text(), parse_constant=refuse_token)


def results(content: Any) -> dict[tuple[str, str], Result]:
    """The results of a file of --json by system and metric."""
    return {
        (system["system"], one["metric"]): Result.from_dict(one)
        for system in content["systems"]
        for one in system["results"]
    }


def test_numbers_intervals_and_tests_are_the_library_s(score: Run, folder: Path) -> None:
    ran = score(METRICS, "A B C", "--json", folder / "out.json")
    assert (ran.status, ran.err) == (0, "")
    content = written(folder / "out.json")
    found = results(content)
    assert list(found) == [(system, metric) for system in "ABC" for metric in METRICS.split(",")]
    for metric in METRICS.split(","):
        weights = {} if metric in ("cider", "rougel") else {"weights": "tiny", "device": "cpu"}
        opened = capeval_core.load(metric, **weights)
        alone = {}
        for name, captions in SYSTEMS.items():
            paths = [folder / "images" / f"{one}.png" for one in captions]
            references = list(REFERENCES.values()) if opened.needs_references else None
            images = paths if opened.media else None
            alone[name] = opened.score(list(captions.values()), images, references)
            result = found[name, metric]
            assert result.scores == pytest.approx(alone[name].scores, abs=1e-6)
            assert result.signature == alone[name].signature
        tests = {name: alone[name].compare(alone["A"]) for name in "BC"}
        adjusted = holm([test.p_value for test in tests.values()])
        for (name, test), p_value in zip(tests.items(), adjusted, strict=True):
            (system,) = (one for one in content["systems"] if one["system"] == name)
            (saved,) = (one["test"] for one in system["results"] if one["metric"] == metric)
            # A system of equal scores has a difference of rounding alone.
            assert saved["difference"] == pytest.approx(test.difference, abs=1e-6)
            assert saved["p_value"] == pytest.approx(test.p_value, rel=1e-3, abs=1e-9)
            assert saved["adjusted"] == pytest.approx(p_value, rel=1e-3, abs=1e-9)
            assert saved["significant"] == (saved["adjusted"] < 0.05)
    first = content["systems"][0]
    assert (first["ids"], first["captions"]) == (IDS, list(SYSTEMS["A"].values()))
    assert "Holm's correction for the 2 systems" in content["correction"] and content["baseline"] == "A"


def test_the_table_says_what_its_signs_mean(score: Run) -> None:
    lines = score("pacs,refpacs", "A B C").out.splitlines()
    assert re.split(r"  +", lines[0]) == ["system", "PAC-S", "RefPAC-S"]
    assert [line.split()[0] for line in lines if line[:1] in "ABC" and line[1:2] == " "] == ["A", "B", "C"]
    assert "95% intervals of the means, by image" in lines
    marks = [line for line in lines if line.startswith("*: ")]
    assert marks == [
        "*: differs from A (p < 0.05, paired t-test, clustered by image, Holm's correction for the 2 systems "
        "that each metric tests)"
    ]
    assert sum(line.startswith("capeval:") for line in lines) == 2


def test_the_order_of_systems_changes_nothing_but_the_order(score: Run, folder: Path) -> None:
    found = []
    for order in ("A B C", "C A B"):
        assert score("pacs,cider", order, "--baseline", "B", "--json", folder / "out.json").status == 0
        content = written(folder / "out.json")
        found.append(
            {s["system"]: [(r["mean"], r["test"]) for r in s["results"]] for s in content["systems"]}
        )
        assert [system["system"] for system in content["systems"]] == order.split()
    for name, cells in found[0].items():
        for (mean, test), (other_mean, other_test) in zip(cells, found[1][name], strict=True):
            assert mean == pytest.approx(other_mean, abs=1e-6)
            assert (test is None) == (other_test is None) == (name == "B")
            if test:
                assert test == pytest.approx(other_test, rel=1e-3, abs=1e-6)


def test_csv_and_json_parse_back(score: Run, folder: Path) -> None:
    ran = score("pacs,cider", "A B", "--format", "json", "--json", folder / "out.json")
    whole, printed = written(folder / "out.json"), json.loads(ran.out, parse_constant=refuse_token)
    rows = list(csv.DictReader(io.StringIO(score("pacs,cider", "A B", "--format", "csv").out)))
    assert [(row["system"], row["metric"]) for row in rows] == list(results(whole))
    cells = [one for system in printed["systems"] for one in system["results"]]
    for row, cell, result in zip(rows, cells, results(whole).values(), strict=True):
        assert float(row["mean"]) == cell["mean"] == pytest.approx(result.mean, abs=1e-6)
        assert float(row["low"]) == cell["interval"]["low"] <= cell["mean"] <= float(row["high"])
        assert row["signature"] == cell["signature"] == result.signature
        assert (row["captions"], row["failed"]) == ("7", "0") and "scores" not in cell
    assert [row["baseline"] for row in rows] == ["", "", "A", "A"]
    for row, cell in list(zip(rows, cells, strict=True))[2:]:
        assert float(row["p_holm"]) == cell["test"]["adjusted"] >= float(row["p"])
        assert row["significant"] == str(cell["test"]["significant"]).lower() and row["compared"] == "7"


def test_markdown_and_latex_are_whole_tables(score: Run, folder: Path) -> None:
    (folder / "A_50%.json").write_text(json.dumps(SYSTEMS["A"]))
    markdown = [
        line.split("|") for line in score("cider,bleu", "A_50% B", "--format", "markdown").out.splitlines()
    ]
    rows = [line for line in markdown if line[0] == "" and len(line) > 1]
    assert {len(row) for row in rows} == {5}
    assert [row[1].strip() for row in rows] == ["system", "---", "A_50%", "B"]
    latex = score("cider,bleu", "A_50% B", "--format", "latex").out
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrr}" and body[-1] == r"\end{tabular}"
    cells = [line for line in body if line.endswith(r"\\")]
    assert [line.count("&") for line in cells] == [2, 2, 2]
    assert cells[1].startswith(r"A\_50\% &")
    assert not re.search(r"(?<!\\)[%_#$]", "\n".join(body))  # what LaTeX would take for its own


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, class_: type[CaptionMetric]) -> Iterator[list[Samples]]:
    """The batches that a metric encodes."""
    batches: list[Samples] = []
    encode = class_.encode

    def record(self: Any, batch: Samples) -> Any:
        batches.append(batch)
        return encode(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(class_, "encode", record)
        yield batches


def test_rows_are_kept_by_metric_and_system_and_reused(
    score: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = folder / "rows"
    first = score("pacs,cider", "A B", "--rows", rows, "--format", "csv")
    assert (first.status, first.err) == (0, "")
    assert sorted(path.relative_to(rows).as_posix() for path in rows.glob("*/*")) == [
        "cider/A", "cider/B", "pacs/A", "pacs/B"
    ]  # fmt: skip
    with recorded(monkeypatch, PacS) as batches:
        again = score("pacs,cider", "A B", "--rows", rows, "--format", "csv")
        more = score("pacs,cider", "A C B", "--rows", rows)
    assert again.out == first.out and again.err == f"capeval: 28 of 28 rows were in {rows}\n"
    assert more.err == f"capeval: 28 of 42 rows were in {rows}\n"
    assert [batch.captions for batch in batches] == [list(SYSTEMS["C"].values())]
    single = score("pacs", "A", "--rows", rows / "pacs" / "A")
    assert single.err == f"capeval: 7 of 7 rows were in {rows / 'pacs' / 'A'}\n"
    (folder / "file").touch()
    ran = score("pacs,cider", "A B", "--rows", folder / "file")
    assert (ran.status, ran.out) == (2, "") and f"--rows {folder / 'file' / 'pacs' / 'A'}" in ran.err


def test_systems_of_different_images_are_weighed_by_one_table(score: Run, folder: Path) -> None:
    for name, ids in (("few", IDS[:6]), ("rest", IDS[1:])):
        (folder / f"{name}.json").write_text(json.dumps({one: SYSTEMS["A"][one] for one in ids}))
    for order in ("few rest", "rest few"):
        assert score("cider", order, "--json", folder / f"{order}.json").status == 0
    (few, rest), (rest2, few2) = (
        results(written(folder / f"{o}.json")).values() for o in ("few rest", "rest few")
    )
    assert few.signature == rest.signature == few2.signature and few.scores == few2.scores
    assert rest.scores == rest2.scores
    whole = Cider(Cider.Options()).prepare(list(REFERENCES.values()))  # each image once
    assert f"statistics:{whole.fingerprint}" in few.signature
    for name in ("few", "rest"):
        assert score("cider", name, "--json", folder / f"{name}.out").status == 0


def test_compare_refuses_what_was_weighed_by_different_texts(score: Run, capeval: Run, folder: Path) -> None:
    for name, ids in (("few", IDS[:6]), ("rest", IDS[1:])):
        (folder / f"{name}.json").write_text(json.dumps({one: SYSTEMS["A"][one] for one in ids}))
        score("cider", name, "--json", folder / f"{name}.out")
    ran = capeval("compare", folder / "few.out", folder / "rest.out")
    assert (ran.status, ran.out) == (2, "")
    assert "score both in one command" in ran.err and "statistics=" not in ran.err
    score("cider", "few rest", "--json", folder / "both.out")
    assert capeval("compare", folder / "both.out").status == 0


def test_compare_gives_the_table_that_score_gave(score: Run, capeval: Run, folder: Path) -> None:
    ran = score("pacs,bleu", "A B C", "--baseline", "C", "--json", folder / "out.json", "--format", "csv")
    again = capeval("compare", folder / "out.json", "--baseline", "C", "--format", "csv")
    assert (again.status, again.out, again.err) == (0, ran.out, "")
    for name in "ABC":
        score("pacs", name, "--json", folder / f"{name}.out")
    files = [folder / f"{name}.out" for name in "ABC"]
    three = capeval("compare", *files, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(three.out)))
    assert [(row["system"], row["baseline"]) for row in rows] == [("A", ""), ("B", "A"), ("C", "A")]
    ran = capeval("compare", files[0], folder / "out.json")
    assert ran.status == 2 and "score both by the same metrics" in ran.err
    ran = capeval("compare", files[0])
    assert ran.status == 2 and "holds one system" in ran.err
    ran = capeval("compare", files[0], files[1], files[0])
    assert ran.status == 2 and "comes twice" in ran.err
    ran = capeval("compare", files[0], files[0])
    assert ran.status == 0 and "difference  +0.0000" in ran.out


def test_a_report_is_written_of_one_system_and_of_several(score: Run, capeval: Run, folder: Path) -> None:
    ran = score("pacs", "A", "--report", folder / "one")
    assert ran.status == 0 and ran.out.endswith(f"report  {folder / 'one' / 'index.html'}\n")
    ran = score("pacs,cider", "A B", "--report", folder / "two", "--json", folder / "out.json")
    page = (folder / "two" / "index.html").read_text()
    assert "a red circle" in page and "data:image/" in page
    assert capeval("compare", folder / "out.json", "--report", folder / "three").status == 0
    assert "data:image/" not in (folder / "three" / "index.html").read_text()
    images = ["--images", folder / "images"]
    assert capeval("compare", folder / "out.json", "--report", folder / "three", *images).status == 0
    assert "data:image/" in (folder / "three" / "index.html").read_text()
    ran = score("pacs", "A", "--weights", folder / "none", "--report", folder / "A.json")
    assert ran.status == 2 and "A.json is a file" in ran.err  # before weights are opened


def test_few_images_have_means_and_no_test(score: Run, folder: Path) -> None:
    for name in "AB":
        (folder / f"few{name}.json").write_text(json.dumps({one: SYSTEMS[name][one] for one in IDS[:3]}))
    ran = score("pacs,cider", "fewA fewB")
    assert ran.status == 0 and "*" not in ran.out.split("\n\n")[0]
    (line,) = (line for line in ran.out.splitlines() if "a comparison needs" in line)
    assert line.startswith("fewB: ") and "found 3" in line
    (line,) = (line for line in ran.out.splitlines() if "an interval needs" in line)
    assert line.startswith("an interval needs")  # of all systems and metrics


def test_bleu_without_a_match_is_neither_tested_nor_marked_as_best(
    score: Run, capeval: Run, folder: Path
) -> None:
    """No caption has four words in a row of a reference: what differs is what COCO adds to counts."""
    ran = score("bleu,cider", "A B C", "--json", folder / "out.json", "--report", folder / "report")
    assert ran.status == 0 and "bleu_4 has no interval: no caption has four words in a row" in ran.out
    content = written(folder / "out.json")
    for system in content["systems"]:
        bleu, cider = system["results"]
        assert (bleu["test"], bleu["interval"], bleu["mean"] > 0) == (None, None, True)
        assert cider["interval"] is not None and (cider["test"] is None) == (system["system"] == "A")
    cells = [re.split(r"  +", line)[1] for line in ran.out.splitlines() if re.match(r"[ABC]  ", line)]
    assert cells == ["0.0000"] * 3 and "bleu_4 has no test: in both systems" in ran.out
    page = (folder / "report" / "index.html").read_text()
    best = re.findall(r'<td class="best" data-title="(.*?)"', page)
    assert best == ["CIDEr (unclipped)"]
    assert "BLEU-4" not in "".join(re.findall(r'<p class="verdict">.*?</p>', page))
    captions = {name: f"the wall is {colour} here" for name, colour in zip(IDS, COLOURS, strict=True)}
    (folder / "D.json").write_text(json.dumps(captions))
    for baseline, system in (("D", "A"), ("A", "D")):
        ran = score("bleu", f"{baseline} {system}", "--json", folder / "out.json")
        first, second = (one["results"][0] for one in written(folder / "out.json")["systems"])
        assert first["test"] is second["test"] is None and "in one of the systems" in ran.out
    files = [folder / f"{name}-bleu.json" for name in "AB"]
    for name, file in zip("AB", files, strict=True):
        score("bleu", name, "--json", file)
    ran = capeval("compare", *files)
    assert ran.status == 0 and "test        none: bleu_4 has no test" in ran.out


def test_failures_are_said_once_for_all_metrics(score: Run, folder: Path) -> None:
    (folder / "images" / "p0.png").write_bytes(b"no image")
    (folder / "A.json").write_text(json.dumps(SYSTEMS["A"] | {"p0": ["a", "b"]}))
    ran = score("pacs,refpacs", "A B")
    assert (ran.status, ran.out) == (2, "") and ran.err.startswith("capeval: image of 'p0': ")
    assert ran.err.count("image of 'p0'") == 1
    ran = score("pacs,refpacs,cider", "A B", "--on-error", "nan")
    assert ran.status == 0
    assert re.findall(r"\d of \d captions of '\w' failed|\(\d captions of 'A'\)", ran.err) == [
        "2 of 8 captions of 'A' failed", "(2 captions of 'A')", "1 of 7 captions of 'B' failed"
    ]  # fmt: skip


def test_options_are_for_all_or_for_one(score: Run, folder: Path) -> None:
    out = folder / "out.json"
    assert score("pacs,refpacs,cider", "A", "--w", "3", "--set", "refpacs.w=1", "--json", out).status == 0
    signatures = {metric: result.signature for (_, metric), result in results(written(out)).items()}
    assert "|w:3|" in signatures["pacs"] and "|w:1|" in signatures["refpacs"]
    ran = score("pacs,refpacs", "A", "--set", f"refpacs.weights={folder / 'none'}")
    assert ran.status == 2 and f"--weights {folder / 'none'} is neither a folder" in ran.err


WRONG: dict[str, tuple[str, str, list[str], str]] = {
    "reranker": ("pacs,eco", "A", [], "use `capeval rerank`, which writes the chosen ones; leave eco out"),
    "twice": ("pacs,cider,pacs", "A", [], "pacs,cider,pacs: pacs comes twice, name each metric once"),
    "option of none": ("pacs,cider", "A", ["--layer", "3"], "--layer is an option of vilbertscore, not of"),
    "weights of none": ("cider,bleu", "A", ["--weights", "tiny"], "--weights: cider,bleu have no weights"),
    "number": ("pacs,clips", "A", ["--set", "clips.w=x"], "--set clips.w='x': expected float"),
    "of one": (
        "pacs,clips",
        "A",
        ["--w", "clips=2"],
        "option of one metric is --set clips.w=2",
    ),
    "of one without it": ("pacs,bleu", "A", ["--w", "bleu=2"], "is --set bleu.w=2"),
    "set": (
        "pacs,clips",
        "A",
        ["--set", "w=2"],
        "--set w=2: expected METRIC.OPTION=VALUE",
    ),
    "set of others": (
        "pacs,clips",
        "A",
        ["--set", "clip.w=2"],
        "among the metrics: did you mean 'clips'?",
    ),
    "set of none": ("pacs,clips", "A", ["--set", "clips.lair=2"], "clips has no option 'lair'"),
    "range": ("pacs,clips", "A", ["--batch-size", "0"], "--batch-size 0: expected a number of at least 1"),
    "one caption": (
        "pacs,cider",
        "A empty",
        [],
        "caption of 'p0' in 'empty' is empty (only",
    ),
    "same file": ("pacs", "A A", [], "comes twice: name each system once"),
    "no file": ("pacs", "A none", [], "none.json: there is no such file"),
    "baseline": (
        "pacs",
        "A B",
        ["--baseline", "a"],
        "there is no such system (there are A, B)",
    ),
    "one system": ("pacs", "A", ["--baseline", "A"], "--baseline A: there is one system only"),
    "explain": ("hices", "A B", ["--explain", "x"], "--explain draws one system by one metric"),
    "format": ("pacs", "A B", ["--format", "xml"], "--format: invalid choice: 'xml'"),
    "media": ("pacs,clips", "A", ["--media", "video"], "clips is no metric on it; pacs and refpacs have it"),
    "overwritten": ("pacs", "A B", ["--json", "B.json"], "is the file of --candidates, which it would"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_before_weights_are_opened(
    case: str, score: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, systems, arguments, message = WRONG[case]
    (folder / "empty.json").write_text(json.dumps(SYSTEMS["A"] | {"p0": " "}))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(CaptionMetric, "__init__", None)  # opening any metric fails
    ran = score(metrics, systems, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in " ".join(ran.err.split())


def test_all_missing_weights_are_said_with_the_metric_that_they_are_for(
    capeval: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = ["--candidates", folder / "A.json", "--images", folder / "images"]
    ran = capeval("score", "pacs,clips", *files)
    assert ran.status == 2
    assert "pass --set pacs.weights=pacs-clip-vit-b-32" in ran.err and "pass --set clips.weights=" in ran.err


def test_an_unknown_metric_among_several_is_named(capeval: Run) -> None:
    ran = capeval("score", "pacs,cidr", "--candidates", "x.json")
    assert ran.status == 2 and "unknown metric 'cidr': did you mean 'cider'?" in ran.err


def test_systems_are_named_by_as_many_folders_as_tell_them_apart(tmp_path: Path) -> None:
    assert names_of_files("x", ["a.json", "-"]) == ["a", "stdin"]
    assert names_of_files("x", ["m/a/v.json", "n/a/v.json", "w.csv"]) == ["m/a/v", "n/a/v", "w"]
    assert names_of_files("x", ["v.json", "v.csv"]) == ["v.json", "v.csv"]
    with pytest.raises(ValueError, match="comes twice"):
        names_of_files("x", ["a/../v.json", "v.json"])


def test_references_of_a_metric_that_needs_none_are_not_in_its_help(capeval: Run) -> None:
    assert "--references" not in capeval("score", "hices", "--help").out
    assert "--references FILE" in capeval("score", "hices,cider", "--help").out
    several = " ".join(capeval("score", "pacs,clips,cider", "--help").out.split())
    assert "pacs: scale of the score, w of eq. 1 (default: 2.0); clips: scale of the score" in several
    assert "Holm's correction adjusts the p-values of one metric" in several


def test_equal_references_of_two_images_are_two_images(score: Run, folder: Path) -> None:
    (folder / "refs.json").write_text(json.dumps({name: ["a wall"] for name in IDS}))
    ran = score("cider,bleu", "A B")
    assert "an interval needs" not in ran.out and "a comparison needs" not in ran.out


def test_on_a_terminal_each_step_is_named_before_the_bar(
    score: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert score("pacs,cider", "A B").err == ""  # in a log or a pipe there is nothing to read
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lines = re.split(r"[\r\n]+", score("pacs,cider", "A B").err)
    steps = [line for line in lines if line.startswith("capeval: ")]
    assert steps == [
        "capeval: loading ...",
        f"capeval: reading {folder / 'A.json'} ...",
        f"capeval: reading {folder / 'B.json'} ...",
        "capeval: opening pacs ...",
        "capeval: opening cider ...",
    ]
    assert next(i for i, line in enumerate(lines) if line.startswith("pacs, cider:")) >= len(steps)
    assert any(re.match(r"checking: 100%.* 7/7 ", line) for line in lines)


def test_each_picture_is_checked_once_for_all(score: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    decode = OnDisk.decode

    def record(self: OnDisk, reduced: bool = False) -> Any:
        checked.extend([self.path] if reduced else [])
        return decode(self, reduced)

    monkeypatch.setattr(OnDisk, "decode", record)
    assert score("pacs,refpacs,umic", "A B").status == 0
    assert len(checked) == len(IDS) == len(set(checked))


def test_on_the_command_line_no_python_is_asked_for(score: Run) -> None:
    for metric in ("hices", "umic"):
        ran = score(metric, "A", "--regions", "no such source")
        assert ran.status == 2 and "--regions" in ran.err
        assert "RegionSource" not in ran.err and "RegionEncoder" not in ran.err
    with pytest.raises(ValueError, match="or a RegionSource"):
        capeval_core.load("hices", weights="tiny", regions="no such source")


def test_systems_of_images_with_other_numbers_of_references_are_tested(score: Run, folder: Path) -> None:
    (folder / "refs.json").write_text(json.dumps(REFERENCES | {"p0": ["a wall"]}))
    (folder / "rest.json").write_text(json.dumps({one: SYSTEMS["B"][one] for one in IDS[1:]}))
    assert score("refpacs", "A rest", "--json", folder / "out.json").status == 0
    first, second = results(written(folder / "out.json")).values()
    assert "|refs:1-2|" in first.signature and "|refs:2|" in second.signature
    content = written(folder / "out.json")
    test = content["systems"][1]["results"][0]["test"]
    assert (test["count"], test["left_out"]) == (6, 1)
    (message,) = content["messages"]
    assert message == (
        "rest: 1 image has a score in only one of system and baseline ('p0'): the test is over the 6 "
        f"that both have, where the difference is {signed(test['difference'])}; the means are over all"
    )
    common = np.subtract(second.scores, first.scores[1:])
    assert test["difference"] == pytest.approx(common.mean(), abs=1e-6)
    percent = f"the difference is {signed(100 * test['difference'], 2, 8)};"
    assert percent in " ".join(score("refpacs", "A rest", "--times-100").out.split())


def test_images_without_a_caption_are_counted(score: Run, folder: Path) -> None:
    (folder / "rest.json").write_text(json.dumps({one: SYSTEMS["B"][one] for one in IDS[1:]}))
    (folder / "two.json").write_text(json.dumps({one: SYSTEMS["B"][one] for one in IDS[:2]}))
    assert "note: 1 image of the folder has no caption ('p0')\n" in score("pacs", "rest").err
    assert "no caption" not in score("pacs", "A rest").err
    assert "note: 5 images of the folder have no caption\n" in score("pacs", "two").err
