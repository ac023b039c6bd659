"""EMScore, which PAC-S for videos follows: features, idf, scores of pairs alone, and of padded batches.

A case is a folder with config.json, manifest.json, inputs/texts.json, inputs/videos.npz and outputs.npz.

Scores are compared three ways, through rows and parts of the metrics:
- `alone_*`, `paper_*` and `single_*` hold no padding. The original divides signed means, so our F does, too,
  for all of them (`compat="released"`); eq. 5 and 6 are formed of those parts by the formulas of the module.
  The same by default, `..., by default`, where no mean is negative: a negative one counts as 0 there.
- The batched runs pad, and padding enters their maxima. `RUN/BLOCK/FIELD, without padding` is what we give:
  for runs without idf, and those whose idf is of the nine references, beside what follows from `alone_*`,
  for all others beside the run itself where padding changes nothing.
- `RUN/BLOCK/FIELD`, `batched_*`, `paper_batched_*`: rows whose maxima are raised to 0 where the counterpart
  was padded, which is all that padding does, aggregated as ever, beside the run itself. A frame's counterpart
  is the caption.

F = 2PR / (P + R) has 2(P^2 + R^2) / (P + R)^2 times the error of P and R, at most twice where both are
positive: where their signs differ its tolerance is larger by as much. Nothing in outputs.npz is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import capeval_core
from capeval_core.cache import FeatureCache
from tests.golden.case import Array, Case, Comparison, Place, compare, converted, opened, padded, save, unit
from tests.support.device import device
from tests.support.seams import read_video, visual

LETTERS = {"P": "precision", "R": "recall", "F": "fine"}
BLOCKS = {"X,V": ("",), "X,R": ("reference_",), "X,V,R": ("", "reference_")}
"""Blocks of a run, and the parts of which each is the mean."""
WEIGHTED = ("idf", "noidf")
ALONE = "scores_single_alone_paper"


class Run(NamedTuple):
    """A run of the original: which references, videos and captions, and which idf."""

    name: str
    references: list[list[str]] | None
    weighted: str = "idf"
    count: int | None = None
    table: Any = None
    shows_video: bool = True


class Runs:
    """Rows and parts of runs."""

    def __init__(self, case: Case, weights: Path) -> None:
        self.case, self.weights, self.cache = case, weights, FeatureCache()
        texts, videos = case.json("texts"), case.npz("videos")
        self.names, self.candidates = list(texts["videos"]), list(texts["candidates"])
        self.videos = [videos[name] for name in self.names]
        self.nine, self.ragged = texts["references_9"], texts["references_ragged"]
        self.ones, self.corpus = [own[:1] for own in self.nine], texts["idf_corpus"]

    def metric(self, run: Run, **options: Any) -> Any:
        settings = {"weights": str(self.weights), "device": device(), "cache": self.cache, "empty": "score"}
        settings |= {"idf": run.weighted != "noidf", "statistics": run.table, "compat": "released"}
        name = "pacs" if run.references is None else "refpacs"
        return capeval_core.load(name, media="video", **{**settings, **options})

    def rows(self, run: Run, **options: Any) -> tuple[Any, pa.Table]:
        metric = self.metric(run, **options)
        samples = metric.check(self.candidates[: run.count], self.videos[: run.count], run.references)
        return metric, metric.encode_all(samples)

    def parts(self, run: Run, *, as_padded: bool, **options: Any) -> dict[str, Array]:
        metric, rows = self.rows(run, **options)
        values = metric.aggregate(self.pad(metric, rows, **options) if as_padded else rows)
        return {name: np.asarray(part) for name, part in values.parts.items()}

    def pad(self, metric: Any, rows: pa.Table, **sampling: Any) -> pa.Table:
        """Rows as one batch of the original makes them.

        It pads videos, captions and references to the longest of the batch, and padding has similarity 0:
        where the counterpart is shorter than the longest, maxima are at least 0.
        """
        frames, lengths = rows["frames"].to_numpy(), inner(rows["caption_ids"])[1]
        columns = {"caption_maxima": raised(rows["caption_maxima"], frames < frames.max())}
        maxima = self.frame_maxima(metric.encoder, len(rows), **sampling)
        recall = [
            np.maximum(own, 0).mean() if length < lengths.max() else own.mean()
            for own, length in zip(maxima, lengths, strict=True)
        ]
        columns["frame_recall"] = pa.array(recall, rows.schema.field("frame_recall").type)
        if "reference_ids" in rows.column_names:
            ids, counts = inner(rows["reference_ids"])
            of_references, of_captions = inner(ids)[1], np.repeat(lengths, counts)
            for name, shorter in (
                ("reference_caption_maxima", of_references < of_references.max()),
                ("reference_maxima", of_captions < lengths.max()),
            ):
                columns[name] = lists_of(raised(inner(rows[name])[0], shorter), counts)
        for name, column in columns.items():
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
        return rows

    def frame_maxima(self, encoder: Any, count: int, **sampling: Any) -> list[Array]:
        """Per caption the best cosine over its tokens of each frame that is used."""
        tokens = encoder.encode_tokens(self.candidates[:count], cache=self.cache).features
        found = []
        for own, video in zip(tokens, self.videos[:count], strict=True):
            frames = [video[index] for index in read_video(list(video), **sampling)[1]]
            images = [visual("image", frame) for frame in frames]
            parts = [part.features for part in encoder.encode_images(images, cache=self.cache)]
            found.append((unit(np.concatenate(parts)) @ unit(own).T).max(axis=1))
        return found

    def all(self) -> Iterator[Run]:
        """All runs of the original that score several pairs, or one, in one batch."""
        for weighted in WEIGHTED:
            yield Run("refs1", self.ones, weighted)
            yield Run("refs9", self.nine, weighted)
            yield Run("ragged", self.ragged, weighted)
            yield Run("norefs", None, weighted)
            yield Run("refs9_novideo", self.nine, weighted, shows_video=False)
            yield Run("single", self.ones[:1], weighted, count=1)
        yield Run("sampled10", self.nine, "corpusidf")


def run(case: Case) -> Iterator[Comparison]:
    config, preprocessing = case.config, {"image_size": case.config["model"]["image_resolution"]}
    preprocessing |= {"mean": config["image_mean"], "std": config["image_std"]}
    with Place() as place:
        checkpoint = save(case.tensors(), place / "original.pth")
        change = {"preprocessing": preprocessing}
        weights = converted("clip", checkpoint, place / "weights", change, adapters="released")
        runs = Runs(case, weights)
        yield from features(case, opened("clip", weights), runs)
        yield from idf(case, runs)
        for weighted in WEIGHTED:
            yield from alone(case, runs, weighted)
            yield from paper(case, runs, weighted)
        for one in runs.all():
            yield from batched(case, runs, one)


def features(case: Case, encoder: Any, runs: Runs) -> Iterator[Comparison]:
    """Pixels, token ids, features of frames, videos and tokens."""
    tolerance, off = case.tolerance("features"), FeatureCache(0)
    for name, frames in zip(runs.names, runs.videos, strict=True):
        images = [visual("image", frame) for frame in frames]
        found = unit(np.concatenate([part.features for part in encoder.encode_images(images, cache=off)]))
        ours = {
            f"first_frame_pixels/{name}": encoder.preprocess(images[0].load().convert("RGB")),
            f"frame_features/{name}": found,
            f"video_feature/{name}": unit(found.mean(axis=0)),
        }
        for quantity, values in ours.items():
            yield case.compare(quantity, values, tolerance)
    texts = {"candidate_ids": runs.candidates, "reference9_ids": [text for own in runs.nine for text in own]}
    for quantity, own in texts.items():
        ids = padded(encoder.tokenizer.encode(own).ids, case.outputs[quantity].shape[1])
        yield case.compare(quantity, ids, 0)
    for i, rows in enumerate(encoder.encode_tokens(runs.candidates, cache=off).features):
        yield case.compare(f"candidate_token_features/{i}", unit(rows), tolerance)


def idf(case: Case, runs: Runs) -> Iterator[Comparison]:
    """The tables of all corpora: four as rows make them, one as `prepare` does."""
    corpora = {"refs1": runs.ones, "refs9": runs.nine, "ragged": runs.ragged, "cands": None}
    tables = {}
    for name, references in corpora.items():
        metric, rows = runs.rows(Run(name, references))
        tables[name] = metric.idf(rows)
    tables["corpus"] = metric.prepare(runs.corpus)
    for name, table in tables.items():
        ids = sorted(table.weights)
        ours = {"token": ids, "value": table.of(ids), "unseen": table.unseen}
        ours["num_docs"] = np.exp(table.unseen) - 1
        for quantity, values in ours.items():
            yield case.compare(f"idf/{name}/{quantity}", values, case.tolerance("idf"))


def of_references(metric: Any, rows: pa.Table) -> dict[str, Array]:
    """Components of each pair of a caption and one of its nine references, (captions, 9)."""
    found, _ = metric.of_references(rows, metric.idf(rows))
    return {name: values.reshape(len(rows), -1) for name, values in found.items()}


def stacked(parts: Mapping[str, Any]) -> Array:
    """Precision, recall and F in the last axis."""
    return np.stack([np.asarray(parts[name]) for name in LETTERS.values()], axis=-1)


def alone(case: Case, runs: Runs, weighted: str) -> Iterator[Comparison]:
    """Pairs by themselves, and as the largest batch pads them."""
    metric, rows = runs.rows(Run("refs9", runs.nine, weighted))
    parts = metric.aggregate(rows).parts
    for quantity, ours in (("figr_PRF", stacked(parts)), ("cogr", parts["coarse"])):
        yield case.compare(f"alone_{weighted}/video_{quantity}", ours, case.tolerance(ALONE))
    for kind, own, tolerance in (("alone", rows, ALONE), ("batched", runs.pad(metric, rows), "scores")):
        found = of_references(metric, own)
        for quantity, ours in (("figr_PRF", stacked(found)), ("cogr", found["coarse"])):
            yield case.compare(f"{kind}_{weighted}/per_reference_{quantity}", ours, case.tolerance(tolerance))


def paper(case: Case, runs: Runs, weighted: str) -> Iterator[Comparison]:
    """Eq. 5 and 6, of signed means as the case has them, and by default where no mean is negative."""
    nine, tolerance, prefix = Run("refs9", runs.nine, weighted), case.tolerance(ALONE), f"paper_{weighted}/"
    metric, rows = runs.rows(nine)
    for kind, own in ((prefix, rows), (f"paper_batched_{weighted}/", runs.pad(metric, rows))):
        score, references = metric.aggregate(own).parts["pac_s"], of_references(metric, own)["score"]
        yield case.compare(f"{kind}score_t_V", score, tolerance)
        yield case.compare(f"{kind}score_t_r", references, tolerance)
        yield case.compare(f"{kind}refscore", (np.asarray(score) + references.max(axis=1)) / 2, tolerance)
    plain = runs.metric(nine, compat=None)
    values, pairs = plain.aggregate(rows), of_references(plain, rows)
    usable = np.minimum(*(np.asarray(values.parts[name]) for name in ("precision", "recall"))) >= 0
    of_pairs = np.minimum(pairs["precision"], pairs["recall"]) >= 0
    for quantity, ours, there in (
        ("score_t_V", values.parts["pac_s"], usable),
        ("score_t_r", pairs["score"], of_pairs),
        ("refscore", values.scores, usable & of_pairs.all(axis=1)),
    ):
        expected = np.where(there, case.outputs[f"{prefix}{quantity}"], np.nan)
        yield compare(f"{prefix}{quantity}, by default", ours, expected, tolerance)


def batched(case: Case, runs: Runs, run: Run) -> Iterator[Comparison]:
    options: dict[str, Any] = {}
    if run.name == "sampled10":
        options["max_frames"] = 10
        run = run._replace(table=runs.metric(run).prepare(runs.corpus))
        for name, frames in zip(runs.names, runs.videos, strict=True):
            index = f"sampled10_index/{name}"
            yield case.compare(index, read_video(list(frames), **options)[1], 0)
    single = run.name == "single"
    tolerance = case.tolerance(ALONE if single else "scores")
    found, as_padded = (runs.parts(run, as_padded=own, **options) for own in (False, not single))
    pairs = from_pairs(case, run)
    for block, parts in BLOCKS.items():
        if (run.references is None and block != "X,V") or (not run.shows_video and block != "X,R"):
            continue
        with_padding = fields(as_padded, parts)
        for field, values in fields(found, parts).items():
            name = f"{run.name}_{run.weighted}/{block}/{field}"
            within = tolerance * (condition(as_padded, parts) if field.endswith("F") else 1)
            yield case.compare(name, with_padding[field], within)
            if single:
                continue
            # What padding hardly changes may be compared with the padded run.
            free = np.abs(values - with_padding[field]) < tolerance / 10
            expected = fields(pairs, parts)[field] if pairs else np.where(free, case.outputs[name], np.nan)
            within = case.tolerance(ALONE) if pairs else within
            yield compare(f"{name}, without padding", values, expected, within)


def condition(parts: Mapping[str, Array], prefixes: tuple[str, ...]) -> float:
    """How many times the tolerance of P and R is that of F, 1 where no signs differ."""
    worst = 1.0
    for prefix in prefixes:
        precision, recall = parts[f"{prefix}precision"], parts[f"{prefix}recall"]
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = (precision**2 + recall**2) / (precision + recall) ** 2
        worst = max(worst, float(np.max(factors, where=np.isfinite(factors), initial=1.0)))
    return worst


def fields(parts: Mapping[str, Array], prefixes: tuple[str, ...]) -> dict[str, Array]:
    """The original's names of components, their means over blocks, and those of coarse and fine."""

    def mean(name: str) -> Array:
        return np.asarray(np.mean([parts[f"{prefix}{name}"] for prefix in prefixes], axis=0))

    coarse, found = mean("coarse"), {f"figr_{letter}": mean(name) for letter, name in LETTERS.items()}
    full = {f"full_{letter}": (found[f"figr_{letter}"] + coarse) / 2 for letter in LETTERS}
    return {**found, "cogr": coarse, **full}


def from_pairs(case: Case, run: Run) -> dict[str, Array]:
    """The parts that follow from `alone_*`; none where the run's idf is another one than theirs."""
    if run.weighted == "corpusidf" or (run.weighted == "idf" and not run.name.startswith("refs9")):
        return {}
    own = case.of(f"alone_{run.weighted}/")
    video = dict(zip(LETTERS.values(), own["video_figr_PRF"].T, strict=True)) | {"coarse": own["video_cogr"]}
    if run.references is None:
        return video
    every = np.concatenate([own["per_reference_figr_PRF"], own["per_reference_cogr"][..., None]], axis=-1)
    counts = [len(texts) for texts in run.references]
    best = np.stack([rows[:count].max(axis=0) for rows, count in zip(every, counts, strict=False)])
    names = [f"reference_{name}" for name in (*LETTERS.values(), "coarse")]
    return video | dict(zip(names, best.T, strict=True))


def inner(column: Any) -> tuple[Any, Array]:
    """The values of a column of lists, one after the other, and the length of each list."""
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return lists.flatten(), lists.value_lengths().to_numpy()


def lists_of(values: Any, lengths: Array) -> Any:
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(lengths)).astype(np.int32), values)


def raised(maxima: Any, where: Array) -> Any:
    """Lists with the values of those that are padded raised to 0."""
    values, lengths = inner(maxima)
    plain = values.to_numpy()
    return lists_of(np.where(np.repeat(where, lengths), np.maximum(plain, 0), plain), lengths)
