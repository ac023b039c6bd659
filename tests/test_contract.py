"""The contract of every metric: this package's, and one of another package. It knows no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import capeval_core
from capeval_core.authoring import TokenIdf
from capeval_core.cache import FeatureCache
from capeval_core.integrations import reward
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from capeval_core.result import Result
from capeval_core.rows import COMMON
from capeval_core.testing import (
    CAPTIONS,
    CHECKS,
    IMAGE_OF,
    REFERENCES,
    Contract,
    close,
    count_forwards,
    samples,
    score,
    visuals_of,
)
from tests.outside import NAME as OUTSIDE
from tests.outside import installed
from tests.support.device import device
from tests.support.seams import LIMITS, network


def class_of(case: str) -> type[CaptionMetric]:
    """The class of a metric, `pacs`, or of its variant for another medium, `pacs:video`."""
    return metric_class(*case.split(":"))


CASES = [*METRICS, *(f"{name}:{medium}" for name, medium in MEDIA_VARIANTS)]


def is_tried_by_an_heir(case: str) -> bool:
    """Whether another case runs the same code with references added to it, as RefHICE-S runs HICE-S."""
    parent = class_of(case)
    for other in map(class_of, CASES):
        if other is not parent and issubclass(other, parent) and other.encode is parent.encode:
            return True
    return False


LAST = [case for case in CASES if not is_tried_by_an_heir(case)]
ALONE = [case for case in LAST if not issubclass(class_of(case), Reranker)]
EVERY = pytest.mark.parametrize("name", [*CASES, OUTSIDE])
LAST_OF_A_LINE = pytest.mark.parametrize("name", [*LAST, OUTSIDE])
EACH = pytest.mark.parametrize("name", [*ALONE, OUTSIDE])
"""Metrics that score each caption by itself; those that choose have their own tests of the same."""
SEES = pytest.mark.parametrize("name", [*(case for case in ALONE if class_of(case).media), OUTSIDE])
"""Those of them that open images or videos."""


@pytest.fixture(scope="module", autouse=True)
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The metric of another package is installed."""
    with installed(tmp_path_factory.mktemp("outside")):
        yield


def opened(name: str, weights: str, **options: Any) -> CaptionMetric:
    """The metric on the CPU, with a cache of its own, and with the weights if it has any."""
    common = {"device": device(), "cache": FeatureCache(), **needed(name)}
    if class_of(name).default_weights is not None:
        common["weights"] = weights
    return load(name, **taken(name, {**common, **options}))


def load(case: str, **options: Any) -> Any:
    """The metric of a case with these options alone."""
    return capeval_core.load(**dict(zip(("name", "media"), case.split(":"), strict=False)), **options)


def argument_of(metric: CaptionMetric) -> str | None:
    """What images are called: `images`, `videos`, or None for a metric that takes none."""
    return next(iter(visuals_of(metric, [])), None)


def taken(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those options that a metric takes."""
    return {
        option: value for option, value in options.items() if option not in class_of(name).Options.without
    }


def contract(name: str, weights: str, images: list[Path], folder: Path) -> Contract:
    """The checks of a metric with the weights, if it has any."""
    own = {} if class_of(name).default_weights is None else {"weights": weights}
    own = taken(name, {"device": device(), **own, **needed(name)})
    return Contract(class_of(name), images, folder, **own)


def cost(name: str, weights: str, images: list[Path], only: list[int]) -> int:
    """How many items these rows alone send through networks, with nothing in the cache."""
    metric = opened(name, weights)
    with count_forwards() as forwards:
        score(metric, images, only)
    assert bool(forwards.items) is (class_of(name).default_weights is not None)
    return forwards.items


@LAST_OF_A_LINE
@pytest.mark.parametrize("check", CHECKS)
def test_it_keeps_what_every_metric_promises(
    name: str, check: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    contract(name, weights, images, tmp_path).run(check)


@EVERY
def test_every_metric_and_option_is_described(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    contract(name, weights, images, tmp_path).run("check_facts")
    options = class_of(name).Options
    described = options.describe().values()
    fields = [field.name for field in dataclasses.fields(options)]
    assert [d.name for d in described] == [field for field in fields if field not in options.without]
    for d in described:
        assert d.help and d.type and not d.help.endswith(".")
        assert d.default is None or not d.choices or d.default in d.choices


@SEES
def test_equal_images_in_other_files_and_forms_run_once(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes(images[4].read_bytes())
    forms = [images[4], copy, str(copy), copy.read_bytes(), {"bytes": copy.read_bytes(), "path": None}]
    items = []
    for equal in (forms[:1], forms):
        metric = opened(name, weights)
        references = [["a"]] * len(equal) if metric.needs_references else None
        with count_forwards() as forwards:
            result = metric.score(["a dog"] * len(equal), references=references, **visuals_of(metric, equal))
        items.append(forwards.items)
        assert len(set(result.groups)) == len(set(result.scores)) == 1
    assert items[0] == items[1]


@EACH
def test_an_unneeded_reference_is_ignored_with_a_warning(name: str, weights: str, images: list[Path]) -> None:
    metric = opened(name, weights)
    if metric.needs_references:
        with pytest.raises(ValueError, match="references"):
            metric.score(["a dog"], **visuals_of(metric, images[:1]))
        return
    with pytest.warns(UserWarning, match=f"{metric.name} needs no references") as caught:
        result = metric.score(["a dog"], references=[["a cat"]], **visuals_of(metric, images[:1]))
    assert caught[0].filename == __file__
    assert result == metric.score(["a dog"], **visuals_of(metric, images[:1]))


@EACH
def test_the_input_is_checked_before_a_model_runs(name: str, weights: str, images: list[Path]) -> None:
    metric = opened(name, weights)
    references = [["a"], []] if metric.needs_references else None
    with count_forwards() as forwards, pytest.raises(ValueError) as caught:
        metric.score(
            ["a dog", ""], references=references, **visuals_of(metric, [images[0], "no-such-file.png"])
        )
    assert "captions[1]" in str(caught.value)
    assert (f"{argument_of(metric)}[1]" in str(caught.value)) is bool(metric.media)
    assert ("references[1]" in str(caught.value)) is metric.needs_references
    assert forwards.items == 0


@EVERY
def test_options_and_the_folder_of_rows_are_checked_first(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    """Before weights are opened, which lie nowhere here, and before an image is read."""
    (tmp_path / "file").write_text("mine")
    absent = {} if class_of(name).default_weights is None else {"weights": "./no-such-weights"}
    for options in ({"rows": tmp_path}, {"rows": tmp_path / "file"}, {"device": "cuda:77"}):
        if taken(name, options):
            with pytest.raises(ValueError) as caught:
                load(name, **absent, **options)
            (problem,) = caught.value.problems  # type: ignore[attr-defined]
            assert problem.where.startswith(f"{next(iter(options))}=")
    metric = opened(name, weights)
    with count_forwards() as forwards, pytest.raises(ValueError, match="is a file: pass a folder"):
        score(metric, ["no-such.png"] * len(images), rows=tmp_path / "file")
    assert forwards.items == 0


@EACH
def test_the_range_is_never_left(name: str, weights: str, images: list[Path]) -> None:
    metric = opened(name, weights)
    low, high = metric.range
    rng = np.random.default_rng(3)
    numbers = np.array([-1, -0.5, -1e-9, 0, 0.5, 1 - 2**-24, 1], np.float32).tolist()

    def value_of(type_: pa.DataType, number: float) -> Any:
        """A value of a column that holds nothing but this number."""
        if pa.types.is_fixed_size_list(type_):
            return [value_of(type_.value_type, number)] * type_.list_size
        if pa.types.is_list(type_):
            return [value_of(type_.value_type, number)]
        return number if pa.types.is_floating(type_) else None if pa.types.is_string(type_) else 0

    rows = []
    for index, always in enumerate([-1.0, 1.0] + [None] * 50):
        row = {"index": index, "group": str(index), "error": None, "truncated": 0, "empty": False}
        row["references"] = int(metric.needs_references)
        for column in list(metric.ROW)[len(COMMON) :]:
            row[column.name] = value_of(column.type, rng.choice(numbers) if always is None else always)
        rows.append(row)
    table = pa.Table.from_pylist(rows, schema=metric.ROW)
    extreme = metric.combine(table).scores
    assert low <= min(extreme) <= max(extreme) <= high
    for w in (2.0, 0.7) if "w" in metric.Options.describe() else ():
        moved = opened(name, weights, w=w).combine(table)  # cosines of -1 and 1 reach the ends
        assert moved.scores[:2] == pytest.approx(moved.range, abs=1e-12)
    if any("float" in str(column.type) or "double" in str(column.type) for column in metric.ROW):
        assert min(extreme) < max(extreme)
    for end in rows[:2]:  # an interval of scores at an end, and of another one, would pass it
        near = [{**end, "index": i, "group": str(i)} for i in range(5)] + [{**rows[2], "index": 5}]
        found = metric.combine(pa.Table.from_pylist(near, schema=metric.ROW))
        if (
            found.relative is None and found.zero_reason is None and np.ptp(found.scores) > 1e-9
        ):  # else there is none
            interval = found.interval(level=0.999)
            assert low <= interval.low <= interval.high <= high
    # A caption that is its own reference has a cosine of one, which rounding must not exceed.
    every = visuals_of(metric, [images[i] for i in IMAGE_OF])
    own = metric.score(CAPTIONS, references=CAPTIONS if metric.needs_references else None, **every)
    assert all(low <= value <= high for value in [*own.scores, *score(metric, images).scores])


@EACH
def test_truncation_is_counted_per_caption(name: str, weights: str, images: list[Path]) -> None:
    metric = opened(name, weights)
    long = "dog " * 600
    captions = [long, "a dog", "a cat"]
    references = [["a", long], ["a", long], ["a"]] if metric.needs_references else None
    result = metric.score(captions, references=references, **visuals_of(metric, images[:3]))
    if metric.default_weights is None:  # without a network, whatever is read is read whole
        assert result.counts.truncated == 0
    else:
        assert result.counts.truncated == (2 if metric.needs_references else 1)


SYNONYMS = Path(capeval_core.__file__).parent / "weights" / "tiny" / "chair" / "synonyms.txt"
ALTERNATIVES: dict[str, Any] = {
    "device": device(),
    "dtype": "bfloat16",
    "batch_size": 2,
    "on_error": "nan",
    "empty": "score",
    "compat": "released",
    "exif": "turn",
    "evidence": True,
    "w": 2.000001,
    "members": "tiny",
    "ensemble_weight": 3.5,
    "consensus_weight": 2.0,
    "threshold": 0.5,
    "consensus": "cider_d",
    "consensus_documents": "doc_image_all_pools",
    "prompt": "An image that shows ",
    "scale": "unit",
    "decoders": 1,
    "regions": "colours",
    "max_regions": 1,
    "phrases": "chunks",
    "phrase_style": "soft-spice",
    "mask_transform": "released",
    "include_whole_image": True,
    "reference_reduction": "mean",
    "layer": 0,
    "synonyms": str(SYNONYMS),
    "idf": "corpus",
    "fps": 2.0,
    "max_frames": 1,
}
"""A value other than the default for every option but those that name weights or a folder."""
OWN: dict[str, dict[str, Any]] = {
    "umic": {"regions": "tiny", "selection": "lxmert36"},
    "vilbertscore": {"regions": "tiny"},
}
"""Values of options that mean something else for a metric."""
CORPUS = ("cider", "ciderd", "pacs:video", "refpacs:video")
"""Metrics whose scores depend on what is scored together, unless statistics are given."""


@cache
def statistics(name: str, corpus: str) -> Any:
    """The statistics of some texts for a metric that needs them."""
    weights = {} if class_of(name).default_weights is None else {"weights": "tiny"}
    return load(name, **weights).prepare([[text] for text in corpus.split("|")])


def needed(name: str) -> dict[str, Any]:
    """Options without which the metric's scores depend on what is scored together."""
    return {"statistics": statistics(name, "a dog|two circles|hello|a")} if name in CORPUS else {}


WITH: dict[str, dict[str, Any]] = {"fps": {"on_error": "nan"}, "idf": {"statistics": None}}
"""Options beside another one: frames at hand have no times, and a table of no use is refused."""


def alternatives(name: str) -> dict[str, Any]:
    """Another value for every option of a metric."""
    own = {**ALTERNATIVES, **OWN.get(name, {})}
    if name in (*CORPUS, "vilbertscore"):
        own["statistics"] = statistics(name, "a dog|two dogs|a cat")
    return own | ({"idf": False} if name.endswith(":video") else {})


@LAST_OF_A_LINE
def test_the_signature_differs_where_scores_may(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    metric, shared = opened(name, weights), FeatureCache()
    few = [0, 1, 6]
    usual = score(metric, images, few)
    assert score(opened(name, weights), images, few).signature == usual.signature
    assert usual.signature.startswith(metric.signature().rpartition("|")[0])
    assert "\n" not in usual.signature and usual.signature.startswith(f"capeval:{metric.name}|")
    changes = {**alternatives(name), "cache": tmp_path / "cache", "rows": tmp_path / "rows"}
    signs = {name: option.sign for name, option in metric.Options.describe().items()}
    # The other variant of CHAIR needs data of NLTK: `tests/scores/chair` has it.
    without = {"weights", "variant"}
    assert signs.keys() - without <= changes.keys(), "give the new option a value in ALTERNATIVES"
    for option in signs.keys() & changes.keys():
        others = {"cache": shared} if signs[option] else {}
        others |= {**WITH.get(option, {}), option: changes[option]}
        changed = score(opened(name, weights, **others), images, few)
        if signs[option]:
            assert changed.signature != usual.signature, option
        else:
            assert changed.signature == usual.signature, option
            assert close(changed, usual), option


FURTHER: dict[str, tuple[Any, ...]] = {
    "mask_transform": ("released", "released_no_antialias"),
    "layer": (0, -2),
    "max_regions": (1, 2),
    "max_frames": (1, 2),
}
"""Several values of an option that decides what is encoded: two that are not the default may share a key."""


@LAST_OF_A_LINE
def test_no_setting_meets_the_features_of_another(name: str, weights: str, images: list[Path]) -> None:
    """A cache that all settings share gives each the scores of a cache of its own."""
    shared = FeatureCache()
    described = class_of(name).Options.describe().values()
    decides = [o.name for o in described if o.encodes or o.name in ("regions", "phrases")]
    settings: list[dict[str, Any]] = [{}]
    for option in decides:
        if option in alternatives(name):  # the other variant of CHAIR needs data of NLTK
            values = FURTHER.get(option, (alternatives(name)[option],))
            settings += [{**WITH.get(option, {}), option: value} for value in values]
    for setting in [*settings, {}]:
        found = score(opened(name, weights, **{**setting, "cache": shared}), images, [0, 1])
        assert close(found, score(opened(name, weights, **setting), images, [0, 1])), setting


@EACH
def test_other_weights_of_the_same_name_have_another_signature(
    name: str, weights: str, tmp_path: Path
) -> None:
    if class_of(name).default_weights is None:
        pytest.skip("without weights")
    here, there = tmp_path / "here" / "weights", tmp_path / "there" / "weights"
    encoder = network(str(class_of(name).network), weights, device=device())
    encoder.save_pretrained(here)
    config, tensors = dict(encoder.config), load_file(here / "model.safetensors")
    changed = next(key for key, tensor in tensors.items() if tensor.ndim == 2)
    tensors[changed] = tensors[changed].flip(0)
    config.pop("canary", None)
    type(encoder)(config, tensors, device=device()).save_pretrained(there)
    assert opened(name, str(here)).signature() != opened(name, str(there)).signature()


@EACH
def test_options_of_the_formula_need_no_new_run(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    score(opened(name, weights), images, rows=tmp_path)
    described = class_of(name).Options.describe().values()
    formula = [option.name for option in described if option.sign and not option.encodes]
    assert "compat" in formula or "compat" in class_of(name).Options.without
    options = {option: alternatives(name)[option] for option in formula}
    options |= WITH["idf"] if options.get("idf") is False else {}
    other = opened(name, weights, **options)
    with count_forwards() as forwards:
        kept = score(other, images, rows=tmp_path)
    assert forwards.items == 0
    assert kept == score(opened(name, weights, **options), images)


@EACH
def test_a_changed_row_is_computed_again_and_no_other(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    needs = class_of(name).needs_references
    captions, pictures = list(CAPTIONS), [images[i] for i in IMAGE_OF]
    references = [[r] if isinstance(r, str) else r for r in REFERENCES]

    def run(only: list[int], **options: Any) -> tuple[Result, int]:
        metric = opened(name, weights)
        given = visuals_of(metric, [pictures[i] for i in only])
        given["references"] = [references[i] for i in only] if needs else None
        with count_forwards() as forwards:
            result = metric.score([captions[i] for i in only], **given, **options)
        return result, forwards.items

    def costs_as_alone(changed: list[int]) -> bool:
        return run(list(range(len(captions))), rows=tmp_path)[1] == (run(changed)[1] if changed else 0)

    def scores_as_fresh() -> bool:
        every = list(range(len(captions)))
        return close(run(every, rows=tmp_path)[0], run(every)[0])

    assert costs_as_alone(list(range(len(captions))))
    captions[3] = "a cat"
    assert costs_as_alone([3])
    pictures[6] = images[2]
    assert costs_as_alone([6])
    if needs:
        references[1] = ["two circles", "a drawing"]
        assert costs_as_alone([1])
    assert costs_as_alone([]) and scores_as_fresh()
    captions[3], pictures[6] = CAPTIONS[3], images[IMAGE_OF[6]]  # back: only the last row of an index is kept
    assert costs_as_alone([3, 6]) and scores_as_fresh()


@SEES
def test_kept_failures_are_tried_again(name: str, weights: str, images: list[Path], tmp_path: Path) -> None:
    late = tmp_path / "late.png"
    pictures: list[Any] = list(images)
    pictures[2] = late
    metric = opened(name, weights, on_error="nan", rows=tmp_path / "rows")
    assert list(score(metric, pictures).errors) == [2]
    late.write_bytes(images[2].read_bytes())
    with count_forwards() as forwards:
        result = score(metric, pictures)
    assert result.errors == {} and forwards.items <= cost(name, weights, images, [2])
    assert bool(forwards.items) is (class_of(name).default_weights is not None)
    late.write_bytes(b"no image")
    assert list(score(metric, pictures).errors) == [2]
    late.write_bytes(images[2].read_bytes())
    assert score(metric, pictures) == result


@EACH
def test_what_was_computed_before_an_error_is_kept(
    name: str, weights: str, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two captions at a time; the third window dies.
    monkeypatch.setattr(LIMITS, "texts_between_shards", 2)
    metric = opened(name, weights)
    windows = 0

    def encode(batch: Any) -> Iterator[pa.Table]:
        nonlocal windows
        windows += 1
        if windows == 3:
            raise KeyboardInterrupt
        return type(metric).encode(metric, batch)

    monkeypatch.setattr(metric, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        score(metric, images, rows=tmp_path)
    kept = [len(pq.read_table(shard)) for shard in tmp_path.glob("*.parquet")]
    assert 0 < sum(kept) < len(CAPTIONS)
    result = score(opened(name, weights), images, rows=tmp_path)
    assert close(result, score(opened(name, weights), images))
    assert sum(len(pq.read_table(shard)) for shard in tmp_path.glob("*.parquet")) == len(CAPTIONS)


@EACH
def test_evidence_is_kept_on_request(name: str, weights: str, images: list[Path]) -> None:
    result = score(opened(name, weights, evidence=True), images)
    evidence = result.explain(3)
    assert evidence["caption"] == CAPTIONS[3]
    if "image" in class_of(name).media:
        assert str(images[IMAGE_OF[3]]) in evidence["image"]
    for name_of_part, part in result.parts.items():
        assert evidence[name_of_part] == part[3]
    assert result == dataclasses.replace(score(opened(name, weights), images), evidence=result.evidence)
    without = score(opened(name, weights), images)
    with pytest.raises(ValueError, match="evidence=True"):
        without.explain(3)
    for index in (-1, len(CAPTIONS)):
        with pytest.raises(IndexError, match=str(index)):
            result.explain(index)


@EACH
def test_metrics_of_the_same_weights_share_their_features(
    name: str, weights: str, images: list[Path]
) -> None:
    cache, class_ = FeatureCache(), class_of(name)
    alike = [case for case in CASES if class_of(case).media == class_.media or not class_.media]
    first = next(case for case in alike if class_of(case).tiny == (class_.tiny or "pacs"))
    one, two = opened(first, weights, cache=cache), opened(name, weights, cache=cache)
    score(one, images)
    with count_forwards() as forwards:
        score(two, images)
    if class_.needs_references == class_of(first).needs_references or class_.default_weights is None:
        assert forwards.items == 0
    else:  # the references only
        alone = cost(name, weights, images, list(range(len(CAPTIONS))))
        assert 0 < forwards.items < alone - len(images)


@LAST_OF_A_LINE
def test_the_settings_of_the_program_do_not_move_scores(name: str, weights: str, images: list[Path]) -> None:
    few = [0, 1, 6]
    expected = score(opened(name, weights), images, few)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert close(score(opened(name, weights), images, few), expected)
    for dtype in (torch.float64, torch.float16):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            assert close(score(opened(name, weights), images, few), expected)
        finally:
            torch.set_default_dtype(before)
    with torch.device("meta"):  # as while a large model is built
        assert close(score(opened(name, weights), images, few), expected)


@pytest.mark.parametrize("name", ["ciderd", "pacs:video"])
def test_every_number_of_statistics_is_in_the_signature(name: str) -> None:
    made = [
        TokenIdf({7: 0.5, 8: 2.0}, unseen=3.0),
        TokenIdf({7: 0.5, 8: 2.0}, unseen=2.5),
        TokenIdf({7: 0.5, 8: 1.5}, unseen=3.0),
        TokenIdf({7: 0.5, 9: 2.0}, unseen=3.0),
    ]
    counts: list[tuple[dict[Any, float], int]] = [
        ({"a": 2, "a dog": 1}, 3),
        ({"a": 2, "a dog": 1}, 4),
        ({"a": 2, "a dog": 2}, 3),
        ({"a": 2, "a cat": 1}, 3),
    ]
    if name == "ciderd":
        frequencies: Any = metric_class(name).statistics
        made = [frequencies.of_counts(*each) for each in counts]
    assert len({opened(name, "tiny", statistics=each).signature() for each in made}) == 4


@pytest.mark.parametrize("name", [*CORPUS, "vilbertscore"])
def test_statistics_are_those_of_the_corpus_or_made_before(
    name: str, weights: str, images: list[Path], tmp_path: Path
) -> None:
    idf = {"idf": "corpus"} if name == "vilbertscore" else {}
    metric = opened(name, weights, **idf, statistics=None)
    every, own = samples(metric, images), score(metric, images)
    table = metric.prepare(metric.corpus(every))
    made = opened(name, weights, **idf, statistics=table)
    assert score(made, images) == own and f"|statistics:{table.fingerprint}|" in own.signature
    assert f"|statistics:{table.fingerprint}|" in made.signature()
    parts = {part: values[3:4] for part, values in own.parts.items()}
    third = dataclasses.replace(own, scores=own.scores[3:4], groups=own.groups[3:4], parts=parts)
    assert close(score(made, images, [3]), third)
    few = score(metric, images, [0, 1, 2, 3, 4])
    assert few.signature != own.signature and few.scores != own.scores[:5]
    with pytest.raises(ValueError, match="not comparable"):
        few.compare(score(metric, images, [0, 1, 2, 3, 6]))
    if "statistics" in made.stamp():  # a part of the input can not be encoded alone
        for needs in (lambda: metric.encode_all(every), lambda: reward(metric)):
            with pytest.raises(ValueError, match=r"needs statistics of the whole corpus"):
                needs()
        score(metric, images, rows=tmp_path)
        with pytest.raises(ValueError, match=r"other settings.*statistics"):
            score(metric, images, [0, 1], rows=tmp_path)
