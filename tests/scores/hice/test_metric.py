"""HICE-S and RefHICE-S: the formulas a second way, forwards counted, rows used again, wrong input."""

from __future__ import annotations

import dataclasses
import json
import math
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

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import RegionFeatures
from capeval_core.inputs.visual import InputImage
from capeval_core.phrases.factual import FACTUAL
from capeval_core.phrases.graph import phrases_of
from capeval_core.phrases.source import Phrases
from capeval_core.regions.owlv2 import DETECTOR
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.regions import Regions
from capeval_core.regions.sam import SEGMENTER
from capeval_core.regions.source import RegionSource
from capeval_core.result import Result
from capeval_core.scores.hice import HiceS, RefHiceS
from capeval_core.scores.hice.rows import EncodedTexts, reference_columns, region_columns
from tests.support import seeded
from tests.support.counting import counted
from tests.support.seams import LIMITS

Floats = NDArray[np.float32]
REDUCTIONS = ("joint", "best", "mean", "pooled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A weights folder of the seeded Alpha-CLIP; its encoder stays loaded."""
    place = tmp_path_factory.mktemp("alpha") / "weights"
    seeded.alpha_encoder().save_pretrained(place)
    kept = type(seeded.alpha_encoder()).from_pretrained(place, device="cpu")
    yield place
    del kept


def opened(kind: type[HiceS], folder: Path, **options: Any) -> Any:
    """The metric on the CPU, with a cache of its own."""
    usual = {"regions": "colours", "phrases": "chunks", "device": "cpu", "cache": FeatureCache()}
    return kind(kind.Options.of(kind.name, {"weights": str(folder), **usual, **options}))


# The paper's formulas, one caption at a time, on plain lists.


def cosine(x: Floats, y: Floats) -> float:
    """Of two features; 0 where one of them is."""
    a, b = x.astype(float), y.astype(float)
    lengths = math.sqrt(sum(a * a)) * math.sqrt(sum(b * b))
    return float(sum(a * b)) / lengths if lengths else 0.0


def harmonic(*terms: float) -> float:
    return len(terms) / sum(1 / term for term in terms) if min(terms) > 0 else 0.0


def sets(x: Sequence[Floats], y: Sequence[Floats], w: float = 1.0) -> tuple[float, float]:
    """Precision of the phrases x (eq. 4, 7) and recall of y (eq. 5, 8)."""
    precision = sum(max(cosine(a, b) for b in y) for a in x) / len(x)
    recall = sum(max(cosine(a, b) for a in x) for b in y) / len(y)
    return w * max(precision, 0), w * max(recall, 0)


@dataclasses.dataclass(frozen=True)
class Text:
    whole: Floats
    phrases: list[Floats]


@dataclasses.dataclass(frozen=True)
class Case:
    image: Floats
    regions: list[Floats]
    caption: Text
    references: list[Text]


def plainly(case: Case, w: float, include_whole_image: bool, reduction: str) -> dict[str, float]:
    """Eq. 2 to 11 for one caption."""
    caption = case.caption
    compared = [*case.regions, case.image] if include_whole_image or not case.regions else case.regions
    p, r = sets(caption.phrases, compared, w)
    terms = {"gitc": w * max(cosine(case.image, caption.whole), 0), "precision": p, "recall": r}
    terms["litc"] = harmonic(p, r)
    terms["hice"] = harmonic(terms["gitc"], terms["litc"])
    g = [max(cosine(caption.whole, reference.whole), 0) for reference in case.references]
    local = [harmonic(*sets(caption.phrases, reference.phrases)) for reference in case.references]
    if reduction == "joint":
        best = max(range(len(g)), key=lambda i: harmonic(g[i], local[i]))
        terms |= {"gttc": g[best], "lttc": local[best]}
    elif reduction == "mean":
        terms |= {"gttc": sum(g) / len(g), "lttc": sum(local) / len(local)}
    elif reduction == "best":
        terms |= {"gttc": max(g), "lttc": max(local)}
    else:
        pool = [phrase for reference in case.references for phrase in reference.phrases]
        terms |= {"gttc": max(g), "lttc": harmonic(*sets(caption.phrases, pool))}
    terms["refhice"] = harmonic(terms["gitc"], terms["litc"], terms["gttc"], terms["lttc"])
    return terms


def reading(texts: Sequence[Text]) -> EncodedTexts:
    of_texts = [("phrase",) * len(text.phrases) for text in texts]
    none = np.zeros(len(texts), dtype=np.int64)
    phrases = np.stack([phrase for text in texts for phrase in text.phrases])
    return EncodedTexts(of_texts, np.stack([text.whole for text in texts]), phrases, none, none)


def rows_of(cases: Sequence[Case]) -> pa.Table:
    """The rows that the metric makes of these features."""
    shown: dict[int, RegionFeatures] = {}
    for case in cases:
        regions = np.array(case.regions, dtype=np.float32).reshape(-1, len(case.image))
        made = RegionFeatures(case.image, regions, np.arange(len(regions)), 0, "key")
        shown.setdefault(id(case.regions), made)
    images = [shown[id(case.regions)] for case in cases]
    counts = np.array([len(case.references) for case in cases], dtype=np.int64)
    captions = reading([case.caption for case in cases])
    columns = region_columns(captions, images)
    columns |= reference_columns(captions, reading([r for case in cases for r in case.references]), counts)
    n = len(cases)
    common = {
        "index": np.arange(n),
        "group": ["key"] * n,
        "error": pa.nulls(n, pa.string()),
        "truncated": np.zeros(n, np.int32),
        "references": counts.astype(np.int32),
        "empty": [False] * n,
    }
    return pa.table({**common, **columns}, schema=RefHiceS.ROW)


Shape = tuple[int, int, list[int]]
SHAPES = st.tuples(st.integers(0, 4), st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3))
"""Regions, phrases of the caption, phrases of each reference."""


def some_cases(shapes: Sequence[Shape], dimension: int, seed: int, likeness: float) -> list[Case]:
    """Random features, negative cosines among them; every second caption is of the image before."""
    rng = np.random.default_rng(seed)
    common = likeness * rng.normal(size=dimension)

    def feature() -> Floats:
        return (rng.normal(size=dimension) + common).astype(np.float32)

    def features(count: int) -> list[Floats]:
        return [feature() for _ in range(count)]

    cases: list[Case] = []
    for i, (regions, phrases, references) in enumerate(shapes):
        image, of_image = (cases[-1].image, cases[-1].regions) if i % 2 else (feature(), features(regions))
        compared = [Text(feature(), features(count)) for count in references]
        cases.append(Case(image, of_image, Text(feature(), features(phrases)), compared))
    return cases


@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=5),
    dimension=st.integers(2, 8),
    seed=st.integers(0, 2**32),
    likeness=st.sampled_from([0.0, 0.5, 2.0]),
    w=st.sampled_from([1.0, 2.5, 0.3]),
    include_whole_image=st.booleans(),
    reduction=st.sampled_from(REDUCTIONS),
)
def test_eq_2_to_11_a_second_way(
    folder: Path,
    shapes: list[Shape],
    dimension: int,
    seed: int,
    likeness: float,
    w: float,
    include_whole_image: bool,
    reduction: str,
) -> None:
    cases = some_cases(shapes, dimension, seed, likeness)
    expected = [plainly(case, w, include_whole_image, reduction) for case in cases]
    metric = opened(
        RefHiceS,
        folder,
        w=w,
        include_whole_image=include_whole_image,
        reference_reduction=reduction,
    )
    result = metric.combine(rows_of(cases))
    free = opened(HiceS, folder, w=w, include_whole_image=include_whole_image).aggregate(rows_of(cases))
    for row, plain in enumerate(expected):
        assert result.scores[row] == pytest.approx(plain.pop("refhice"), abs=1e-6)
        assert free.scores[row] == pytest.approx(plain.pop("hice"), abs=1e-6)
        for name, value in plain.items():
            assert result.parts[name][row] == pytest.approx(value, abs=1e-6), name
        assert result.parts["region_count"][row] == len(cases[row].regions)
        assert result.parts["phrase_count"][row] == len(cases[row].caption.phrases)


def test_the_best_region_of_each_phrase_and_the_best_phrase_of_each_region() -> None:
    """The sets of eq. 4 and 5 by hand: two phrases, three regions, one of them like neither phrase."""
    x, y, z = np.eye(3, dtype=np.float32)
    rows = rows_of([Case(x + y, [x, 0.6 * x + 0.8 * y, z], Text(x, [x, y]), [Text(x, [x])])])
    assert rows["phrase_maxima"].to_pylist() == [pytest.approx([1, 0.8])]
    assert rows["region_maxima"].to_pylist() == [pytest.approx([1, 0.8, 0])]
    assert rows["phrase_cosines"].to_pylist() == [pytest.approx([0.5**0.5, 0.5**0.5])]
    assert rows["caption_phrase_maxima"].to_pylist() == [[pytest.approx([1, 0])]]


def test_w_moves_the_ranking_by_refhice_and_not_that_by_hice(folder: Path) -> None:
    rows = rows_of(some_cases([(3, 2, [2])] * 60, 4, 11, 2.0))

    def order(kind: type[HiceS], w: float) -> list[int]:
        return np.argsort(opened(kind, folder, w=w).aggregate(rows).scores, kind="stable").tolist()

    assert order(HiceS, 1.0) == order(HiceS, 2.5)
    assert order(RefHiceS, 1.0) != order(RefHiceS, 2.5)


# Real images and captions.


class Rectangles(RegionSource):
    """So many rectangles in every image, and the number of calls."""

    name = "rectangles"

    def __init__(self, count: int) -> None:
        self.count, self.calls, self.fingerprint = count, 0, f"rectangles-{count}"

    def find(self, image: InputImage) -> Regions:
        self.calls += 1
        width, height = image.load().size
        rng = np.random.default_rng(self.count)
        masks = np.zeros((self.count, height, width), dtype=np.bool_)
        for mask in masks:
            top, left = rng.integers(0, height // 2), rng.integers(width // 4, width // 2)
            mask[top : top + height // 3, left : left + width // 4] = True
        return Regions.of(
            masks, size=(height, width), quality=rng.permutation(self.count) / max(self.count, 1)
        )


class Graphs:
    """Phrases of scene graphs, as a parser makes them of its output."""

    name, fingerprint = "graphs", "graphs-1"

    def __init__(self, graphs: dict[str, str], truncated: int = 0) -> None:
        self.graphs, self.truncated = graphs, truncated

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        parsed = [phrases_of(self.graphs.get(text, "")) for text in texts]
        return [
            Phrases(tuple(phrases or [text]), self.truncated, int(not phrases))
            for text, phrases in zip(texts, parsed, strict=True)
        ]


CAPTIONS = ["a red star above a blue heart", "two dogs", "a dog runs in the park and a man sits", "?"]


def values(result: Result) -> dict[str, list[float]]:
    return {"score": result.scores, **result.parts}


def close(actual: dict[str, list[float]], expected: dict[str, list[float]]) -> bool:
    return actual == {name: pytest.approx(part, abs=1e-6, nan_ok=True) for name, part in expected.items()}


@pytest.mark.parametrize("kind", [HiceS, RefHiceS])
def test_a_batch_is_each_caption_alone_in_any_order(
    kind: type[HiceS], folder: Path, images: list[Path]
) -> None:
    captions = [CAPTIONS[i % 4] for i in range(7)]
    shown = [images[i % 3] for i in range(7)]
    references = [[CAPTIONS[(i + k) % 4] for k in range(1 + i % 3)] for i in range(7)]

    def run(chosen: Sequence[int], **options: Any) -> dict[str, list[float]]:
        metric = opened(kind, folder, **options)
        compared = [references[i] for i in chosen] if kind.needs_references else None
        return values(metric.score([captions[i] for i in chosen], [shown[i] for i in chosen], compared))

    together = run(range(7))
    for i in range(7):
        assert close(run([i]), {name: part[i : i + 1] for name, part in together.items()})
    order = [3, 0, 6, 5, 1, 1, 2, 4, 0]
    assert close(run(order), {name: [part[i] for i in order] for name, part in together.items()})
    assert close(run(range(7), batch_size=1), together)


def test_windows_of_texts_change_nothing(
    folder: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    references = [["one"], ["two dogs", "a star", "a heart"], ["a dog in the park"], ["x", "y"]]
    usual = opened(RefHiceS, folder).score(CAPTIONS, images[:4], references)
    for texts in (1, 3, 5):
        monkeypatch.setattr(LIMITS, "hice_texts", texts)
        result = opened(RefHiceS, folder).score(CAPTIONS, images[:4], references)
        assert close(values(result), values(usual)) and result.groups == usual.groups


def test_four_captions_of_thirty_masks_cost_31_forwards_and_a_further_one_none(
    folder: Path, images: list[Path]
) -> None:
    source = Rectangles(30)
    metric = opened(HiceS, folder, regions=source)
    with counted(metric.encoder) as forwards:
        four = metric.score(CAPTIONS, [images[4]] * 4)
    assert (forwards.masked, source.calls) == (31, 1)
    with counted(metric.encoder) as forwards:
        fifth = metric.score(["a fifth caption"], [images[4]])
    assert (forwards.masked, forwards.images, source.calls) == (0, 0, 1)
    assert four.parts["region_count"] == [30] * 4 and fifth.parts["region_count"] == [30]


@pytest.mark.parametrize(
    "changed",
    [
        {"w": 1.0},
        {"include_whole_image": True},
        *({"reference_reduction": reduction} for reduction in REDUCTIONS[1:]),
    ],
    ids=str,
)
def test_options_of_the_formula_need_no_new_run(
    changed: dict[str, Any], folder: Path, images: list[Path], tmp_path: Path
) -> None:
    references = [["a star", "a red star above a heart"], ["dogs", "two dogs run"]]
    inputs = (CAPTIONS[:2], images[:2], references)
    opened(RefHiceS, folder).score(*inputs, rows=tmp_path)
    other = opened(RefHiceS, folder, **changed)
    with counted(other.encoder) as forwards:
        again = other.score(*inputs, rows=tmp_path)
    assert (forwards.masked, forwards.texts) == (0, 0)
    assert again == opened(RefHiceS, folder, **changed).score(*inputs)


@pytest.mark.parametrize(
    "changed",
    [
        {"regions": Rectangles(3)},
        {"max_regions": 1},
        {"phrases": Graphs({})},
        {"phrase_style": "soft-spice"},
        {"mask_transform": "released"},
        {"mask_transform": "released_no_antialias"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_options_of_the_encoding_refuse_rows_of_others(
    changed: dict[str, Any], folder: Path, images: list[Path], tmp_path: Path
) -> None:
    opened(HiceS, folder).score(CAPTIONS[:1], images[:1], rows=tmp_path)
    with pytest.raises(ValueError, match=f"other settings.*{next(iter(changed))}"):
        opened(HiceS, folder, **changed).score(CAPTIONS[:1], images[:1], rows=tmp_path)


def test_sources_of_one_name_sign_by_what_they_give(folder: Path) -> None:
    masks = np.ones((4, 4), dtype=np.bool_)
    options = [
        {},
        {"regions": Rectangles(1)},
        {"regions": Rectangles(2)},
        {"regions": {"a": []}},
        {"regions": {"a": [masks]}},
        {"phrases": {"a": ["b"]}},
        {"phrases": {"a": ["c"]}},
    ]
    signatures = {opened(HiceS, folder, **each).signature() for each in options}
    assert len(signatures) == len(options)
    assert "|regions:colours@" in opened(HiceS, folder).signature()


# What can be wrong with regions, phrases and images.


def test_without_regions_the_whole_image_is_the_region(folder: Path, images: list[Path]) -> None:
    grey = Image.new("RGB", (60, 40), (128, 128, 128))  # colours finds nothing here
    result = opened(HiceS, folder, evidence=True).score(CAPTIONS[:3], [grey, images[0], grey])
    assert (
        result.parts["region_count"][0]
        == result.parts["region_count"][2]
        == 0
        < result.parts["region_count"][1]
    )
    assert all(math.isfinite(score) for score in result.scores) and result.counts.failed == 0
    with_whole = opened(HiceS, folder, include_whole_image=True).score(CAPTIONS[:1], [grey])
    assert with_whole.scores == [pytest.approx(result.scores[0], abs=1e-6)]


def test_one_region(folder: Path, images: list[Path]) -> None:
    result = opened(HiceS, folder, regions=Rectangles(1)).score([CAPTIONS[1]], [images[0]])
    assert result.parts["region_count"] == [1] and result.parts["phrase_count"] == [1]
    assert result.parts["precision"] == result.parts["recall"]  # one phrase, one region: one cosine


def test_five_hundred_regions_and_the_best_ten_of_them(folder: Path, images: list[Path]) -> None:
    metric = opened(HiceS, folder, regions=Rectangles(500))
    assert metric.score(CAPTIONS[:1], images[:1]).parts["region_count"] == [500]
    limited = opened(HiceS, folder, regions=Rectangles(500), max_regions=10)
    with counted(limited.encoder) as forwards:
        result = limited.score(CAPTIONS[:1], images[:1])
    assert forwards.masked == 11 and result.parts["region_count"] == [10]
    assert "|max_regions:10|" in result.signature


def test_regions_that_are_cropped_away_are_dropped_and_counted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("RGB", (90, 30), (200, 10, 10)).save(path)
    left, middle = np.zeros((2, 30, 90), dtype=np.bool_)
    left[:, :5], middle[5:20, 35:50] = True, True
    result = opened(HiceS, folder, regions={"wide": [left, middle]}).score(CAPTIONS[:1], [path])
    assert result.parts["region_count"] == [1] and result.parts["regions_dropped"] == [1]


def test_masks_of_another_size_cost_their_image(folder: Path, images: list[Path]) -> None:
    whole = np.ones((60, 90), dtype=np.bool_)
    masks = {"0": [whole], "1": [np.ones((3, 3), dtype=np.bool_)]}
    metric = opened(HiceS, folder, regions=masks, on_error="nan")
    result = metric.score(CAPTIONS[:3], [images[0], images[1], images[2]])
    assert sorted(result.errors) == [1, 2] and math.isfinite(result.scores[0])
    assert "images[1]: mask 0 of" in result.errors[1] and "is 3 high and 3 wide" in result.errors[1]
    assert "images[2]: there are no precomputed masks of" in result.errors[2]
    assert all(math.isnan(part[1]) for part in result.parts.values())
    with pytest.raises(ValueError, match=r"(?s)images\[1\]: mask 0.*images\[2\]: there are no"):
        opened(HiceS, folder, regions=masks).score(CAPTIONS[:3], images[:3])


def test_empty_masks_are_dropped_and_counted(folder: Path, images: list[Path]) -> None:
    whole = np.ones((60, 90), dtype=np.bool_)
    result = opened(HiceS, folder, regions={"0": [whole, ~whole]}).score(CAPTIONS[:1], images[:1])
    assert result.parts["region_count"] == [1] and result.parts["regions_dropped"] == [1]
    none = opened(HiceS, folder, regions={"0": [~whole]}).score(CAPTIONS[:1], images[:1])
    assert none.parts["region_count"] == [0] and math.isfinite(none.mean)


def test_a_broken_image_costs_its_captions(folder: Path, images: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(images[0].read_bytes()[:300])
    shown = [images[0], broken, images[1], broken]
    result = opened(RefHiceS, folder, on_error="nan").score(CAPTIONS, shown, [["a dog"]] * 4)
    assert sorted(result.errors) == [1, 3] and "images[3]" in result.errors[3]
    assert all(math.isnan(values(result)[part][1]) for part in ("score", "gitc", "litc", "region_count"))
    sound = opened(RefHiceS, folder).score(CAPTIONS[::2], images[:2], [["a dog"]] * 2)
    assert [result.scores[0], result.scores[2]] == pytest.approx(sound.scores, abs=1e-6)


def test_a_caption_of_400_words_is_counted_as_truncated(folder: Path, images: list[Path]) -> None:
    long = " ".join(f"There is a small red star beside the big blue heart number {i}." for i in range(31))
    assert len(long.split()) > 400
    result = opened(HiceS, folder).score([long, "a star"], images[:2])
    assert result.counts.truncated == 1 and result.parts["phrase_count"][0] > 10
    # Neither the text encoder nor the rules cut this one, but a parser may.
    cut = opened(HiceS, folder, phrases=Graphs({}, truncated=2)).score(["a star"], images[:1])
    assert cut.counts.truncated == 1


def test_phrases_that_the_text_encoder_cuts_are_counted(folder: Path, images: list[Path]) -> None:
    """The caption fits into the encoder; of what a source makes of it some phrases do not."""
    long = "star " * 100  # 102 token ids with both marks, of which 77 are read
    phrases = {"a star": ["a star", long, f"red {long}"], "a heart": ["a heart"]}
    metric = opened(RefHiceS, folder, phrases=phrases)
    captions = ["a star", "a heart", "a heart"]
    samples = metric.check(captions, images[:3], [["a heart"], ["a heart"], ["a heart", "a star"]])
    rows = metric.encode_all(samples)
    assert rows["truncated"].to_pylist() == [25 + 26, 0, 25 + 26]  # references count, too
    assert metric.combine(rows).counts.truncated == 2
    part = opened(HiceS, folder, phrases=phrases)
    rows = part.encode_all(part.check(captions, images[:3]))
    assert rows["truncated"].to_pylist() == [25 + 26, 0, 0]


@pytest.mark.parametrize("graph", ["", "( )", "wall", "( dog ) , ( park )", "( , , )"])
def test_a_graph_without_a_fact_leaves_the_caption_as_its_own_phrase(
    graph: str, folder: Path, images: list[Path]
) -> None:
    result = opened(HiceS, folder, phrases=Graphs({CAPTIONS[0]: graph})).score(CAPTIONS[:1], images[:1])
    own = opened(HiceS, folder, phrases={CAPTIONS[0]: [CAPTIONS[0]]}).score(CAPTIONS[:1], images[:1])
    assert result.scores == own.scores
    assert result.parts["without_phrases"] == [1] and result.parts["phrase_count"] == [1]


@pytest.mark.parametrize(
    "graph", ["( star , is , red ) , ( star , ab", "(( star , is , red )", "star , is , red )"]
)
def test_what_can_be_read_of_a_broken_graph_is_used(graph: str, folder: Path, images: list[Path]) -> None:
    result = opened(HiceS, folder, phrases=Graphs({CAPTIONS[0]: graph})).score(CAPTIONS[:1], images[:1])
    assert result.parts["phrase_count"] == [1] and math.isfinite(result.mean)


def test_precomputed_phrases_and_regions(folder: Path, images: list[Path], tmp_path: Path) -> None:
    masks = Rectangles(3).segment(images[0])
    phrases = {CAPTIONS[0]: ["red star", "blue heart"], CAPTIONS[1]: []}
    expected = opened(HiceS, folder, regions=Rectangles(3), phrases=phrases).score(
        CAPTIONS[:2], [images[0]] * 2
    )
    assert expected.parts["phrase_count"] == [2, 1] and expected.parts["without_phrases"] == [0, 1]
    by_name = {"0": masks.coco()}
    (tmp_path / "masks.json").write_text(json.dumps(by_name))
    (tmp_path / "phrases.json").write_text(json.dumps(phrases))
    of_content = PrecomputedRegions.of([images[0]], [list(masks.masks())])
    for regions in (by_name, tmp_path / "masks.json", str(tmp_path / "masks.json"), of_content):
        metric = opened(HiceS, folder, regions=regions, phrases=tmp_path / "phrases.json")
        result = metric.score(CAPTIONS[:2], [images[0]] * 2)
        assert result.scores == pytest.approx(expected.scores, abs=1e-6)
    with pytest.raises(ValueError, match=r"phrases have no entry for 'another'"):
        metric.score(["another"], images[:1])


def test_sources_of_the_user_must_give_phrases_of_every_text(folder: Path, images: list[Path]) -> None:
    class Silent(Graphs):
        def phrases(self, texts: Sequence[str]) -> list[Phrases]:
            return [Phrases(()) for _ in texts]

    with pytest.raises(ValueError, match="phrases='graphs' gave 1 texts 1 results, 1 of them without"):
        opened(HiceS, folder, phrases=Silent({})).score(CAPTIONS[:1], images[:1])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"regions": 3}, TypeError, "regions=3: expected str or path or mapping or RegionSource or None"),
        ({"phrases": 3.5}, TypeError, "phrases=3.5: expected str or path or mapping or PhraseSource or None"),
        ({"regions": "colors"}, ValueError, "did you mean 'colours'"),
        ({"phrases": "chunk"}, ValueError, "did you mean 'chunks'"),
        ({"regions": {"a": "b"}}, TypeError, r"masks\['a'\] is a str: expected a list"),
        ({"phrases": {"a": "b"}}, TypeError, "pass a list of phrases"),
        ({"max_regions": 0}, ValueError, "max_regions=0: expected a number of at least 1"),
        ({"reference_reduction": "first"}, TypeError, "has no option 'reference_reduction'"),
        ({"mask_transform": "square"}, ValueError, "did you mean 'square_crop'"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], kind: type[Exception], message: str, folder: Path) -> None:
    with pytest.raises(kind, match=message):
        opened(HiceS, folder, **options)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub that refuses every connection."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regions": "objects"}, [f"segmenter {SEGMENTER!r} could not be loaded", 'regions="colours"']),
        (
            {"regions": "rectangles"},
            [f"detector {DETECTOR!r} could not be loaded", "hf download", "masks.json"],
        ),
        ({"phrases": "factual"}, [FACTUAL, 'phrases="chunks"', "could not be loaded"]),
        ({"phrases": "org/parser@v2"}, ["org/parser", "v2", 'phrases="chunks"']),
    ],
    ids=str,
)
def test_a_model_that_could_not_be_loaded_names_the_alternatives(
    options: dict[str, Any], message: list[str], folder: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        opened(HiceS, folder, **options)
    assert [words for words in message if words not in str(caught.value)] == []
