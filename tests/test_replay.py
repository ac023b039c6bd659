"""`why` names the variant that makes a number; a bundle is replayed, or its first difference named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import Image

import capeval_core
from capeval_core.cli import main
from capeval_core.demo import demo_set
from capeval_core.replay.bundle import replay
from capeval_core.replay.why import Search
from tests.support import seams

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "support" / "known.json").read_text())
"""Scores of other tools, made by running them, and what they were made with."""
TOOLS = {name: switches for name, _, switches in seams.variants.KNOWN}
ITEMS = demo_set()[:8]
IMAGES = [str(item.image) for item in ITEMS]
GIVEN: dict[str, Any] = {
    "captions": [item.good for item in ITEMS],
    "images": IMAGES,
    "references": [list(item.references) for item in ITEMS],
}


def given(name: str) -> tuple[Any, Any, Any]:
    return KNOWN["captions"], IMAGES if name == "clips" else None, KNOWN["references"]


@pytest.mark.parametrize(("tool", "metric"), [(tool, name) for tool in TOOLS for name in KNOWN[tool]])
def test_bugs_of_other_tools_are_named(tool: str, metric: str) -> None:
    options: Any = {"weights": "tiny"} if metric == "clips" else {}
    found = capeval_core.why(KNOWN[tool][metric], metric, *given(metric), **options)
    names = {frozenset(one.split(" + ")) for names in found.remaining for one in names}
    assert frozenset(TOOLS[tool]) in names, found.sentence


def test_a_number_of_nobody_is_nobodys() -> None:
    captions, _, references = given("rougel")
    found = capeval_core.why([0.1, 0.7, 0.3, 0.2, 0.9, 0.8, 0.4, 0.6], "rougel", captions, None, references)
    assert found.variant is None and not found.remaining and found.tried > 250
    assert f"none of {found.tried:,}" in found.sentence and len(found.table) == 10
    own = capeval_core.load("rougel").score(captions, references=references)
    assert (
        capeval_core.why(own.scores, "rougel", captions, None, references)
        .remaining[0][0]
        .startswith("capeval")
    )
    assert capeval_core.why(f"{own.mean:.1f}", "rougel", captions, None, references).variant is None


def test_switches_are_many_and_rows_are_encoded_once() -> None:
    switches = seams.variants.SWITCHES
    assert len({switch.name for switch in switches}) == len(switches) >= 64
    metric: Any = capeval_core.load("refpacs", weights="tiny", on_error="nan")
    samples = metric.check(*GIVEN.values())
    search = Search(metric, samples, list("abcdefgh"))
    with mock.patch.object(
        type(metric), "encode_all", autospec=True, side_effect=type(metric).encode_all
    ) as encode:
        for switch in search.switches:
            assert len(search.scored((switch,)).scores) == 8, switch.name
    encoded = [switch for switch in search.switches if switch.step == seams.variants.ENCODED]
    assert encode.call_count <= len(encoded) + 2  # without a switch, and references one by one


@pytest.mark.parametrize("name", ["umic", "vilbertscore", "refhices"])
def test_switches_of_other_networks(name: str) -> None:
    metric: Any = capeval_core.load(name, weights="tiny", on_error="nan")
    search = Search(metric, metric.check(*(own[:2] for own in GIVEN.values())), ["b", "a"])
    found = search.explain("0.123456", most=1)
    assert len({search.scored((one,)).mean for one in search.switches if one.name not in found.untried}) > 10
    for switch, reason in found.untried.items():  # layers that these weights lack
        assert switch.startswith("layer=") and f"{switch} could not be tried: {reason}" in found.sentence
    assert bool(found.untried) == (name == "vilbertscore")


def bundle(name: str, **options: Any) -> dict[str, Any]:
    options |= {} if name == "ciderd" else {"weights": "tiny"}
    metric = capeval_core.load(name, evidence=True, **options)
    images = IMAGES if metric.media else None
    made = metric.score(GIVEN["captions"], images, GIVEN["references"] if metric.needs_references else None)
    return dict(json.loads(json.dumps(made.bundle())))


@pytest.mark.parametrize("name", ["refpacs", "ciderd", "umic"])
def test_a_bundle_is_replayed(name: str) -> None:
    made, images = bundle(name), None if name == "ciderd" else IMAGES
    assert len("\n".join(made["rows"])) <= 120 * len(IMAGES)
    assert replay(made, GIVEN["captions"], images, GIVEN["references"]).equal
    edited = ["a cat", *GIVEN["captions"][1:]]
    assert replay(made, edited, images, GIVEN["references"]).stages == {"caption": [0]}
    other = [GIVEN["references"][5], *GIVEN["references"][1:]]
    if name != "umic":
        assert replay(made, GIVEN["captions"], images, other).stages["references"] == [0]


def test_other_settings_and_lost_captions_are_named(tmp_path: Path) -> None:
    made, same = bundle("pacs"), [tmp_path / Path(image).name for image in IMAGES]
    for item, file in zip(ITEMS, same, strict=True):  # the same pictures in other files
        Image.open(item.image).save(file, compress_level=0)
    found = replay(made, GIVEN["captions"], same, w=1.0)
    assert list(found.stages) == ["score"] and "w 2 there, 1 here" in found.sentence
    assert list(replay(made, GIVEN["captions"], IMAGES, dtype="bfloat16").stages) == ["features"]
    found = replay(made, GIVEN["captions"][:7], IMAGES[:7])
    assert not found.equal and not found.stages and "1 captions are in one" in found.sentence
    with pytest.raises(ValueError, match="evidence=True"):
        capeval_core.load("rougel").score(["a"], references=["a"]).bundle()


def test_commands_say_it_by_their_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", str(tmp_path / "demo")])
    files = ["--candidates", str(tmp_path / "demo/good.json"), "--images", str(tmp_path / "demo/images")]
    scores, made = str(tmp_path / "s.json"), str(tmp_path / "b.json")
    assert main(["score", "pacs", *files, "--weights", "tiny", "--bundle", made, "--json", scores]) == 0
    assert main(["replay", made, *files]) == 0
    assert main(["replay", made, files[0], files[1].replace("good", "unrelated"), *files[2:]]) == 1
    assert main(["why", scores, "--metric", "pacs", *files, "--weights", "tiny"]) == 0
    assert main(["why", "77", "--metric", "pacs", *files, "--weights", "tiny", "--most", "1"]) == 1
    assert main(["why", "good", "--metric", "pacs", *files]) == 2
    assert "capeval's own settings" in capsys.readouterr().out


@pytest.mark.parametrize("theirs", [[0.1, 0.2], "abc", {"x": 0.2}, [], None])
def test_numbers_that_are_none_of_these_captions_are_refused(theirs: Any) -> None:
    with pytest.raises(ValueError, match=r"^theirs"):
        capeval_core.why(theirs, "rougel", ["A dog.", "Two cats.", "Snow."], references=[["a dog"]] * 3)


def test_a_caption_that_failed_here_agrees_with_no_number(tmp_path: Path) -> None:
    items = demo_set()[:5]
    (broken := tmp_path / "broken.png").write_bytes(b"no image")
    images = [*(item.image for item in items), broken]
    captions = [*(item.good for item in items), "a dog"]
    own = capeval_core.load("clips", weights="tiny", on_error="nan").score(captions, images).scores
    alone = capeval_core.why([*own[:5], None], "clips", captions, images, weights="tiny")
    found = capeval_core.why([*own[:5], 0.5], "clips", captions, images, weights="tiny")
    assert alone.table[0]["agree"] == 1 and found.table[0]["agree"] == pytest.approx(5 / 6)
    assert alone.remaining and not found.remaining and found.variant is None
