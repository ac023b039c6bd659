"""`why` names the variant that makes a number; a bundle is replayed, or its first difference named."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image, ImageOps

import capeval_core
from benchmarks.other_tools import odd_pictures
from capeval_core.cli import main
from capeval_core.demo import demo_set
from capeval_core.replay.bundle import bundle_of, replay
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


def variants_of(found: Any) -> set[frozenset[str]]:
    """The switches of each variant that remains."""
    return {frozenset(name.split(" + ")) for names in found.remaining for name in names}


TOLD = [(tool, name) for tool in TOOLS for name in KNOWN.get(tool, {})]


@pytest.mark.parametrize(("tool", "metric"), TOLD)
def test_bugs_of_other_tools_are_named(tool: str, metric: str) -> None:
    options: Any = {"weights": "tiny"} if metric == "clips" else {}
    found = capeval_core.why(KNOWN[tool][metric], metric, *given(metric), **options)
    assert frozenset(TOOLS[tool]) in variants_of(found), found.sentence


@pytest.mark.parametrize("tool", KNOWN["odd"])
def test_tools_are_named_on_pictures_of_odd_sizes_and_modes(tool: str, tmp_path: Path) -> None:
    images = [str(path) for path in odd_pictures(tmp_path)]
    found = capeval_core.why(KNOWN["odd"][tool], "clips", KNOWN["captions"], images, weights="tiny")
    assert found.variant is not None, found.sentence
    assert frozenset(TOOLS.get(tool, [tool])) in variants_of(found), found.sentence


def pictures(folder: Path) -> list[str]:
    """Eight files of odd sizes, two of them photographs that lie on their sides."""
    paths = odd_pictures(folder)
    for path in (paths[0], paths[4]):
        turned = Image.Exif()
        turned[0x0112] = 6
        Image.open(path).convert("RGB").save(path, exif=turned)
    return [str(path) for path in paths]


def square(image: Image.Image, size: int, method: Image.Resampling) -> Image.Image:
    """The shorter side resized, and the central square, in the image's own mode, then RGB."""
    short = min(image.size)
    width, height = (int(size * side / short) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = seams.resized(image, (width, height), method)
    return scaled.crop((left, top, left + size, top + size)).convert("RGB")


def jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=75)
    return Image.open(file)


PIPELINES: dict[str, Any] = {
    "upright + bilinear": lambda image, size: square(
        ImageOps.exif_transpose(image), size, Image.Resampling.BILINEAR
    ),
    "JPEG 75 + bilinear": lambda image, size: square(jpeg(image), size, Image.Resampling.BILINEAR),
    "BGR": lambda image, size: Image.merge(
        "RGB", square(image, size, Image.Resampling.BICUBIC).split()[::-1]
    ),
}
"""Images as the tools of these variants make them, by hand: a palette is resized as such."""


@pytest.mark.parametrize(
    "variant", [name if name == "BGR" else pytest.param(name, marks=pytest.mark.system) for name in PIPELINES]
)
def test_switches_of_images_stand_in_the_order_of_a_pipeline(variant: str, tmp_path: Path) -> None:
    files = pictures(tmp_path)
    metric: Any = capeval_core.load("clips", weights="tiny")
    size = metric.encoder.preprocessing.image_size
    images = [PIPELINES[variant](Image.open(file), size) for file in files]
    theirs = metric.score(KNOWN["captions"], images).scores
    found = capeval_core.why(theirs, "clips", KNOWN["captions"], files, weights="tiny")
    assert frozenset(variant.split(" + ")) in variants_of(found), found.sentence


def test_rows_of_one_image_stay_in_order_when_ids_are_sorted() -> None:
    captions, _, references = given("rougel")
    ids = [f"image{row % 3}" for row in range(len(captions) * 4)]
    many = [f"{captions[row % 8]} {row}" for row in range(len(ids))]
    texts = [references[row % 8] for row in range(len(ids))]
    scores = capeval_core.load("rougel").score(many, references=texts).scores
    theirs = [scores[row] for row in sorted(range(len(ids)), key=ids.__getitem__)]
    found = capeval_core.why(theirs, "rougel", many, None, texts, ids=ids)
    assert frozenset(["sorted by id"]) in variants_of(found), found.sentence


def test_own_scores_with_an_image_that_failed_are_ours(tmp_path: Path) -> None:
    images: list[Any] = [*IMAGES[:7], tmp_path / "broken.png"]
    (tmp_path / "broken.png").write_bytes(b"no image")
    made = capeval_core.load("clips", weights="tiny", on_error="nan").score(GIVEN["captions"], images)
    found = capeval_core.why(made.scores, "clips", GIVEN["captions"], images, weights="tiny")
    assert found.variant == "capeval's own settings", found.sentence


def nltk_bleu(captions: list[str], references: list[list[str]], method: str) -> list[float]:
    """By NLTK, of what stands between spaces."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smoothing = getattr(SmoothingFunction(), method)
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for caption, texts in zip(captions, references, strict=True):
            words = [text.split() for text in texts]
            scores.append(float(sentence_bleu(words, caption.split(), smoothing_function=smoothing)))
    return scores


@pytest.mark.parametrize("method", range(5))
def test_smoothing_of_nltk_is_named(method: int) -> None:
    pytest.importorskip("nltk")
    # Three words in a row of the last one match and no four, of which COCO's evaluation makes 1e-4.
    captions = [*KNOWN["captions"], "a large green heart"]
    references = [*KNOWN["references"], ["a large green cross at the top"]]
    theirs = nltk_bleu(captions, references, f"method{method}")
    found = capeval_core.why(theirs, "bleu", captions, None, references)
    name = f"NLTK's method{method}" if method else "NLTK"
    assert frozenset(["no tokenizer", name]) in variants_of(found), found.sentence


@pytest.mark.system
def test_a_network_in_float16_of_another_processor_is_found() -> None:
    """Scores as far from ours as those of other processors."""
    captions, images = KNOWN["captions"], IMAGES
    half = capeval_core.load("clips", weights="tiny", dtype="float16").score(captions, images)
    noise = 3e-4 * np.array([1, -1, 0.5, 0.8, -0.7, 1, -0.2, 0.4])
    found = capeval_core.why([*(np.array(half.scores) + noise)], "clips", captions, images, weights="tiny")
    assert frozenset(["dtype='float16'"]) in variants_of(found), found.sentence


def test_features_that_were_normalised_in_float16_are_named() -> None:
    captions = KNOWN["captions"]
    metric: Any = capeval_core.load("clips", weights="tiny")
    images = [entry["features"] for entry in seams.encode(metric.encoder, IMAGES)]
    texts = metric.encoder.encode_texts(
        [f"{metric.options.prompt} {caption}" for caption in captions]
    ).features

    def unit(features: Any) -> Any:
        half = np.asarray(features, dtype=np.float16)
        return half / np.sqrt(np.sum(half**2, axis=1, keepdims=True))

    cosines = np.sum(unit(images) * unit(texts), axis=1).astype(np.float32)
    found = capeval_core.why([*(2.5 * np.maximum(cosines, 0))], "clips", captions, IMAGES, weights="tiny")
    assert found.variant == "float16 normalisation", found.sentence


@pytest.mark.system
def test_a_small_change_of_some_captions_is_not_taken_for_float16() -> None:
    captions, images = KNOWN["captions"], IMAGES
    plain = np.array(capeval_core.load("clips", weights="tiny").score(captions, images).scores)
    few = np.where(np.arange(8) < 3, plain + 5e-4, plain)  # a change of some captions
    found = capeval_core.why([*few], "clips", captions, images, weights="tiny")
    assert found.variant is None, found.sentence


def test_why_stops_where_no_dearer_variant_is_needed() -> None:
    """Scores that differ by their formula alone are named before an image is encoded anew."""
    metric: Any = capeval_core.load("clips", weights="tiny", on_error="nan")
    theirs = metric.score(KNOWN["captions"], IMAGES).parts["cosine"]
    encoder = type(metric.encoder)
    with mock.patch.object(encoder, "run_images", autospec=True, side_effect=encoder.run_images) as run:
        found = capeval_core.why([*(2 * np.maximum(theirs, 0))], metric, KNOWN["captions"], IMAGES)
    assert found.variant == "w=2.0" and run.call_count <= 1, found.sentence


MENTIONS = ["a dog and a cat", "a tree", "a cat", "a dog, a bird and a horse", "a bird"]
OBJECTS = [["dog"], ["dog"], ["cat"], ["dog", "bird"], ["horse"]]
"""CHAIR-i of these is 1/2, 0 without a mention, 0, 1/3 and 1; of the set 3/7."""


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        ("0.4286", "capeval's own settings"),
        ("0.4583", "mean of mentioning captions"),
        ("0.3667", "mean of captions"),
        ("0.3333", "median"),
    ],
)
def test_other_means_of_objects_are_named(theirs: str, name: str) -> None:
    found = capeval_core.why(theirs, "chair", MENTIONS, None, OBJECTS, synonyms="tiny", most=1)
    assert frozenset([name]) in variants_of(found), found.sentence


def test_a_set_that_mentions_no_object_has_the_number_0_any_way() -> None:
    found = capeval_core.why(
        "0.0", "chair", ["a tree", "a lake"], None, [["dog"]] * 2, synonyms="tiny", most=1
    )
    assert frozenset(["mean of mentioning captions"]) in variants_of(found), found.sentence


def test_a_number_of_nobody_is_nobodys() -> None:
    captions, _, references = given("rougel")
    found = capeval_core.why([0.1, 0.7, 0.3, 0.2, 0.9, 0.8, 0.4, 0.6], "rougel", captions, None, references)
    assert found.variant is None and not found.remaining and found.tried > 200
    assert f"none of {found.tried:,}" in found.sentence and len(found.table) == 10
    own = capeval_core.load("rougel").score(captions, references=references)
    assert (
        capeval_core.why(own.scores, "rougel", captions, None, references)
        .remaining[0][0]
        .startswith("capeval")
    )
    assert capeval_core.why(f"{own.mean:.1f}", "rougel", captions, None, references).variant is None


def test_the_table_is_in_the_order_of_all_captions_not_of_those_that_are_tried_first() -> None:
    captions, images, _ = given("clips")
    metric: Any = capeval_core.load("clips", weights="tiny", on_error="nan")
    scores = np.array(metric.score(captions, images).scores)
    # Of the four captions that are tried first, one has the cosine and the others are near to ours; of the
    # other captions all are ours.
    first = [0, 2, 4, 7]
    theirs = scores.copy()
    theirs[first] *= 1 + 1e-4
    theirs[0] = scores[0] / 2.5
    found = Search(metric, metric.check(captions, images), list("abcdefgh")).explain(theirs, most=1)
    shares = [row["agree"] for row in found.table]
    assert found.variant is None and shares == sorted(shares, reverse=True)
    assert (found.table[0]["variant"], shares[0]) == ("capeval's own settings", 0.5)
    assert 1 / 8 in shares  # the cosine, which was before it


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
    encoded = [switch for switch in search.switches if switch.step == seams.variants.Step.ENCODED]
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
    return dict(json.loads(json.dumps(bundle_of(made))))


@pytest.mark.parametrize("name", ["refpacs", "ciderd", "umic"])
def test_a_bundle_is_replayed(name: str) -> None:
    made, images = bundle(name), None if name == "ciderd" else IMAGES
    assert len("\n".join(made["rows"])) <= 120 * len(IMAGES)
    assert replay(made, GIVEN["captions"], images, GIVEN["references"]).equal
    assert made["columns"][-2:] == ["parts", "score"]
    # Each stage tells captions apart by what they differ in, which is all but UMIC's absent references.
    columns = dict(zip(made["columns"], zip(*map(str.split, made["rows"]), strict=True), strict=True))
    alike = [stage for stage, digests in columns.items() if len({*digests}) < len(IMAGES)]
    assert alike == (["references"] if name == "umic" else [])
    edited = ["a cat", *GIVEN["captions"][1:]]
    found = replay(made, edited, images, GIVEN["references"])
    assert found.stages == {"caption": [0]} and not found.equal
    assert found.sentence.startswith("1 of 8 scores differ") and "caption of 1 (0): " in found.sentence
    other = [GIVEN["references"][5], *GIVEN["references"][1:]]
    if name != "umic":
        assert replay(made, GIVEN["captions"], images, other).stages["references"] == [0]


def test_a_replay_names_the_captions_that_differ_by_their_ids() -> None:
    """Three of them at most; captions of one image are told apart by their order."""
    metric: Any = capeval_core.load("rougel", evidence=True)
    ids = ["b", "a", "b", "c", "d", "e", "f", "g"]
    made = bundle_of(metric.score(GIVEN["captions"], references=GIVEN["references"]), ids, texts=True)
    assert made["ids"] == ids and made["captions"] == GIVEN["captions"]
    assert made["references"] == GIVEN["references"]
    assert {*made["versions"]} == {"libjpeg", "Python", "numpy", "pillow", "torch", "tokenizers"}
    for differing, listed in (
        ([4], "caption of 1 (d): "),
        ([1, 3, 6], "caption of 3 (a, c, f): "),
        ([0, 2, 3, 7], "caption of 4 (b, b, c, ...): "),
    ):
        edited = [f"{text} now" if row in differing else text for row, text in enumerate(GIVEN["captions"])]
        found = replay(made, edited, None, GIVEN["references"], ids=ids)
        assert found.stages == {"caption": differing} and listed in found.sentence
        assert found.sentence.startswith(f"{len(differing)} of 8 scores differ")
    order = [7, 6, 5, 4, 3, 0, 1, 2]  # of the two captions of b the first one stays before the second
    moved = [[column[row] for row in order] for column in (GIVEN["captions"], GIVEN["references"], ids)]
    assert replay(made, moved[0], None, moved[1], ids=moved[2]).equal
    order = [2, 1, 0, 3, 4, 5, 6, 7]
    swapped = [[column[row] for row in order] for column in (GIVEN["captions"], GIVEN["references"])]
    assert replay(made, swapped[0], None, swapped[1], ids=ids).stages == {"caption": [0, 2]}
    found = replay(made, GIVEN["captions"][1:], None, GIVEN["references"][1:], ids=ids[1:])
    assert "3 captions are in one" not in found.sentence and "1 captions are in one" in found.sentence


def test_other_inputs_are_named_where_scores_are_equal() -> None:
    """Scores of 0: of captions without a common word, and of an image that a caption contradicts."""
    nothing = ["qx zv", "wk jq", *GIVEN["captions"][2:]]
    made = bundle_of(capeval_core.load("ciderd", evidence=True).score(nothing, None, GIVEN["references"]))
    found = replay(made, ["pf gh", *nothing[1:]], None, GIVEN["references"])
    assert found.stages == {"caption": [0]} and found.equal_scores and not found.equal
    assert found.sentence.startswith("8 scores are equal, what 1 are computed from is not")
    found = replay(made, nothing, None, [GIVEN["references"][5], *GIVEN["references"][1:]])
    assert found.stages["references"] == [0] and [*found.stages] == ["references", "features"]
    assert "features of 6 (2, 3, 4, ...): statistics of other texts (statistics " in found.sentence
    metric: Any = capeval_core.load("clips", weights="tiny", evidence=True)
    others = [item.unrelated for item in demo_set()]
    images = [str(item.image) for item in demo_set()]
    result = metric.score(others, images)
    zeros = [row for row, score in enumerate(result.scores) if score == 0]
    assert len(zeros) > 1
    swapped_images = list(images)
    for row, other in zip(zeros, [*zeros[1:], zeros[0]], strict=True):
        swapped_images[row] = images[other]
    found = replay(bundle_of(result), others, swapped_images)
    assert set(found.stages) == {"image"} and not found.equal
    one = replay(bundle_of(result), others, images, w=2.5000001)
    assert one.equal


def test_a_bundle_holds_the_options_that_rows_or_scores_depend_on() -> None:
    """Not those that change nothing; also one that signs itself, as `variant` of CHAIR does."""
    given: Any = {"captions": ["a dog", "a cat"], "references": [["dog"], ["dog"]]}
    made = bundle_of(capeval_core.load("chair", synonyms="tiny", evidence=True).score(**given))
    assert made["options"] == {"variant": "original"}
    assert replay(made, **given, synonyms="tiny").equal
    options = bundle("clips", w=1.5, batch_size=3, on_error="nan", prompt="")["options"]
    assert options == {"weights": "tiny", "dtype": "float32", "w": 1.5, "prompt": ""}


def test_other_settings_and_lost_captions_are_named(tmp_path: Path) -> None:
    made, same = bundle("pacs"), [tmp_path / Path(image).name for image in IMAGES]
    for item, file in zip(ITEMS, same, strict=True):  # the same pictures in other files
        Image.open(item.image).save(file, compress_level=0)
    found = replay(made, GIVEN["captions"], same, w=1.0)
    assert list(found.stages) == ["score"] and "w by default there, 1 here" in found.sentence
    assert found.sentence.startswith("8 of 8 scores differ") and "image" not in found.sentence
    # Other weights are the reason of other features alone, other settings that of any stage.
    of_others = {**made, "models": {"weights": "of others"}, "versions": {**made["versions"], "torch": "1.0"}}
    for options, stage, reason in (
        ({"w": 1.0}, "score", "another formula (torch 1.0 there, "),
        ({"prompt": ""}, "tokens", "another tokenizer or prompt (torch 1.0 there, "),
        ({"dtype": "bfloat16"}, "features", "other weights (torch 1.0 there, "),
    ):
        found = replay(of_others, GIVEN["captions"], IMAGES, **options)
        assert list(found.stages) == [stage] and f"{stage} of 8 (0, 1, 2, ...): {reason}" in found.sentence
        assert f"{next(iter(options))} by default there, " in found.sentence
    assert replay(of_others, GIVEN["captions"], IMAGES).equal
    found = replay(made, GIVEN["captions"][:7], IMAGES[:7])
    assert not found.equal and not found.stages and "1 captions are in one" in found.sentence
    others = [*map(str, range(6)), "new", "newer"]  # as many as before
    found = replay(made, GIVEN["captions"], IMAGES, ids=others)
    assert not found.equal and not found.equal_scores and "4 captions are in one" in found.sentence
    with pytest.raises(ValueError, match=r"load\('rougel', .*evidence=True"):
        bundle_of(capeval_core.load("rougel").score(["a"], references=["a"]))


def test_a_replay_in_another_dtype_is_not_equal() -> None:
    given = GIVEN["captions"], GIVEN["images"]
    metric = capeval_core.load("pacs", weights="tiny", device="cpu", dtype="float16", evidence=True)
    bundle = bundle_of(metric.score(*given))
    assert replay(bundle, *given).equal
    again = replay(bundle, *given, dtype="float32")
    assert not again.equal and "features" in again.stages and "dtype" in again.sentence


def test_commands_say_it_by_their_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", str(tmp_path / "demo")])
    files = ["--candidates", str(tmp_path / "demo/good.json"), "--images", str(tmp_path / "demo/images")]
    scores, made = str(tmp_path / "s.json"), str(tmp_path / "b.json")
    assert main(["score", "pacs", *files, "--weights", "tiny", "--bundle", made, "--json", scores]) == 0
    assert main(["replay", made, *files]) == 0
    nothing, other = tmp_path / "nothing.json", tmp_path / "other.json"
    references = ["--references", str(tmp_path / "demo/references.json")]
    captions = json.loads((tmp_path / "demo/good.json").read_text())
    nothing.write_text(json.dumps(dict.fromkeys(captions, "qx zv")))
    other.write_text(json.dumps(dict.fromkeys(captions, "wk jq")))
    texts = str(tmp_path / "t.json")
    assert main(["score", "ciderd", "--candidates", str(nothing), *references, "--bundle", texts]) == 0
    assert main(["replay", texts, "--candidates", str(nothing), *references]) == 0
    assert main(["replay", texts, "--candidates", str(other), *references]) == 3
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
    found = capeval_core.why([*own[:5], 0.5], "clips", captions, images, weights="tiny", most=1)
    assert alone.table[0]["agree"] == 1 and found.table[0]["agree"] == pytest.approx(5 / 6)
    assert alone.remaining and not found.remaining and found.variant is None
