"""The metrics as users of Hugging Face `evaluate` meet them: through `evaluate.load`, nothing replaced."""

from __future__ import annotations

import configparser
import doctest
import gc
import math
import pickle
import re
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
import pytest
import torch
from evaluate.loading import get_imports
from PIL import Image

import capeval_core
from capeval_core import project
from capeval_core.description import describe_metric
from capeval_core.integrations.module_description import module_description, module_usage
from capeval_core.options import describe_options
from capeval_core.registry import MEDIA_VARIANTS, METRICS, media_of, metric_class
from capeval_core.reranking import Reranker
from tests.integrations.ranks import run_ranks
from tests.support.counting import counted

ROOT = Path(__file__).parents[2]
NAMES = capeval_core.list_metrics()
FIELD = re.compile(r"(\w+)\s+= \{(.*?)\}(?=,\n|\n)", re.DOTALL)
"""Name and value of a field of a BibTeX entry."""
OF_CAPTIONS = [name for name in NAMES if not issubclass(metric_class(name), Reranker)]
CAPTIONS = ["a red circle", "two blue squares", "a small green star", "a red circle", "hearts", "nothing"]
REFERENCES = [
    ["a circle", "a red disc"],
    "blue squares",
    ["a star"],
    ["one"],
    ["a", "b", "c"],
    "nothing at all",
]
Load = Callable[..., Any]


@pytest.fixture
def load(weights: str, tmp_path: Path) -> Load:
    """`evaluate.load` of a metric by name, with weights that are at hand and rows in a folder of the test."""

    def load(name: str, **keywords: Any) -> Any:
        own = {"cache_dir": str(tmp_path / "rows"), **weights_of(name, weights)}
        return evaluate.load(str(ROOT / "metrics" / name), **{**own, **keywords})

    return load


def weights_of(name: str, weights: str) -> dict[str, str]:
    """The option, for a metric that has weights."""
    return {} if metric_class(name).default_weights is None else {"weights": weights}


def needed(name: str, references: Any = REFERENCES) -> dict[str, Any]:
    return {"references": references} if metric_class(name).needs_references else {}


def same(first: Any, second: Any) -> bool:
    return bool(np.allclose(first, second, rtol=0, atol=1e-12, equal_nan=True))


# What it computes


@pytest.mark.parametrize("name", OF_CAPTIONS)
def test_it_gives_what_the_core_gives(name: str, load: Load, weights: str, images: list[Path]) -> None:
    given = {**needed(name), **({"images": images} if metric_class(name).media else {})}
    expected = capeval_core.load(name, **weights_of(name, weights)).score(CAPTIONS, **given)
    module = load(name)
    assert module.name == name
    plain = module.compute(predictions=CAPTIONS, **given)
    assert list(plain) == list(expected.numbers)
    assert all(type(value) is float for value in plain.values())
    assert same(plain[expected.key], expected.mean)
    detailed = module.compute(predictions=CAPTIONS, **given, per_caption=True)
    assert list(detailed) == [*expected.numbers, "per_caption", "signature", "counts"]
    assert detailed["counts"] == vars(expected.counts)
    assert same(detailed[expected.key], expected.mean)
    assert detailed["signature"] == expected.signature
    per_caption = detailed["per_caption"]
    assert list(per_caption) == [expected.key, *expected.parts, "errors"]
    assert same(per_caption[expected.key], expected.scores)
    for part, values in expected.parts.items():
        if isinstance(values[0], list):  # a value per reference
            assert all(map(same, per_caption[part], values)) and len(per_caption[part]) == len(values)
        else:
            assert same(per_caption[part], values)
    assert per_caption["errors"] == [None] * len(CAPTIONS)


POOLS = [
    ["a red circle on the left", "a circle", "a big red circle on the left side"],
    ["two blue squares"],
    ["a small green star at the top", "a green star at the top", "a star near the very top"],
    ["a red circle", "", "a heart"],
]


def test_pools_give_what_the_core_gives(load: Load, images: list[Path], tmp_path: Path) -> None:
    broken = [*images[:3], tmp_path / "missing.png"]
    options = {"on_error": "nan", "empty": "score"}
    expected = capeval_core.load("eco", weights="tiny", **options).score(POOLS, broken)
    module = load("eco", weights="tiny", **options)
    with pytest.warns(UserWarning, match=r"1 of 4 captions have no score.*predictions\[3\] \(images\[3\]"):
        assert same(module.compute(predictions=POOLS, images=broken)["eco"], expected.mean)
    module.add(prediction=POOLS[0], image=broken[0])
    module.add_batch(predictions=POOLS[1:3], images=broken[1:3])
    module.add(prediction=POOLS[3], image=broken[3])
    with pytest.warns(UserWarning, match=r"predictions\[3\] \(images\[3\]"):
        output = module.compute(per_caption=True)
    result = output["per_caption"]
    assert list(output) == ["eco", "per_caption", "signature", "counts"]
    assert list(result) == ["eco", *expected.parts, "errors"]
    assert result["choice"] == expected.parts["choice"] and result["caption"] == expected.parts["caption"]
    assert np.allclose(result["eco"], expected.scores, atol=1e-5, equal_nan=True)
    assert result["errors"][:3] == [None] * 3 and "missing.png" in result["errors"][3]
    with pytest.raises(ValueError, match=r"predictions\[0\]\[1\] is None"):
        module.add_batch(predictions=[["a", None]], images=images[:1])
    with pytest.raises(
        TypeError, match=r"predictions\[0\] is a single string: pass the list of its candidates"
    ):
        module.add(prediction="a red circle", image=images[0])


def test_a_cut_caption_is_counted(load: Load, images: list[Path]) -> None:
    module = load("pacs")
    output = module.compute(predictions=["word " * 500, "a star"], images=images[:2], per_caption=True)
    assert output["counts"] == {"captions": 2, "failed": 0, "truncated": 1, "empty": 0}
    assert "truncated" in module.inputs_description


def test_it_loads_by_the_path_in_a_checkout(
    monkeypatch: pytest.MonkeyPatch, weights: str, images: list[Path], tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    module = evaluate.load("metrics/pacs", weights=weights, cache_dir=str(tmp_path))
    assert module.compute(predictions=CAPTIONS, images=images)["pac_s"] > 0


@pytest.mark.parametrize("keep_in_memory", [False, True])
def test_rows_may_come_in_any_portions(keep_in_memory: bool, load: Load, images: list[Path]) -> None:
    module = load("refpacs", keep_in_memory=keep_in_memory)
    whole = module.compute(predictions=CAPTIONS, images=images, references=REFERENCES, per_caption=True)
    module.add(prediction=CAPTIONS[0], image=images[0], reference=REFERENCES[0])
    module.add(predictions=CAPTIONS[1], images=images[1], references=REFERENCES[1])
    module.add_batch(predictions=[], images=[], references=[])
    module.add_batch(predictions=CAPTIONS[2:4], images=images[2:4], references=REFERENCES[2:4])
    assert len(module) == 4
    parted = module.compute(
        predictions=CAPTIONS[4:], images=images[4:], references=REFERENCES[4:], per_caption=True
    )
    assert parted["signature"] == whole["signature"]
    for part, values in whole["per_caption"].items():
        if part != "errors":
            assert np.allclose(parted["per_caption"][part], values, rtol=0, atol=1e-6), part
    assert len(module) == 0


def test_computing_again_starts_anew(load: Load, images: list[Path]) -> None:
    module = load("pacs")
    first = module.compute(predictions=CAPTIONS[:2], images=images[:2], per_caption=True)
    second = module.compute(predictions=CAPTIONS[2:5], images=images[2:5], per_caption=True)
    assert len(second["per_caption"]["pac_s"]) == 3
    again = module.compute(predictions=CAPTIONS[:2], images=images[:2], per_caption=True)
    assert again == first


def test_several_modules_of_one_metric_do_not_meet(load: Load, images: list[Path]) -> None:
    first, second = load("pacs"), load("pacs", w=1.0)
    first.add_batch(predictions=CAPTIONS[:2], images=images[:2])
    second.add_batch(predictions=CAPTIONS[:2], images=images[:2])
    assert same(first.compute()["pac_s"], 2 * second.compute()["pac_s"])


def test_every_kind_of_image_means_the_same(load: Load, images: list[Path]) -> None:
    path = images[1]
    image = Image.open(path).convert("RGB")
    array = np.asarray(image)
    kinds: list[Any] = [
        path,
        str(path),
        path.read_bytes(),
        image,
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
        {"bytes": path.read_bytes(), "path": None},
        {"bytes": None, "path": str(path)},
    ]
    output = load("pacs").compute(predictions=["a grey wall"] * len(kinds), images=kinds, per_caption=True)
    cosines = output["per_caption"]["cosine"]
    assert np.ptp(cosines) < 1e-6 < abs(cosines[0])


def test_columns_of_a_dataset_are_welcome(load: Load, weights: str, images: list[Path]) -> None:
    references = [[row] if isinstance(row, str) else row for row in REFERENCES]
    table = datasets.Dataset.from_dict(
        {"image": [str(path) for path in images], "caption": CAPTIONS, "references": references}
    ).cast_column("image", datasets.Image())
    output = load("refpacs").compute(
        predictions=table["caption"], images=table["image"], references=table["references"], per_caption=True
    )
    expected = capeval_core.load("refpacs", weights=weights).score(CAPTIONS, images, references)
    assert same(output["per_caption"]["refpac_s"], expected.scores)
    module = load("refpacs")
    for start in range(0, len(table), 4):
        batch = table[start : start + 4]  # images as PIL now, decoded by datasets
        module.add_batch(predictions=batch["caption"], images=batch["image"], references=batch["references"])
    assert math.isclose(module.compute()["refpac_s"], expected.mean, abs_tol=1e-6)


# Several processes and several metrics


@pytest.mark.system
def test_two_processes_equal_one(load: Load, weights: str, images: list[Path], tmp_path: Path) -> None:
    def batch(start: int, stop: int) -> dict[str, Any]:
        rows = slice(start, stop)
        return {"predictions": CAPTIONS[rows], "images": images[rows], "references": REFERENCES[rows]}

    nothing: dict[str, Any] = {"predictions": [], "images": [], "references": []}
    result = run_ranks(
        str(ROOT / "metrics" / "refpacs"),
        {"weights": weights, "cache_dir": str(tmp_path / "ranks"), "device": "cpu"},
        {
            "split": [[batch(0, 3), batch(3, 4)], [batch(4, 6)]],
            "an empty batch": [[batch(0, 6)], [nothing]],
            "no batch": [[], [batch(0, 6)]],
            "nothing at all": [[nothing], []],
            "dead": [[batch(0, 2)], None],
        },
    )
    alone = load("refpacs", device="cpu").compute(**batch(0, 6), per_caption=True)
    for name in ("split", "an empty batch", "no batch"):
        assert result[name]["signature"] == alone["signature"]
        assert math.isclose(result[name]["refpac_s"], alone["refpac_s"], abs_tol=1e-6), name
        for part, values in alone["per_caption"].items():
            if part != "errors":
                assert np.allclose(result[name]["per_caption"][part], values, rtol=0, atol=1e-6), (name, part)
    assert result["nothing at all"] == "predictions is empty: there is nothing to score"
    assert "it ended before its compute()" in result["dead"]


def test_processes_wait_long_for_each_other(load: Load) -> None:
    assert load("pacs").timeout >= 3600
    assert load("pacs", timeout=5).timeout == 5


def test_combined_metrics_share_their_input(load: Load, weights: str, images: list[Path]) -> None:
    # Those that score in portions as they are; texts alone stand beside images.
    names = [name for name in OF_CAPTIONS if name not in ("cider", "ciderd")]
    expected: dict[str, float] = {}
    for name in names:
        shown = {"images": images} if metric_class(name).media else {}
        metric = capeval_core.load(name, **weights_of(name, weights))
        expected |= metric.score(CAPTIONS, **shown, **needed(name)).numbers
    everything = evaluate.combine([load(name) for name in names])
    with pytest.warns(UserWarning, match="needs no references") as caught:
        output = everything.compute(predictions=CAPTIONS, images=images, references=REFERENCES)
        everything.compute(predictions=CAPTIONS, images=images, references=REFERENCES)
    ignored = [
        (f"{name} needs no references: they are ignored", not metric_class(name).needs_references)
        for name in names
    ]
    ignored += [
        (f"{name} compares texts alone: images are ignored", not metric_class(name).media) for name in names
    ]
    messages = [str(warning.message) for warning in caught]
    stands = [text for text in messages if "four words in a row" in text]  # of each evaluation
    assert len(stands) == 2 and "bleu_4=" in stands[0]
    assert [text for text in messages if text not in stands] == [text for text, holds in ignored if holds]
    assert {warning.filename for warning in caught} == {__file__}
    assert output.keys() == expected.keys()
    assert all(same(output[key], value) for key, value in expected.items())
    two = evaluate.combine([load("pacs"), load("refpacs")])
    two.add_batch(predictions=CAPTIONS[:3], images=images[:3], references=REFERENCES[:3])
    for caption, image, references in zip(CAPTIONS[3:], images[3:], REFERENCES[3:], strict=True):
        two.add(prediction=caption, images=image, reference=references)
    output = two.compute(per_caption=True)
    assert output.keys() == {
        "pac_s", "refpac_s", "pacs_per_caption", "pacs_signature", "refpacs_per_caption", "refpacs_signature",
        "pacs_counts", "refpacs_counts",
    }  # fmt: skip
    assert math.isclose(output["pac_s"], expected["pac_s"], abs_tol=1e-6)
    assert math.isclose(output["refpac_s"], expected["refpac_s"], abs_tol=1e-6)


# Options


def test_rows_on_disk_are_used_again(load: Load, images: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    copies = [tmp_path / path.name for path in images]
    for path, copy in zip(images, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    module = load("pacs", rows=folder)
    module.add_batch(predictions=CAPTIONS[:2], images=copies[:2])
    first = module.compute(predictions=CAPTIONS[2:], images=copies[2:], per_caption=True)
    shards = set(folder.glob("*.parquet"))
    second = load("pacs", rows=folder).compute(predictions=CAPTIONS, images=copies, per_caption=True)
    assert second == first
    assert set(folder.glob("*.parquet")) == shards


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"wieghts": "tiny"}, TypeError, "pacs has no option 'wieghts': did you mean 'weights'? (options: w"),
        ({"dtype": "float23"}, ValueError, "dtype='float23': expected 'float32' or 'bfloat16' or 'float16'"),
        ({"on_error": "ignore"}, ValueError, "on_error='ignore': expected 'raise' or 'nan'"),
        ({"w": -1.0}, ValueError, "w=-1.0: expected "),
        ({"evidence": True}, ValueError, "evidence=True: evaluate keeps numbers only"),
    ],
)
def test_wrong_options_are_refused_at_load(
    options: dict[str, Any], kind: type[Exception], message: str, load: Load
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        load("pacs", **options)


def test_a_module_describes_itself(weights: str, tmp_path: Path) -> None:
    for name in NAMES:
        metric = metric_class(name)
        own = weights_of(name, weights)
        module = evaluate.load(str(ROOT / "metrics" / name), cache_dir=str(tmp_path), **own)
        inputs = ["predictions", *(["images"] if metric.media else [])]
        inputs += ["references"] if metric.needs_references else []
        assert list(module.features) == inputs
        assert list(module.inputs) == [*inputs, "per_caption"]
        assert metric.title in module.description and metric.summary in module.description
        for name_of_input, meaning in module.inputs.items():
            assert f"\n    {name_of_input}: {meaning}" in module.description
        assert module.citation == metric.bibtex.strip() != ""
        assert module.license == f"Apache-2.0; weights {describe_metric(metric).weights}: " + (
            describe_metric(metric).licence
        )
        assert module.info.reference_urls and all(url in metric.paper for url in module.info.reference_urls)
        for option in describe_options(metric.Options):
            assert (f"\n    {option.name} (" in module.inputs_description) == (option.name != "evidence")
        assert ("references: per caption" in module.inputs_description) == metric.needs_references
        assert metric.key in module.compute.__doc__


@pytest.mark.parametrize(
    ("name", "medium"), [*((name, None) for name in capeval_core.list_metrics()), *MEDIA_VARIANTS]
)
def test_the_example_of_a_description_runs(
    name: str, medium: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)
    metric = metric_class(name, medium)
    example = doctest.DocTestParser().get_doctest(module_description(metric), {}, name, None, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert (outcome.failed, outcome.attempted) == (0, 4)
    assert all(part.source in module_usage(metric).replace("    >>> ", "") for part in example.examples[:3])


def test_addresses_come_from_one_constant(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", None)
    assert (load("pacs").homepage, load("pacs").codebase_urls) == ("", [])
    monkeypatch.setattr(project, "ADDRESS", "https://example.org/capeval")
    module = load("pacs")
    assert (module.homepage, module.codebase_urls) == ("https://example.org/capeval", [module.homepage])


@pytest.mark.parametrize("name", METRICS)
def test_the_entry_of_a_paper_is_that_of_the_paper(name: str) -> None:
    described = describe_metric(metric_class(name))
    entry = {key: value.replace("{", "").replace("}", "") for key, value in FIELD.findall(described.bibtex)}
    words = re.sub(r"\W+", " ", described.citation).split()
    assert " ".join(re.sub(r"\W+", " ", entry["title"]).split()) in " ".join(words)
    assert words[0] == entry["author"].split(",")[0] and entry["year"] in words


def test_the_licence_is_that_of_the_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["license_expression"] == project.LICENCE


def test_wrong_weights_are_refused_at_load() -> None:
    for wrong, message in (("tinny", "did you mean 'tiny'"), ("no/where/at/all", "neither a folder")):
        with pytest.raises(ValueError, match=message):
            evaluate.load(str(ROOT / "metrics" / "pacs"), weights=wrong)
    with pytest.raises(ValueError, match="did you mean weights='tiny'"):
        evaluate.load(str(ROOT / "metrics" / "pacs"), "tiny")


# Wrong input


def image() -> np.ndarray[Any, Any]:
    return np.full((8, 8, 3), 99, dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "given", "kind", "message"),
    [
        ("pacs", {"predictions": ["a"]}, ValueError, "images is missing: pass a list of images"),
        ("pacs", {"images": [image()]}, ValueError, "predictions is missing: pass a list of strings"),
        ("pacs", {"predictions": "a", "images": [image()]}, TypeError, "predictions is a single string"),
        ("pacs", {"predictions": [3], "images": [image()]}, TypeError, "predictions[0] is the number 3"),
        ("pacs", {"predictions": [""], "images": [image()]}, ValueError, "predictions[0] is empty: write"),
        ("pacs", {"predictions": [None], "images": [image()]}, ValueError, "predictions[0] is None"),
        (
            "pacs",
            {"predictions": ["a", "b"], "images": [image()]},
            ValueError,
            "len(predictions)=2 but len(images)=1",
        ),
        (
            "pacs",
            {"predictions": [], "images": [image()]},
            ValueError,
            "2 problems with the input:\n  predictions is empty",
        ),
        ("pacs", {"predictions": [], "images": []}, ValueError, "predictions is empty: there is nothing"),
        ("refpacs", {"predictions": [], "images": []}, ValueError, "predictions is empty: there is nothing"),
        ("pacs", {}, ValueError, "predictions is empty: there is nothing to score"),
        ("pacs", {"predictions": ["a"], "images": image()}, TypeError, "images is a single image"),
        ("pacs", {"predictions": ["a"], "images": ["no.jpg"]}, ValueError, "images[0]: there is no file"),
        ("refpacs", {"predictions": ["a"], "images": [image()]}, ValueError, "references is missing"),
        (
            "refpacs",
            {"predictions": ["a"], "images": [image()], "references": None},
            ValueError,
            "references is missing: this metric compares each caption with its references",
        ),
        (
            "refpacs",
            {"predictions": ["a"], "images": [image()], "references": [[]]},
            ValueError,
            "references[0] is empty: every caption needs at least one reference",
        ),
        (
            "refpacs",
            {"predictions": ["a"], "images": [image()], "references": [["x"], ["y"]]},
            ValueError,
            "len(predictions)=1 but len(references)=2",
        ),
        (
            "pacs",
            {"prediction": ["a"], "images": [image()]},
            TypeError,
            "pacs.compute has no argument 'prediction': did you mean 'predictions'? (arguments: ",
        ),
        (
            "pacs",
            {"predictions": ["a"], "image": [image()]},
            TypeError,
            "pacs.compute has no argument 'image': did you mean 'images'? (arguments: ",
        ),
        (
            "pacs",
            {"predictions": ["a"], "images": [image()], "w": 1.0},
            TypeError,
            "pacs.compute has no argument 'w': it is an option of the metric, "
            "pass it to evaluate.load(..., w=...)",
        ),
    ],
)
def test_wrong_input_is_refused_before_any_model_runs(
    name: str, given: dict[str, Any], kind: type[Exception], message: str, load: Load
) -> None:
    module = load(name)
    with counted(module.metric.encoder) as counts, pytest.raises(kind, match=f"^{re.escape(message)}"):
        module.compute(**given)
    assert (counts.images, counts.texts) == (0, 0)
    assert len(module) == 0


def test_all_complaints_come_at_once(load: Load) -> None:
    with pytest.raises(ValueError, match="2 problems with the input") as caught:
        load("pacs").add_batch(predictions=["", "b"], images=[image(), "no.jpg"])
    assert "predictions[0] is empty" in str(caught.value)
    assert "images[1]: there is no file 'no.jpg'" in str(caught.value)


def test_one_caption_at_a_time_is_checked_too(load: Load) -> None:
    module = load("refpacs")
    with pytest.raises(TypeError, match=re.escape("predictions[0] is a list of length 1: expected a string")):
        module.add(prediction=["a"], image=image(), reference="b")
    with pytest.raises(ValueError, match=re.escape("images[0] is None: every caption needs an image")):
        module.add(prediction="a", reference="b")
    with pytest.raises(ValueError, match=re.escape("references[0] is None: every caption needs")):
        module.add(prediction="a", image=image())
    with pytest.raises(TypeError, match="pass image or images, not both"):
        module.add(prediction="a", image=image(), images=image(), reference="b")
    with pytest.raises(TypeError, match=r"no argument 'caption' \(arguments: prediction, image, reference\)"):
        module.add(caption="a", image=image(), reference="b")


def test_a_refused_batch_leaves_the_others_as_they_are(load: Load, images: list[Path]) -> None:
    module = load("pacs")
    module.add_batch(predictions=CAPTIONS[:2], images=images[:2])
    with pytest.raises(ValueError, match="no file"):
        module.add_batch(predictions=["a", "b"], images=[images[2], "no.jpg"])
    assert len(module.compute(per_caption=True)["per_caption"]["pac_s"]) == 2


def test_after_an_empty_evaluation_the_next_one_works(load: Load, images: list[Path]) -> None:
    for keep_in_memory in (False, True):
        module = load("pacs", keep_in_memory=keep_in_memory)
        for _ in range(2):
            with pytest.raises(ValueError, match="there is nothing to score"):
                module.compute()
        assert module.compute(predictions=CAPTIONS, images=images)["pac_s"] > 0


def test_captions_of_broken_images_are_left_out_and_counted(
    load: Load, images: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(images[1].read_bytes()[:60])
    module = load("pacs", on_error="nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sound = module.compute(predictions=CAPTIONS[:3], images=images[:3])
    module.add_batch(predictions=CAPTIONS[:2], images=images[:2])
    with pytest.warns(
        UserWarning, match=r"pacs: 1 of 4 captions have no score .* predictions\[3\]"
    ) as caught:
        output = module.compute(
            predictions=[CAPTIONS[2], "a broken one"], images=[images[2], broken], per_caption=True
        )
    assert caught[0].filename == __file__
    assert math.isclose(output["pac_s"], sound["pac_s"], abs_tol=1e-6)
    assert math.isnan(output["per_caption"]["pac_s"][3])
    errors = output["per_caption"]["errors"]
    assert errors[:3] == [None] * 3
    assert errors[3].startswith("images[3]: ") and "broken.png" in errors[3]
    with pytest.warns(UserWarning, match="1 of 1 captions"):
        assert math.isnan(module.compute(predictions=["a"], images=[broken])["pac_s"])


# What is kept


def test_images_are_not_kept(load: Load, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    images = [Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype=np.uint8)) for _ in range(3)]
    alive = [weakref.ref(image) for image in images]
    module = load("pacs")
    module.add_batch(predictions=CAPTIONS[:3], images=images)
    images.clear()
    gc.collect()
    assert [image() for image in alive] == [None] * 3
    module._finalize()
    files = [path for path in (tmp_path / "rows").rglob("*") if path.suffix == ".arrow"]
    assert len(files) == 1
    assert files[0].stat().st_size < 10_000


def test_an_unused_module_can_be_pickled(load: Load, images: list[Path]) -> None:
    module = load("refpacs", w=1.0)
    given = {"predictions": CAPTIONS, "images": images, "references": REFERENCES, "per_caption": True}
    fresh = pickle.loads(pickle.dumps(module))
    assert fresh.compute(**given) == module.compute(**given)


# The folders


@pytest.mark.parametrize("name", NAMES)
def test_each_metric_has_a_complete_folder(name: str) -> None:
    folder = ROOT / "metrics" / name
    extras = "page,video" if "video" in media_of(name) else "page"
    assert (folder / "requirements.txt").read_text().split() == [f"capeval[{extras}]"]
    # Without the package evaluate tells what to install: by the name it has there, not by its module's.
    assert get_imports(str(folder / f"{name}.py")) == [("library", "capeval_core", "capeval", None)]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f'evaluate.load("metrics/{name}"' in card
