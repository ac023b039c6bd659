"""CHAIR: objects of captions are those of the codes that others copy; sums over captions make its numbers.

golden.json: objects that these codes found in captions, made up and by M² Transformer, with a short list of
synonyms; and digests of what they found in all 5,000 captions of `../shared` with the released list.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core import why
from capeval_core.cli import main

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[4] / "shared" / "data"
RELEASED = SHARED / "chair" / "synonyms.txt"
NUMBERS = {
    "original": {"chair_i": 0.2642111724984653, "chair_s": 0.3576, "recall": 0.4099343419925778},
    "opera": {"chair_i": 0.27007210069656606, "chair_s": 0.3656, "recall": 0.40827389443651924},
}
"""By the codes: of M² Transformer's captions, where the first reference and random categories are true."""
CAPTIONS = ["a dog and two cats", "a tree", "the bus stops", "A man, a man and a dog"]
OBJECTS = [["dog", "a cat sleeps"], ["a tree"], ["bus"], ["person"]]


@pytest.fixture(scope="session")
def synonyms(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The short list that golden objects were found with."""
    path = tmp_path_factory.mktemp("synonyms") / "synonyms.txt"
    path.write_text(GOLDEN["synonyms"])
    return str(path)


@pytest.fixture(params=["original", "opera"])
def variant(request: pytest.FixtureRequest) -> str:
    """A variant whose packages and data are installed."""
    try:
        capeval_core.load("chair", synonyms="tiny", variant=request.param)
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    return str(request.param)


def test_objects_of_captions_are_those_of_the_code(variant: str, synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms, variant=variant, empty="score")
    captions = GOLDEN["captions"]
    result = metric.score(captions, references=[["dog"]] * len(captions))
    assert result.parts["mentions"] == GOLDEN[variant]


@pytest.mark.skipif(not RELEASED.exists(), reason="without ../shared")
def test_numbers_of_5000_captions_are_those_of_the_code(variant: str) -> None:
    systems = SHARED / "coco_systems"
    captions: dict[str, str] = json.loads((systems / "m2_transformer.json").read_text())
    references: dict[str, list[str]] = json.loads((systems / "reference_captions.json").read_text())
    names = [line.strip().split(", ")[0] for line in RELEASED.read_text().splitlines()]
    rng = random.Random(7)
    objects = {}
    for image_id in references:
        categories = [names[rng.randrange(80)] for _ in range(rng.randrange(4))]
        objects[image_id] = [references[image_id][0], *categories]
    metric = capeval_core.load("chair", synonyms=RELEASED, variant=variant)
    result = metric.score(list(captions.values()), references=[objects[image_id] for image_id in captions])
    mentions = json.dumps(result.parts["mentions"]).encode()
    assert hashlib.sha256(mentions).hexdigest() == GOLDEN["m2_transformer"][variant]
    assert result.numbers == pytest.approx(NUMBERS[variant], rel=1e-12)
    assert "|words:synonyms@b685537b|" in result.signature


def test_numbers_are_of_sums_over_captions(synonyms: str) -> None:
    result = capeval_core.load("chair", synonyms=synonyms).score(CAPTIONS, references=OBJECTS)
    assert result.parts["mentions"] == [["dog", "cat"], [], [], ["person", "person", "dog"]]
    assert result.parts["hallucinated"] == [[], [], [], ["dog"]]
    assert result.scores == [0.0, 0.0, 0.0, pytest.approx(1 / 3)]
    assert result.numbers == pytest.approx({"chair_i": 1 / 5, "chair_s": 1 / 4, "recall": 3 / 4})


def test_captions_without_objects_have_a_number_and_no_interval(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    with pytest.warns(UserWarning, match="no caption mentions an object"):
        result = metric.score(["a tree"] * 5, references=[[f"a dog {i}"] for i in range(5)])
    assert result.mean == 0.0 and result.zero_reason
    with pytest.raises(ValueError, match="no interval"):
        result.interval()


def test_the_signature_names_list_variant_and_images(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    result = metric.score(CAPTIONS, references=OBJECTS)
    digest = hashlib.sha256(GOLDEN["synonyms"].encode()).hexdigest()[:8]
    assert f"|variant:original|words:synonyms@{digest}|singulariser:pattern@3.6|" in result.signature
    assert metric.score(CAPTIONS[::-1], references=OBJECTS[::-1]).signature == result.signature
    fewer = metric.score(CAPTIONS[:3], references=OBJECTS[:3])
    assert fewer.signature != result.signature
    with pytest.raises(ValueError, match="images:"):
        result.compare(fewer)


def test_names_of_images_group_captions_in_intervals(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    captions = ["a dog", "a cat"] * 5
    alike = metric.score(captions, references=[["dog"]] * 10)
    named = metric.score(captions, range(10), [["dog"]] * 10)
    assert len({*alike.groups}) == 1 and len({*named.groups}) == 10
    assert alike.numbers == named.numbers and named.interval().images == 10
    with pytest.raises(ValueError, match="len"):
        metric.score(captions, ["1"], [["dog"]] * 10)


def test_explain_marks_the_words(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms, evidence=True)
    evidence = metric.score(["Two Dogs at traffic lights."], references=[["dog"]]).explain(0)
    assert evidence["marked"] == "two [dogs] at [traffic lights!]."
    assert [(word["object"], word["hallucinated"]) for word in evidence["words"]] == [
        ("dog", False),
        ("traffic light", True),
    ]


def test_the_explanation_of_a_synonym_is_that_of_its_object(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms, evidence=True)
    words = metric.score(["a puppy and a pony"], references=[["dog"]]).explain(0)["words"]
    assert [(word["object"], word["hallucinated"]) for word in words] == [("dog", False), ("horse", True)]


def capeval(*arguments: object) -> int:
    """The exit status of a command."""
    return main(list(map(str, arguments)))


def test_the_command_reads_instances_of_coco(
    synonyms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions, instances, people = (tmp_path / name for name in ("c.json", "instances.json", "captions.json"))
    captions.write_text(json.dumps({"1": "a dog and a cat", "2": "two men", "3": "a cow by a bus stop"}))
    content: dict[str, Any] = {
        "images": [{"id": 1}, {"id": 2}, {"id": 3}],
        "annotations": [{"image_id": 1, "category_id": 18}, {"image_id": 2, "category_id": 1}],
        "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
    }
    instances.write_text(json.dumps(content))
    people.write_text(json.dumps({"3": ["a cow"]}))
    out = tmp_path / "out.json"
    files = ["--candidates", captions, "--synonyms", synonyms, "--json", out]
    assert capeval("score", "chair", *files, "--objects", instances) == 0
    assert json.loads(out.read_text())["mean"] == pytest.approx(2 / 4)
    assert capeval("score", "chair", *files, "--objects", instances, people) == 0
    assert json.loads(out.read_text())["mean"] == pytest.approx(1 / 4)
    assert capeval("score", "chair", *files) == 2
    both = ["--candidates", captions, "--references", people, "--objects", instances]
    assert capeval("score", "chair,bleu", *both) == 2
    del content["categories"][0]["name"]
    instances.write_text(json.dumps(content))
    assert capeval("score", "chair", *files, "--objects", instances) == 2
    assert "instances.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.json", '{"1": ["dog"]}'),
        ("unknown.csv", "id,weight\n1,5\n2,6\n"),
        ("two.csv", "id,refs,gt\n1,dog,cat\n2,cat,cat\n"),
        ("joined.csv", "id,objects\n1,dog ||| cat\n2,cat ||| dog\n"),
    ],
)
def test_refusals_of_files_of_objects_speak_of_objects(
    name: str, content: str, synonyms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates, objects = tmp_path / "c.json", tmp_path / name
    candidates.write_text('{"1": "a dog", "2": "a cat"}')
    objects.write_text(content)
    files = ["--candidates", candidates, "--synonyms", synonyms, "--quiet"]
    assert capeval("score", "chair", *files, "--objects", objects) == 2
    refusal = capsys.readouterr().err
    assert f"{name}: " in refusal or f"{name} has" in refusal
    assert "objects" in refusal and "references" not in refusal


def test_a_list_of_another_digest_is_refused(synonyms: str) -> None:
    with pytest.raises(ValueError, match=r"synonyms\.txt"):
        capeval_core.fetch("chair", sources={"synonyms.txt": synonyms})
    empty = Path(synonyms).with_name("empty.txt")
    empty.write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.txt"):
        capeval_core.load("chair", synonyms=empty)


@pytest.mark.parametrize("name", ["names alone", "captions alone", "objects once", "64 words", "chair_s"])
def test_why_knows_the_variants(name: str, synonyms: str) -> None:
    captions = [
        *CAPTIONS,
        "a horse, a zebra and horses on a couch",
        "word " * 63 + "cat dog",
        "cars and a cat",
    ]
    objects = [*OBJECTS, ["horse", "a couch"], ["cat", "a vase"], ["car", "a cat"]]
    given: dict[str, Any] = {"captions": captions, "references": objects}
    changes: dict[str, Any] = {
        "names alone": {"references": [[texts[0]] for texts in objects]},
        "captions alone": {"references": [texts[1:] or texts for texts in objects]},
        "64 words": {"captions": [" ".join(text.split()[:64]) for text in captions]},
    }
    theirs = capeval_core.load("chair", synonyms=synonyms).score(**{**given, **changes.get(name, {})})
    scores: Any = theirs.scores
    if name == "chair_s":
        scores = theirs.parts["chair_s"]
    if name == "objects once":
        pairs = zip(theirs.parts["mentions"], theirs.parts["hallucinated"], strict=True)
        scores = [len({*absent}) / max(len({*all_}), 1) for all_, absent in pairs]
    outcome = why(scores, "chair", **given, synonyms=synonyms)
    assert any(name in group for group in outcome.remaining), outcome


def test_lists_of_single_words_are_objects(tmp_path: Path, synonyms: str) -> None:
    """A bus, a dog and a person are three objects, not one text about a "person dog bus"."""
    captions = {"1": "a dog in a bus", "2": "a person", "3": "a bus"}
    objects = {"1": ["person", "dog", "bus"], "2": ["person", "bus", "dog"], "3": ["bus", "dog", "cat"]}
    categories = [{"id": number, "name": name} for number, name in enumerate(["person", "dog", "bus", "cat"])]
    annotations = []
    for image, listed in objects.items():
        for category in categories:
            if category["name"] in listed:
                annotations.append({"image_id": int(image), "category_id": category["id"]})
    images = [{"id": int(image)} for image in objects]
    instances = {"images": images, "categories": categories, "annotations": annotations}
    (tmp_path / "c.json").write_text(json.dumps(captions))
    expected = capeval_core.load("chair", synonyms=synonyms).score(
        list(captions.values()), references=list(objects.values())
    )
    assert expected.mean == 0
    for name, content in (("names.json", objects), ("instances.json", instances)):
        (tmp_path / name).write_text(json.dumps(content))
        out = tmp_path / "s.json"
        line = ["score", "chair", "--synonyms", synonyms, "--candidates", tmp_path / "c.json"]
        assert main([*map(str, [*line, "--objects", tmp_path / name, "--json", out])]) == 0
        saved = json.loads(out.read_text())
        assert (saved["scores"], saved["parts"]) == (expected.scores, expected.to_dict()["parts"])


def test_images_are_named_by_numbers_of_any_kind_and_by_paths(synonyms: str) -> None:
    metric: Any = capeval_core.load("chair", synonyms=synonyms)
    captions, objects = ["a dog"] * 6, [["dog"]] * 6
    expected = metric.score(captions, range(6), objects)
    for images in (np.arange(6), [Path(str(number)) for number in range(6)], [str(n) for n in range(6)]):
        result = metric.score(captions, images, objects)
        assert len(set(result.groups)) == 6 and result.signature == expected.signature
    assert metric.score(captions, [0, 1, 2, 3, 4, 9], objects).signature != expected.signature
    for wrong in (5, "0.png", [0, 1, 2, 3, 4, 0.5]):
        with pytest.raises((ValueError, TypeError), match="images"):
            metric.score(captions, wrong, objects)


def test_names_of_objects_are_read_in_any_case_and_with_blanks(synonyms: str) -> None:
    metric: Any = capeval_core.load("chair", synonyms=synonyms)
    assert not type(metric).higher_is_better
    assert metric.score(["a bus and two dogs"], references=[[" DOG ", "Bus"]]).mean == 0
    assert metric.score(["at 10:30 a dog"], references=[["cat"]]).mean == 1


def test_the_order_of_references_changes_no_signature(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    for images in (None, ["1", "2"]):
        first = metric.score(["a dog", "a cat"], images, [["dog", "cat"], ["a cat", "bus"]])
        other = metric.score(["a dog", "a cat"], images, [["cat", "dog", "dog"], ["bus", "a cat"]])
        assert first.groups == other.groups
        assert first.signature.split("|refs:")[0] == other.signature.split("|refs:")[0]
        assert first.signature.split("|images:")[1] == other.signature.split("|images:")[1]


def test_names_that_the_list_does_not_have_are_warned_of(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    with pytest.warns(UserWarning, match=r"2 references .*'dog collar' \(mentions dog\).*'toothpick'"):
        metric.score(["a dog", "a cat"], references=[["dog collar", "a tree"], ["toothpick", "cat"]])


def test_a_text_that_is_no_list_of_synonyms_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "captions.json"
    for text in ('{"1": "a dog"}', "dog, puppy\na dog runs over the grass\n", "dog\tpuppy"):
        wrong.write_text(text)
        with pytest.raises(ValueError, match=r"captions\.json.*line [12]"):
            capeval_core.load("chair", synonyms=wrong)


def test_words_are_found_as_the_original_spells_them(tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("dog, puppy\nknife\nwife\nlife\n")
    captions = ["two knives, three wives, nine lives", "dog:2", "dog: a"]
    result = capeval_core.load("chair", synonyms=path).score(captions, references=[["puppy"]] * 3)
    # A colon before a digit belongs to its word.
    assert result.parts["mentions"] == [["knife", "wife", "life"], [], ["dog"]]


def test_names_of_a_list_are_compared_without_case_and_blanks(tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("Dog,  Puppy \n")
    result = capeval_core.load("chair", synonyms=path).score(
        ["a cat", "Dog"], references=[["puppy"], ["DOG"]]
    )
    assert result.parts["objects"] == [["Dog"], ["Dog"]]
    assert result.parts["mentions"] == [[], []], "captions are read in lower case, as the original does"


@pytest.mark.parametrize("form", ["by id", "list", "lines"])
def test_an_image_without_objects_is_an_empty_list(form: str, synonyms: str, tmp_path: Path) -> None:
    captions, objects, out = (tmp_path / name for name in ("c.json", "objects.json", "out.json"))
    captions.write_text(json.dumps({"1": "a dog", "2": "a cat"}))
    records = [{"image_id": 1, "objects": ["dog"]}, {"image_id": 2, "objects": []}]
    content = json.dumps({"1": ["dog"], "2": []} if form == "by id" else records)
    if form == "lines":
        objects = tmp_path / "objects.jsonl"
        content = "\n".join(map(json.dumps, records))
    objects.write_text(content)
    files = ["--candidates", captions, "--synonyms", synonyms, "--objects", objects, "--json", out]
    assert capeval("score", "chair", *files) == 0
    assert json.loads(out.read_text())["parts"]["hallucinated"] == [[], ["cat"]]
    objects.write_text(content.replace("[]", "null"))
    assert capeval("score", "chair", *files) == 2


def test_the_verdict_says_that_lower_is_better(synonyms: str) -> None:
    metric = capeval_core.load("chair", synonyms=synonyms)
    objects = [["dog"], ["cat"], ["bus"], ["person"], ["dog"], ["cat"]]
    true = metric.score(["a dog", "a cat", "a bus", "a man", "a dog", "a cat"], range(6), objects)
    false = metric.score(["a cat", "a dog", "a man", "a bus", "a cat and a dog", "a dog"], range(6), objects)
    assert "worse" in false.compare(true).verdict and "better" in true.compare(false).verdict
