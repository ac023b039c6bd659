"""HICE-S and RefHICE-S: the formulas a second way, forwards counted, regions and phrases, explanations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_set
from capeval_core.testing import count_forwards
from tests.support.seeded import alpha_encoder

Floats = NDArray[np.float64]
CAPTIONS = ["a red star above a blue heart", "two dogs", "a dog runs in the park and a man sits", "?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Weights of the seeded Alpha-CLIP, which stay open."""
    place = str(tmp_path_factory.mktemp("alpha") / "weights")
    alpha_encoder().save_pretrained(place)
    kept = opened("hices", place)
    yield place
    del kept


def opened(name: str, folder: str, **options: Any) -> Any:
    usual = {"regions": "colours", "phrases": "chunks", "device": "cpu", "cache": FeatureCache()}
    return capeval_core.load(name, weights=folder, **{**usual, **options})


# The paper's formulas, one caption at a time, of cosines.


def maxima(x: Sequence[Floats], y: Sequence[Floats]) -> list[float]:
    """The best cosine of each x among all y."""

    def cosine(a: Floats, b: Floats) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    return [max(cosine(a, b) for b in y) for a in x]


def clamped(values: Sequence[float], w: float = 1.0) -> float:
    return w * max(sum(values) / len(values), 0)


def harmonic(*terms: float) -> float:
    return len(terms) / sum(1 / term for term in terms) if min(terms) > 0 else 0.0


SHAPES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)
"""Regions, phrases of the caption, phrases of each reference."""


@given(
    shapes=SHAPES,
    seed=st.integers(0, 2**32),
    likeness=st.sampled_from([0.0, 0.5, 2.0]),
    w=st.sampled_from([1.0, 2.5, 0.3]),
    whole=st.booleans(),
    reduction=st.sampled_from(["joint", "best", "mean", "pooled"]),
)
def test_eq_2_to_11_a_second_way(
    folder: str, shapes: Any, seed: int, likeness: float, w: float, whole: bool, reduction: str
) -> None:
    rng = np.random.default_rng(seed)
    common = likeness * rng.normal(size=6)

    def features(count: int) -> list[Floats]:
        return [rng.normal(size=6) + common for _ in range(count)]

    rows, expected = [], []
    for index, (regions, phrases, of_references) in enumerate(shapes):
        (image, caption), x, y = features(2), features(phrases), features(regions)
        texts, sets = features(len(of_references)), [features(count) for count in of_references]
        row: dict[str, Any] = {"index": index, "group": "key", "truncated": 0, "empty": False}
        row |= {"references": len(texts), "regions_dropped": 0, "without_phrases": 0}
        row |= {"cosine": maxima([image], [caption])[0], "phrase_cosines": maxima(x, [image])}
        row |= {"phrase_maxima": maxima(x, y or [image]), "region_maxima": maxima(y, x)}
        row["reference_cosines"] = [maxima([caption], [text])[0] for text in texts]
        row["caption_phrase_maxima"] = [maxima(x, own) for own in sets]
        row["reference_phrase_maxima"] = [maxima(own, x) for own in sets]
        rows.append(row)
        compared = [*y, image] if whole or not y else y
        p, r = clamped(maxima(x, compared), w), clamped(maxima(compared, x), w)
        terms = {"gitc": w * max(row["cosine"], 0), "precision": p, "recall": r, "litc": harmonic(p, r)}
        terms["hice"] = harmonic(terms["gitc"], terms["litc"])
        g = [max(cosine, 0) for cosine in row["reference_cosines"]]
        local = [harmonic(clamped(maxima(x, own)), clamped(maxima(own, x))) for own in sets]
        best = max(range(len(g)), key=lambda i: harmonic(g[i], local[i]))
        pool = [phrase for own in sets for phrase in own]
        terms["gttc"], terms["lttc"] = {
            "joint": (g[best], local[best]),
            "mean": (sum(g) / len(g), sum(local) / len(local)),
            "best": (max(g), max(local)),
            "pooled": (max(g), harmonic(clamped(maxima(x, pool)), clamped(maxima(pool, x)))),
        }[reduction]
        terms["refhice"] = harmonic(*(terms[name] for name in ("gitc", "litc", "gttc", "lttc")))
        expected.append({**terms, "region_count": regions, "phrase_count": phrases})
    options = {"w": w, "include_whole_image": whole}
    metric = opened("refhices", folder, reference_reduction=reduction, **options)
    result = metric.combine(pa.Table.from_pylist(rows, schema=metric.ROW))
    free = opened("hices", folder, **options)
    alone = free.combine(pa.Table.from_pylist(rows, schema=free.ROW))
    for row, plain in enumerate(expected):
        assert result.scores[row] == pytest.approx(plain.pop("refhice"), abs=1e-6)
        assert alone.scores[row] == pytest.approx(plain.pop("hice"), abs=1e-6)
        for name, value in plain.items():
            assert result.parts[name][row] == pytest.approx(value, abs=1e-6), name


# Real images and captions.


def rectangles(images: Sequence[Path], count: int) -> dict[str, list[Any]]:
    """So many masks of every image, by its id."""
    found = {}
    for path in images:
        width, height = Image.open(path).size
        rng = np.random.default_rng(count)
        masks = np.zeros((count, height, width), dtype=np.bool_)
        for mask in masks:
            top, left = rng.integers(0, height // 2), rng.integers(width // 4, width // 2)
            mask[top : top + height // 3 + 1, left : left + width // 4 + 1] = True
        found[path.stem] = list(masks)
    return found


def test_four_captions_of_thirty_masks_cost_31_images_and_a_further_one_none(
    folder: str, images: list[Path]
) -> None:
    masks = {"regions": rectangles(images, 30), "phrases": {text: [text] for text in [*CAPTIONS, "a fifth"]}}
    metric = opened("hices", folder, **masks)
    with count_forwards() as forwards:
        four = metric.score(CAPTIONS, [images[4]] * 4)
    assert forwards.items == 31 + 4 and four.parts["region_count"] == [30] * 4
    with count_forwards() as forwards:
        assert metric.score(["a fifth"], [images[4]]).parts["region_count"] == [30]
    assert forwards.items == 1
    limited = opened("hices", folder, **masks, max_regions=10)
    with count_forwards() as forwards:
        result = limited.score(CAPTIONS[:1], images[:1])
    assert forwards.items == 11 + 1 and result.parts["region_count"] == [10]
    assert "|max_regions:10|" in result.signature


# Explanations.


def bars(path: Path) -> list[Any]:
    """Eight upright bars that cover an image."""
    width, height = Image.open(path).size
    bar = np.arange(width) * 8 // width
    return [np.tile(bar == i, (height, 1)) for i in range(8)]


def test_phrases_about_regions_outside_the_square_are_not_judged(folder: str, tmp_path: Path) -> None:
    """Of a wide image with bars at both ends no phrase is wrong at any threshold; of its centre all."""
    Image.new("RGB", (160, 40), "white").save(tmp_path / "wide.png")
    Image.new("RGB", (40, 40), "white").save(tmp_path / "square.png")
    paths = [tmp_path / "wide.png", tmp_path / "square.png"]
    metric = opened("hices", folder, regions={path.stem: bars(path) for path in paths}, evidence=True)
    result = metric.score(["a wall and a door"] * 2, paths)
    wide, square = result.explain(0), result.explain(1)
    assert (wide["outside"], wide["square"], wide["regions_dropped"]) == (6, [60, 0, 100, 40], 6)
    assert [note["box"] for note in wide["regions"]] == [[60.0, 0.0, 80.0, 40.0], [80.0, 0.0, 100.0, 40.0]]
    for shown, expected in ((wide, (False, False)), (square, (True, True))):
        strict = shown.with_threshold(10.0)
        assert {(note["mistake"], note["judged"]) for note in strict["phrases"]} == {expected}
    assert square["outside"] == 0 and square.with_threshold(0.5) == square
    assert np.array_equal(square.plot(640, threshold=10.0), square.with_threshold(10.0).plot(640))
    for width in (320, 640):
        assert wide.plot(width).width == width


def test_no_explained_precision_or_recall_is_below_0() -> None:
    """Where all cosines are: phrases about shapes and colours that a drawing has not."""
    captions, images = ["four green stars", "a black cross"], [demo_set()[0].image, demo_set()[5].image]
    for whole in (False, True):
        options: dict[str, Any] = {"include_whole_image": whole, "evidence": True}
        metric = capeval_core.load("hices", weights="tiny", device="cpu", **options)
        result = metric.score(captions, images)
        for number, row in enumerate(metric.encode_all(metric.check(captions, images)).to_pylist()):
            assert max(*row["phrase_maxima"], *row["phrase_cosines"], *row["region_maxima"]) < 0
            found = result.explain(number)
            assert {note["precision"] for note in found["phrases"]} == {0.0}
            assert {note["recall"] for note in (*found["regions"], found["whole"]) if note} == {0.0}


@pytest.mark.parametrize("reduction", ["joint", "best", "mean", "pooled"])
def test_an_explanation_marks_the_references_that_the_score_is_made_of(
    reduction: str, folder: str, images: list[Path]
) -> None:
    metric = opened("refhices", folder, reference_reduction=reduction, evidence=True)
    references = [["a blue heart", "a red star and two dogs", "a man sits"], ["two dogs run", "a park"]]
    result = metric.score(CAPTIONS[:2], images[:2], references)
    for row, texts in enumerate(references):
        notes = result.explain(row)["compared"]
        assert [note["reference"] for note in notes] == texts
        chosen = {place for place, note in enumerate(notes) if note["chosen"]}
        of_all = range(len(texts))
        globally = max(of_all, key=lambda place: notes[place]["gttc"])
        locally = max(of_all, key=lambda place: notes[place]["lttc"])
        jointly = max(of_all, key=lambda place: harmonic(notes[place]["gttc"], notes[place]["lttc"]))
        expected = {"joint": {jointly}, "best": {globally, locally}}.get(reduction, set(of_all))
        assert chosen == expected
        if reduction in ("joint", "best"):
            largest = [notes[jointly]] * 2 if reduction == "joint" else [notes[globally], notes[locally]]
            assert result.parts["gttc"][row] == pytest.approx(largest[0]["gttc"], abs=1e-6)
            assert result.parts["lttc"][row] == pytest.approx(largest[1]["lttc"], abs=1e-6)
