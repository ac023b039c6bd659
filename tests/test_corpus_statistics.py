"""The step `prepare`: a metric whose encoding needs an idf table of the whole corpus, behind every door."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import capeval_core
from capeval_core.commands.arguments import add_flags
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.visual import InputImage
from capeval_core.integrations import CaptionMetrics, reward
from capeval_core.integrations.evaluate_module import MetricModule
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import CorpusOptions, CorpusStatistics, Options
from capeval_core.registry import METRICS, metric_class
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.weights.catalogue import PACS_B32


@dataclass(frozen=True)
class Idf(CorpusStatistics):
    """How rare each word is: ln(number of texts / number of texts with the word)."""

    weight: dict[str, float]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.weight, sort_keys=True).encode()).hexdigest()[:8]


class RareWords(CaptionMetric):
    """Share of a caption's words, weighted by idf, that its references have."""

    name = "rarewords"
    title = "Rare words"
    key = "rare_words"
    summary = "Weighted share of words."
    paper = "Nobody, Nothing, Nowhere, https://example.org"
    range = (0.0, 1.0)
    needs_references = True
    default_weights = PACS_B32
    tiny = "pacs"
    Options: ClassVar[type[Options]] = CorpusOptions
    ROW = row_schema(column("share", pa.float32(), "share of the words"))

    options: CorpusOptions

    @classmethod
    def encoder_class(cls) -> type[ClipEncoder]:
        return ClipEncoder

    def open_models(self) -> dict[str, Model]:
        return {"words": Model("words", "1")}

    def prepare(self, texts: Sequence[str]) -> Idf:
        texts = sorted(texts)
        count = Counter(word for text in texts for word in set(text.split()))
        return Idf({word: math.log(len(texts) / n) for word, n in count.items()})

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        assert isinstance(self.options.statistics, Idf) and batch.references is not None
        idf = self.options.statistics.weight
        shares = []
        for caption, references in zip(batch.captions, batch.references, strict=True):
            words, others = caption.split(), " ".join(references).split()
            shares.append(sum(idf[w] for w in words if w in others) / sum(idf[w] for w in words))
        ENCODED.append(len(batch))
        n = len(batch)
        common = common_columns(
            batch, slice(0, n), groups=["g"] * n, errors=[None] * n, truncated=np.zeros(n, np.int32)
        )
        yield pa.table({**common, "share": pa.array(shares, pa.float32())}, schema=self.ROW)

    def aggregate(self, rows: pa.Table) -> Values:
        return Values(rows["share"].to_numpy().astype(np.float64), {})


ENCODED: list[int] = []
GREY = np.full((8, 8, 3), 128, "uint8")
CAPTIONS = ["a dog runs", "a cat sleeps", "the dog sleeps"]
REFERENCES = [["a dog"], ["a cat", "the cat sleeps"], ["a bird sings"]]
IMAGES = [GREY] * 3
NEEDS = r"rarewords needs statistics of the whole corpus.*prepare\(captions \+ references\)"


def opened(**options: Any) -> RareWords:
    return RareWords(CorpusOptions.of("rarewords", {"empty": "score", **options}))


def table_of(captions: list[str] = CAPTIONS) -> Idf:
    return opened().prepare([*captions, *(text for row in REFERENCES for text in row)])


@pytest.fixture(autouse=True)
def encoded() -> list[int]:
    ENCODED.clear()
    return ENCODED


class Module(MetricModule):
    """Its module for `evaluate`."""

    metric_name = "rarewords"

    @classmethod
    def configuration(cls, name: str | None = None) -> type[CaptionMetric]:
        return RareWords


class Words:
    """A processor whose token ids are the captions' numbers."""

    def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
        return [CAPTIONS[row[0]] for row in ids]


def test_a_score_takes_the_statistics_of_its_own_texts() -> None:
    result = opened().score(CAPTIONS, IMAGES, REFERENCES)
    # Of 7 texts 4 have "a", 3 "dog", one "runs": (ln 7/4 + ln 7/3) / (ln 7/4 + ln 7/3 + ln 7).
    texts = [*CAPTIONS, *(text for row in REFERENCES for text in row)]
    share = {
        word: math.log(len(texts) / sum(word in t.split() for t in texts)) for word in ("a", "dog", "runs")
    }
    expected = (share["a"] + share["dog"]) / sum(share.values())
    assert result.scores[0] == pytest.approx(expected, abs=1e-6)
    assert f"|statistics:{table_of().fingerprint}|" in result.signature
    fewer = opened().score(CAPTIONS[:2], IMAGES[:2], REFERENCES[:2])
    assert fewer.scores[0] != pytest.approx(expected, abs=1e-3)
    assert fewer.signature != result.signature
    with pytest.raises(ValueError, match=r"with the same statistics=metric\.prepare\(texts\) of one corpus"):
        fewer.compare(result)


def test_they_are_made_of_all_captions_then_all_references() -> None:
    given: list[list[str]] = []

    class Noted(RareWords):
        def prepare(self, texts: Sequence[str]) -> Idf:
            given.append(list(texts))
            return super().prepare(texts)

    metric = Noted(CorpusOptions.of("rarewords", {"empty": "score"}))
    for n in (3, 2):  # the statistics of one set are not those of the next
        metric.score(CAPTIONS[:n], IMAGES[:n], REFERENCES[:n])
        assert given.pop() == [*CAPTIONS[:n], *(text for row in REFERENCES[:n] for text in row)]
    assert metric.options.statistics is None


def test_statistics_made_before_are_in_signature_and_stamp() -> None:
    table = table_of()
    own, metric = opened().score(CAPTIONS, IMAGES, REFERENCES), opened(statistics=table)
    result = metric.score(CAPTIONS, IMAGES, REFERENCES)
    assert result.scores == own.scores
    assert f"|statistics:{table.fingerprint}|" in result.signature
    assert metric.stamp()["statistics"] == table.fingerprint
    part = metric.score(CAPTIONS[:1], IMAGES[:1], REFERENCES[:1])
    assert part.scores == own.scores[:1] and part.signature == result.signature.replace("refs:1-2", "refs:1")
    again = pickle.loads(pickle.dumps(metric))
    assert again.options.statistics == table and again.stamp() == metric.stamp()


def test_rows_of_other_statistics_are_refused(tmp_path: Path, encoded: list[int]) -> None:
    metric = opened(rows=tmp_path)
    first = metric.score(CAPTIONS, IMAGES, REFERENCES)
    assert opened(rows=tmp_path).score(CAPTIONS, IMAGES, REFERENCES) == first
    assert opened(rows=tmp_path, statistics=table_of()).score(CAPTIONS, IMAGES, REFERENCES).mean == first.mean
    assert encoded == [3]  # once: the others find the rows
    for other in (metric, opened(rows=tmp_path)):
        with pytest.raises(
            ValueError, match=r"rows of other settings \(statistics: '\w+' there, '\w+' now\)"
        ):
            other.score(["a bird", *CAPTIONS[1:]], IMAGES, REFERENCES)
    assert encoded == [3]


def test_a_part_is_encoded_with_statistics_of_the_whole_only(encoded: list[int]) -> None:
    expected = opened().score(CAPTIONS, IMAGES, REFERENCES)
    without, metric = opened(), opened(statistics=table_of())
    samples = metric.check(CAPTIONS, IMAGES, REFERENCES)
    encoded.clear()
    with pytest.raises(ValueError, match=NEEDS):
        without.encode_all(samples.select([0]))
    assert not encoded
    parts = [metric.encode_all(samples.select(rows)) for rows in ([2], [0, 1])]
    assert metric.combine(pa.concat_tables(parts)).scores == expected.scores


def test_evaluate_streams_with_statistics_and_else_takes_all_at_once(
    tmp_path: Path, encoded: list[int]
) -> None:
    expected = opened().score(CAPTIONS, IMAGES, REFERENCES)
    module = Module(cache_dir=str(tmp_path), empty="score")
    with pytest.raises(ValueError, match=NEEDS):
        module.add_batch(predictions=CAPTIONS[:1], images=IMAGES[:1], references=REFERENCES[:1])
    assert encoded == [3]  # those of `expected`
    every = {"predictions": CAPTIONS, "images": IMAGES, "references": REFERENCES}
    assert module.compute(**every) == {"rare_words": pytest.approx(expected.mean, abs=1e-12)}
    own = module.compute(**every, per_caption=True)
    assert own is not None and own["signature"] == expected.signature
    streaming = Module(cache_dir=str(tmp_path), empty="score", statistics=table_of())
    for i in range(3):
        streaming.add(prediction=CAPTIONS[i], image=GREY, reference=REFERENCES[i])
    found = streaming.compute(per_caption=True)
    assert found is not None and found["per_caption"]["rare_words"] == expected.scores
    assert f"|statistics:{table_of().fingerprint}|" in found["signature"]


@pytest.mark.parametrize("door", ["trainer", "reward"])
def test_training_needs_statistics_made_before(door: str, encoded: list[int]) -> None:
    def open_door(metric: CaptionMetric) -> Any:
        if door == "reward":
            return reward(metric)
        return CaptionMetrics(Words(), images=IMAGES, references=REFERENCES, metrics=[metric])

    with pytest.raises(ValueError, match=NEEDS):
        open_door(opened())
    expected = opened(statistics=table_of()).score(CAPTIONS, IMAGES, REFERENCES)
    opened_door = open_door(opened(statistics=table_of()))
    if door == "reward":
        assert opened_door(CAPTIONS[:1], IMAGES[:1], REFERENCES[:1]) == expected.scores[:1]
    else:
        labels = np.zeros((3, 1), dtype=int)
        evaluation = SimpleNamespace(predictions=np.array([[0], [1], [2]]), label_ids=labels)
        assert opened_door(evaluation) == {"rare_words": expected.mean}


class Brightness(CorpusStatistics):
    """Mean brightness of the images of a corpus, and how many pairs it has."""

    def __init__(self, values: Sequence[float]) -> None:
        self.mean, self.pairs = float(np.mean(values)), len(values)

    @property
    def fingerprint(self) -> str:
        return f"{self.mean:.3f}-{self.pairs}"


class Brighter(RareWords):
    """How much brighter an image is than those of the corpus."""

    corpus_texts = "[(image, reference), ...]"

    def corpus(self, samples: Samples) -> list[tuple[InputImage, str]]:
        pairs = zip(samples.images, samples.references or [], strict=True)
        return [(image, text) for image, texts in pairs for text in texts]

    def prepare(self, pairs: Sequence[tuple[Any, str]]) -> Brightness:  # type: ignore[override]
        return Brightness([np.asarray(InputImage.of(image).load()).mean() for image, _ in pairs])

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        assert isinstance(self.options.statistics, Brightness)
        mean = self.options.statistics.mean
        brighter = [float(np.asarray(image.load()).mean()) - mean for image in batch.images]
        common = common_columns(
            batch,
            slice(None),
            groups=[image.key for image in batch.images],
            errors=[None] * len(batch),
            truncated=np.zeros(len(batch), np.int32),
        )
        yield pa.table({**common, "share": pa.array(brighter, pa.float32())}, schema=self.ROW)


def test_statistics_of_images_are_made_of_pairs() -> None:
    metric = Brighter(CorpusOptions())
    images = [np.full((8, 8, 3), value, "uint8") for value in (10, 40, 100)]
    # The references are 1, 2 and 1: (10 + 2 * 40 + 100) / 4.
    assert metric.score(CAPTIONS, images, REFERENCES).scores == [10 - 47.5, 40 - 47.5, 100 - 47.5]
    pairs = [(image, text) for image, texts in zip(images, REFERENCES, strict=True) for text in texts]
    assert metric.prepare(pairs).fingerprint == "47.500-4"
    systems = [metric.check(captions, images, REFERENCES) for captions in (CAPTIONS, CAPTIONS[::-1])]
    shared = metric.prepared(*systems).options.statistics
    assert str(shared) == "47.500-4"  # references that systems share count once
    other = metric.check(CAPTIONS, images[::-1], REFERENCES)
    assert (
        str(metric.prepared(systems[0], other).options.statistics) == "50.000-6"
    )  # the middle image's are equal


def test_statistics_are_no_text_and_no_flag() -> None:
    with pytest.raises(TypeError, match=r"statistics='idf\.json': expected CorpusStatistics or None"):
        opened(statistics="idf.json")
    parser = argparse.ArgumentParser()
    add_flags(parser, CorpusOptions)
    assert "--batch-size" in parser.format_help() and "--statistics" not in parser.format_help()


@pytest.mark.parametrize("name", [name for name in METRICS if name in ("pacs", "eco")])
def test_metrics_without_statistics_pay_nothing(name: str) -> None:
    assert not issubclass(metric_class(name).Options, CorpusOptions)
    metric = capeval_core.load(name, weights="tiny", device="cpu")
    samples = metric.check([["a", "b"]] if name == "eco" else ["a"], [GREY])
    assert metric.prepare(["a"]) is None and metric.prepared(samples) is metric
    assert "statistics" not in metric.stamp() and "statistics" not in metric.signature()
