"""`capeval score` and `compare`: systems by metrics, kept rows, drawings and pages."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import capeval_core
from capeval_core.registry import metric_class
from capeval_core.result import Result
from capeval_core.statistics import holm
from capeval_core.testing import count_forwards
from tests.cli.conftest import REFERENCES, Capeval, Ran, read_json, write_json

IDS = [f"p{i}" for i in range(7)]
COLOURS = ["red", "green", "blue", "yellow", "grey", "white", "black"]
SYSTEMS = {
    "A": {name: f"a {colour} house" for name, colour in zip(IDS, COLOURS, strict=True)},
    "B": dict.fromkeys(IDS, "a red circle"),
    "C": {name: f"{colour}" for name, colour in zip(IDS, reversed(COLOURS), strict=True)},
}
WALLS = {
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
    for name, captions in {**SYSTEMS, "refs": WALLS}.items():
        write_json(tmp_path / f"{name}.json", captions)
    return tmp_path


@pytest.fixture
def systems(capeval: Capeval, folder: Path) -> Capeval:
    """`capeval score METRICS` of systems, with the small weights."""

    def run(metrics: str, names: str, *arguments: object) -> Ran:
        given: list[object] = ["--candidates", *(folder / f"{name}.json" for name in names.split())]
        classes = [metric_class(name) for name in metrics.split(",")]
        if any(metric.media for metric in classes):
            given += ["--images", folder / "images", "--weights", "tiny"]
        if any(metric.needs_references for metric in classes):
            given += ["--references", folder / "refs.json"]
        return capeval("score", metrics, *given, "--device", "cpu", *arguments)

    return run


def results(path: Path) -> dict[tuple[str, str], Result]:
    """The results of a file of --json by system and metric."""
    return {
        (system["system"], one["metric"]): Result.from_dict(one)
        for system in read_json(path)["systems"]
        for one in system["results"]
    }


def test_numbers_and_tests_are_the_library_s(systems: Capeval, folder: Path) -> None:
    assert systems(METRICS, "A B C", "--json", folder / "out.json").status == 0
    content, found = read_json(folder / "out.json"), results(folder / "out.json")
    assert list(found) == [(system, metric) for system in "ABC" for metric in METRICS.split(",")]
    for metric in METRICS.split(","):
        texts = metric in ("cider", "rougel")
        opened = capeval_core.load(metric, **({} if texts else {"weights": "tiny", "device": "cpu"}))
        images = None if texts else [folder / "images" / f"{one}.png" for one in IDS]
        references = list(WALLS.values()) if opened.needs_references else None
        alone = {n: opened.score(list(texts.values()), images, references) for n, texts in SYSTEMS.items()}
        for name, result in alone.items():
            assert found[name, metric].scores == pytest.approx(result.scores, abs=1e-6)
            assert found[name, metric].signature == result.signature
        tests = {name: alone[name].compare(alone["A"]) for name in "BC"}
        adjusted = holm([test.p_value for test in tests.values()])
        for (name, test), p_value in zip(tests.items(), adjusted, strict=True):
            (system,) = (one for one in content["systems"] if one["system"] == name)
            (saved,) = (one["test"] for one in system["results"] if one["metric"] == metric)
            # A system of equal scores has a difference of rounding alone.
            assert saved["difference"] == pytest.approx(test.difference, abs=1e-6)
            assert saved["adjusted"] == pytest.approx(p_value, rel=1e-3, abs=1e-9)
            assert saved["significant"] == (saved["adjusted"] < 0.05)
    assert (content["systems"][0]["ids"], content["baseline"]) == (IDS, "A")


def test_systems_of_different_images_are_weighed_by_one_table(systems: Capeval, folder: Path) -> None:
    for name, ids in (("few", IDS[:6]), ("rest", IDS[1:])):
        write_json(folder / f"{name}.json", {one: SYSTEMS["A"][one] for one in ids})
    found = []
    for order in ("few rest", "rest few"):
        assert systems("cider", order, "--json", folder / "out.json").status == 0
        found.append({system: result for (system, _), result in results(folder / "out.json").items()})
    assert len({result.signature for run in found for result in run.values()}) == 1
    assert all(found[0][name].scores == found[1][name].scores for name in ("few", "rest"))


def test_each_picture_is_encoded_once_and_fails_once(systems: Capeval, folder: Path) -> None:
    (folder / "images" / "p0.png").write_bytes(b"no image")
    write_json(folder / "A.json", SYSTEMS["A"] | {"p0": ["a", "b"]})
    ran = systems("pacs,refpacs", "A B")
    assert (ran.status, ran.out) == (2, "") and ran.err.count("image of 'p0'") == 1
    opened = capeval_core.load("pacs", weights="tiny", device="cpu")
    with count_forwards() as counts:
        ran = systems("pacs,refpacs,cider", "A B", "--on-error", "nan", "--cache", folder / "cache")
    texts = {
        "a",
        "b",
        *(text for name, text in SYSTEMS["A"].items() if name != "p0"),
        *SYSTEMS["B"].values(),
        *(t for own in WALLS.values() for t in own),
    }
    assert ran.status == 0 and counts.items == 6 + len(texts) and opened
    found = re.findall(r"\d of \d captions of '\w' failed|image of 'p0'|\(\d captions of 'A'\)", ran.err)
    reasons = ["image of 'p0'", "(2 captions of 'A')"]
    failed = [f"{share} captions of {name!r} failed" for share, name in (("2 of 8", "A"), ("1 of 7", "B"))]
    assert found == [failed[0], *reasons, failed[1], reasons[0]]
    write_json(folder / "C.json", {"p0": "a"})
    assert systems("pacs", "A C", "--set", "pacs.on-error=nan").status == 0  # C has no score, but A has
    alone = systems("pacs", "C", "--set", "pacs.on_error=nan")
    assert alone.status == 1 and re.search(
        r"^captions +1 \(1 failed, 0 truncated, 0 empty\)$", alone.out, re.M
    )


def test_weights_are_read_only_if_a_row_is_missing(capeval: Capeval, folder: Path, tmp_path: Path) -> None:
    """Tensors that are damaged later change nothing that is kept, and nothing is computed with them."""
    tiny = Path(capeval_core.__file__).parent / "weights" / "tiny" / "pacs"
    weights = Path(shutil.copytree(tiny, tmp_path / "weights"))
    out = tmp_path / "scores.json"
    files = ["--candidates", folder / "A.json", "--images", folder / "images", "--device", "cpu"]
    command = ["score", "pacs", *files, "--weights", weights, "--rows", tmp_path / "rows", "--json", out]
    assert capeval(*command).status == 0
    first = read_json(out)
    (weights / "model.safetensors").write_bytes(b"damaged")
    again = capeval(*command)
    assert (again.status, read_json(out)) == (0, first) and "7 of 7 rows were in" in again.err
    write_json(folder / "A.json", {**SYSTEMS["A"], IDS[3]: "another caption"})
    missing = capeval(*command)
    assert missing.status == 2 and "model.safetensors" in missing.err


def test_a_second_system_is_scored_beside_the_rows_of_the_first(systems: Capeval, folder: Path) -> None:
    kept = ["--rows", folder / "rows"]
    assert systems("pacs", "A", *kept, "--quiet").err == ""
    assert "7 of 14 rows were in" in systems("pacs", "A B", *kept).err
    assert "14 of 14 rows were in" in systems("pacs", "A B", *kept).err
    # A caption has a row by each metric.
    assert systems("rougel,bleu", "A", *kept, "--quiet").err == ""
    assert "14 of 28 rows were in" in systems("rougel,bleu", "A B", *kept).err


def test_copies_of_an_image_and_captions_of_one_are_one_in_intervals(systems: Capeval, folder: Path) -> None:
    Image.new("RGB", (40, 30)).save(folder / "images" / "more.png")
    (folder / "images" / "notes.txt").write_text("no image")
    write_json(folder / "A.json", SYSTEMS["A"] | {"p0": ["a red house", "a dog"]})
    for copies, are in ((["p6"], "is equal to another"), (["p4", "p6"], "are equal to others")):
        for name in copies:
            shutil.copy(folder / "images" / "p0.png", folder / "images" / f"{name}.png")
        ran = systems("clips,rougel", "A B", "--json", folder / "out.json")
        assert ran.status == 0 and ran.err.count("warning:") == 1
        assert "note: 1 of 8 images of the folder have no caption ('more')" in ran.err
        assert f"{len(copies)} of 7 images {are}, e.g. '{copies[0]}' to 'p0'" in ran.err
    found = results(folder / "out.json")
    counts = {key: (result.counts.captions, result.interval().images) for key, result in found.items()}
    # ROUGE-L looks at no image: its captions are those of an id.
    assert counts["A", "clips"] == (8, 5) and counts["A", "rougel"] == (8, 7)
    assert counts["B", "clips"] == (7, 5)
    alone = systems("rougel", "A").out
    assert re.search(r"\(95%, 7 images\)$", alone, re.MULTILINE)
    assert re.search(r"^captions +8 \(0 failed, 0 truncated, 0 empty\)$", alone, re.MULTILINE)


def test_the_baseline_is_named_by_its_system_or_its_file(
    capeval: Capeval, systems: Capeval, folder: Path
) -> None:
    means = {}
    for name, texts in SYSTEMS.items():
        scored = capeval_core.load("rougel").score(list(texts.values()), references=list(WALLS.values()))
        means[name] = scored.mean
    for baseline in ("B", folder / "B.json"):
        assert systems("rougel", "A B C", "--baseline", baseline, "--json", folder / "out.json").status == 0
        content = read_json(folder / "out.json")
        assert content["baseline"] == "B" and [one["system"] for one in content["systems"]] == [*SYSTEMS]
        for one in content["systems"]:
            test = one["results"][0]["test"]
            if one["system"] == "B":
                assert test is None
                continue
            assert test["difference"] == pytest.approx(means[one["system"]] - means["B"], abs=1e-12)
            assert test["low"] <= test["difference"] <= test["high"] and test["count"] == 7
    # Another file's systems of the same names are called by their file, too.
    shutil.copy(folder / "out.json", folder / "again.json")
    ran = capeval("compare", folder / "out.json", folder / "again.json", "--format", "csv")
    names = [line["system"] for line in csv.DictReader(ran.out.splitlines())]
    assert list(dict.fromkeys(names)) == ["A", "B", "C", "again/A", "again/B", "again/C"]
    empty = capeval("compare", folder / "out.json", write_json(folder / "none.json", {"systems": []}))
    assert empty.status == 2 and "none.json" in empty.err and "has no system" in empty.err
    other = systems("rougel", "A B", "--baseline", "D")
    assert other.status == 2 and "--baseline D" in other.err and "(there are A, B)" in other.err
    alone = systems("rougel", "A", "--baseline", "A")
    assert alone.status == 2 and "--baseline A: there is one system" in alone.err
    twice = systems("rougel", "A B A")
    assert twice.status == 2 and f"--candidates {folder / 'A.json'} comes twice" in twice.err


def test_weights_of_another_metric_are_warned_of(score: Capeval, files: Path, seeded_weights: Path) -> None:
    named = shutil.copytree(seeded_weights, files / "pacs-clip-vit-b-32")
    ran = score("clips", "--weights", named)
    assert ran.status == 0 and "is for pacs and refpacs: " in ran.err and "not CLIP-S" in ran.err
    assert not score("pacs", "--weights", named, "--quiet").err


def test_each_caption_is_drawn_with_its_numbers(score: Capeval, files: Path) -> None:
    (files / "images" / "dog.2.png").write_bytes(b"no image")
    given = ["--references", files / "references.json", "--on-error", "nan", "--explain", files / "out"]
    ran = score("refhices", *given, "--json", files / "scored.json")
    assert ran.status == 0 and f"explained  3 of 4 captions in {files / 'out'}" in ran.out
    names = ["dog.1-1", "dog.1-2", "dog.2-1", "42-1"]
    assert {path.stem for path in (files / "out").glob("*.png")} == {*names} - {"dog.2-1"}
    found = [read_json(files / "out" / f"{name}.json") for name in names]
    numbers = [f"{one['id']}-{one['number']}" for one in found]
    assert numbers == names
    evidence = read_json(files / "scored.json")["evidence"]
    for one, own in zip(found, evidence, strict=True):
        assert {key: one[key] for key in own} == own
    assert [note["reference"] for note in found[0]["compared"]] == REFERENCES["dog.1"]
    assert "cannot" in found[2]["error"] or "is not an image" in found[2]["error"]


def test_videos_are_drawn_and_named_by_their_ids(capeval: Capeval, tmp_path: Path, videos: Path) -> None:
    shutil.copytree(videos, tmp_path / "videos")
    captions = write_json(tmp_path / "c.json", {"clip1": ["a red circle", "two stars"], "clip3": "hearts"})
    places = ["--candidates", captions, "--videos", tmp_path / "videos"]
    given = [*places, "--media", "video", "--weights", "tiny"]
    assert capeval("score", "pacs", *given, "--explain", tmp_path / "drawn").status == 0
    assert Image.open(tmp_path / "drawn" / "clip1-2.png").width == 1440
    note = json.loads((tmp_path / "drawn" / "clip3-1.json").read_text())
    assert len(note["frame_cosines"]) == 5 and note["words"][1]["word"] == "hearts"
    (tmp_path / "videos" / "clip1.mp4").write_bytes(b"no video")
    (tmp_path / "videos" / "clip3" / "2.png").write_bytes(b"no image")
    ran = capeval("score", "pacs", *given)
    assert ran.status == 2 and "video of 'clip1'" in ran.err and "video of 'clip3'" in ran.err


def test_the_folder_that_a_metric_needs_is_named(capeval: Capeval, folder: Path) -> None:
    files = ["--candidates", folder / "A.json", "--references", folder / "refs.json"]
    ran = capeval("score", "rougel,clips,pacs", *files)
    assert ran.status == 2 and "--images is missing" in ran.err and "images for clips" in ran.err
    for metric, fix in (("pacs", "--images FOLDER or --media video"), ("hices", "--images FOLDER")):
        ran = capeval("score", metric, *files, "--videos", folder / "images")
        assert ran.status == 2 and ran.err.endswith(f"--videos: {metric} scores images, pass {fix}\n")
    ran = capeval("score", "rougel", *files, "--videos", folder / "images")
    assert ran.status == 0 and f"folder {folder / 'images'} is ignored" in ran.err and "rougel" in ran.err


def test_messages_call_metrics_as_the_table_does(systems: Capeval, folder: Path) -> None:
    """A system that fails by one metric of several, and scores that are small apart."""
    write_json(folder / "A.json", dict(list(SYSTEMS["A"].items())[:1]))
    ran = systems("rougel,bleu", "C A")
    assert "A by ROUGE-L" in ran.out and "by rougel" not in ran.out


@pytest.mark.parametrize("supported", [True, False])
def test_what_a_cpu_with_bfloat16_could_do_is_said(
    supported: bool, capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(f"torch.cpu.{name}", lambda: supported)
    ran = capeval("list", "--advise", "images,cpu")
    assert ran.status == 0 and "--dtype bfloat16 takes about a third" in " ".join(ran.out.split())
    assert "bfloat16" not in capeval("list", "--advise", "images").out
    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 30), "red").save(tmp_path / "images" / "a.png")
    for count in (1_000, 10):
        captions = [f"{number} red circles" for number in range(count)]
        given = ["--candidates", write_json(tmp_path / "captions.json", {"a": captions})]
        given += ["--images", tmp_path / "images", "--weights", "tiny", "--device", "cpu"]
        ran = capeval("score", "clips", *given)
        assert ran.status == 0 and ("--dtype bfloat16" in ran.err) == (supported and count == 1_000)
    for dtype in ("float16", "bfloat16"):
        ran = capeval("score", "clips", *given, "--dtype", dtype)
        slow = dtype == "float16" or not supported
        assert ran.status == 0 and (f"warning: {dtype} takes several times as long" in ran.err) == slow
        assert ("pass --dtype float32" in ran.err) == slow


# The table for a paper


def test_a_table_for_a_paper_has_intervals_as_it_is_asked_for(systems: Capeval, folder: Path) -> None:
    form = ("--format", "latex")
    assert systems("pacs", "A B", "--json", folder / "out.json").status == 0
    interval = results(folder / "out.json")["A", "pacs"].interval()
    mean = results(folder / "out.json")["A", "pacs"].mean
    plain = systems("pacs", "A B", *form).out
    assert f"[{interval.low:.4f}, {interval.high:.4f}]" in plain and "booktabs" in plain
    longer = max(interval.high - mean, mean - interval.low)
    assert rf" $\pm$ {longer:.4f}" in systems("pacs", "A B", *form, "--pm").out
    without = systems("pacs", "A B", *form, "--no-intervals").out
    assert f"{mean:.4f}" in without and "[" not in without and "interval" not in without
    assert "interval" not in systems("pacs", "A", "--no-intervals").out
    floating = systems("pacs", "A B", *form, "--caption", "100% of_it", "--label", "tab:x").out
    assert "\\caption{100\\% of\\_it}\n\\label{tab:x}\n\\begin{tabular}" in floating
    assert "\\begin{table}" in floating and "\\begin{table}" not in plain
    for wrong in (
        ("--pm", "--no-intervals"),
        ("--caption", "without LaTeX"),
        ("--label", "x"),
        (*form, "--label", "a b"),
    ):
        ran = systems("pacs", "A B", *wrong)
        assert ran.status == 2 and wrong[-2] in ran.err


def test_groups_are_in_the_table_of_the_paper(capeval: Capeval, folder: Path) -> None:
    lines = ["image_id,caption,domain"]
    for place, (name, caption) in enumerate(SYSTEMS["A"].items()):
        lines.append(f"{name},{caption},{'in' if place < 3 else 'out'}")
    (folder / "A.csv").write_text("\n".join(lines))
    files = ("--candidates", folder / "A.csv", "--references", folder / "refs.json")
    text = capeval("score", "rougel,cider", *files, "--group-by", "domain", "--format", "latex").out
    assert text.count("\\begin{tabular}") == 1 and text.count("\\midrule") == 3
    rows = [line.split(" & ")[0] for line in text.splitlines() if line.endswith(r"\\")]
    assert rows == ["system", "A", "domain (captions)", "in (3)", "out (4)"]


def test_diversity_stands_beside_the_scores(systems: Capeval, folder: Path) -> None:
    write_json(folder / "train.json", {"1": ["A red circle.", "a grey house"], "2": ["a cow"]})
    training = ("--training-captions", folder / "train.json")
    alone = systems("rougel", "A", *training)
    # Seven times "a COLOUR house": 9 different words of 21, 14 different pairs of 14, one caption learnt.
    line = next(line for line in alone.out.splitlines() if line.startswith("diversity"))
    for part in ("7 distinct", "3.0 words", "42.9% of words", "100.0% of word pairs", "14.3% equal"):
        assert part in line
    both = systems("rougel", "A B", *training, "--report", folder / "report").out
    assert re.search(r"^B +7 +1 +3.0 +14.3% +14.3% +100.0% +0.0%$", both, re.MULTILINE)
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "from training" in page and "42.9%" in page
    assert systems("rougel", "A", "--training-captions", folder / "none.json").status == 2
