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
  was padded, which is all that padding does, aggregated as ever, beside the run itself.

Nothing in outputs.npz is left out. Padding in recall against a video, of 6e-8, is within the tolerance.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import unit
from capeval_core.ragged import inner
from capeval_core.scores.idf import TokenIdf
from capeval_core.scores.video import VideoOptions, VideoPacS, VideoRefPacS
from capeval_core.scores.video_formulas import Components
from capeval_core.scores.video_rows import video_feature
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

LETTERS = {"P": "precision", "R": "recall", "F": "fine"}
BLOCKS = {"X,V": ("",), "X,R": ("reference_",), "X,V,R": ("", "reference_")}
"""Blocks of a run, and the parts of which each is the mean."""
WEIGHTED = ("idf", "noidf")


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    config: dict[str, Any]
    manifest: dict[str, Any]
    texts: dict[str, Any]
    frames: dict[str, Array]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config, manifest, texts = (
                json.loads((folder / name).read_text(encoding="utf-8"))
                for name in ("config.json", "manifest.json", "inputs/texts.json")
            )
            with (
                np.load(folder / "inputs" / "videos.npz") as videos,
                np.load(folder / "outputs.npz") as found,
            ):
                case = cls(config, manifest, texts, dict(videos), dict(found))
            _ = (case.videos, case.candidates, case.references, case.ragged, case.texts["idf_corpus"])
            _ = (case.preprocessing, case.tolerance("scores"), case.config["seed"])
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    @cached_property
    def videos(self) -> list[Array]:
        return [self.frames[name] for name in self.texts["videos"]]

    @property
    def candidates(self) -> list[str]:
        return list(self.texts["candidates"])

    @property
    def references(self) -> list[list[str]]:
        return [list(own) for own in self.texts["references_9"]]

    @property
    def ragged(self) -> list[list[str]]:
        return [list(own) for own in self.texts["references_ragged"]]

    @property
    def preprocessing(self) -> dict[str, Any]:
        model = self.config["model"]
        means = {"mean": self.config["image_mean"], "std": self.config["image_std"]}
        return {"image_size": model["image_resolution"], **means}

    def tolerance(self, name: str) -> float:
        return float(self.config["tolerance"][f"{name}_atol"])


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare: all outputs, and what has no padding in it."""
    outputs = Case.read(folder).outputs
    batched = {
        f"{name}, without padding"
        for name in outputs
        if name.startswith(("refs", "ragged_", "norefs_", "sampled10_corpusidf"))
    }
    return {
        *outputs,
        *batched,
        *(f"{name}, by default" for name in outputs if name.startswith(("paper_idf", "paper_noidf"))),
    }


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    case = Case.read(folder)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        weights = _opened(Path(name), case)
        encoder = ClipEncoder.from_pretrained(str(weights), device=device())
        yield from _features(case, encoder)
        runs = Runs(case, str(weights))
        yield from _idf(case, runs)
        for weighted in WEIGHTED:
            yield from _alone(case, runs, weighted)
            yield from _paper(case, runs, weighted)
        for run in _batched_runs(case):
            yield from _batched(case, runs, run)


def _opened(place: Path, case: Case) -> Path:
    """The folder of the case's weights, converted from a checkpoint like the original's."""
    checkpoint, weights = place / "original.pth", place / "weights"
    tensors = recipe.state_dict(case.manifest, case.config["seed"])
    torch.save({name: torch.from_numpy(values) for name, values in tensors.items()}, checkpoint)
    release = ClipEncoder.convert(checkpoint, adapters="released")
    config = {**release.config, "preprocessing": {**release.config["preprocessing"], **case.preprocessing}}
    ClipEncoder(config, release.tensors, device=device()).save_pretrained(weights)
    return weights


def _features(case: Case, encoder: ClipEncoder) -> Iterator[Comparison]:
    """Pixels, token ids, features of frames, videos and tokens."""
    tolerance, off = case.tolerance("features"), FeatureCache(0)
    for name, frames in zip(case.texts["videos"], case.videos, strict=True):
        images = [InputImage.of(frame) for frame in frames]
        pixels = encoder.preprocess(images[0].load().convert("RGB"))
        yield compare(
            f"first_frame_pixels/{name}", pixels, case.outputs[f"first_frame_pixels/{name}"], tolerance
        )
        found = np.concatenate([part.features for part in encoder.encode_images(images, cache=off)])
        for quantity, ours in (
            (f"frame_features/{name}", unit(found)),
            (f"video_feature/{name}", unit(video_feature(found))),
        ):
            yield compare(quantity, ours, case.outputs[quantity], tolerance)
    texts = {
        "candidate_ids": case.candidates,
        "reference9_ids": [text for own in case.references for text in own],
    }
    for quantity, own in texts.items():
        padded = np.zeros(case.outputs[quantity].shape)
        for row, ids in enumerate(encoder.tokenizer.encode(own).ids):
            padded[row, : len(ids)] = ids
        yield compare(quantity, padded, case.outputs[quantity], 0)
    tokens = encoder.encode_tokens(case.candidates, cache=off)
    for i, rows in enumerate(tokens.features):
        quantity = f"candidate_token_features/{i}"
        yield compare(quantity, unit(rows), case.outputs[quantity], tolerance)


@dataclass(frozen=True)
class Run:
    """A run of the original: which videos, captions and references, and which idf."""

    name: str
    references: list[list[str]] | None
    weighted: str
    videos: list[Array]
    captions: list[str]
    table: TokenIdf | None = None
    shows_video: bool = True


class Runs:
    """Rows and components of runs."""

    def __init__(self, case: Case, weights: str) -> None:
        self.case, self.weights, self.cache = case, weights, FeatureCache()

    def metric(self, run: Run, **options: Any) -> VideoPacS:
        kind = VideoPacS if run.references is None else VideoRefPacS
        settings = {"weights": self.weights, "device": device(), "cache": self.cache, "empty": "score"}
        settings |= {"idf": run.weighted != "noidf", "statistics": run.table, "compat": "released"}
        return kind(VideoOptions.of(kind.name, settings | options))

    def rows(self, run: Run, **options: Any) -> tuple[VideoPacS, pa.Table]:
        metric = self.metric(run, **options)
        return metric, metric.encode_all(metric.check(run.captions, run.videos, run.references))

    def parts(self, run: Run, *, padded: bool = False, **options: Any) -> dict[str, Array]:
        metric, rows = self.rows(run, **options)
        values = metric.aggregate(_as_padded(rows) if padded else rows)
        return {**{name: np.asarray(part) for name, part in values.parts.items()}, "score": values.scores}


def _idf(case: Case, runs: Runs) -> Iterator[Comparison]:
    """The tables of all corpora: four as rows make them, one as `prepare` does."""
    corpora = {
        "refs1": [own[:1] for own in case.references],
        "refs9": case.references,
        "ragged": case.ragged,
        "cands": None,
    }
    tables = {}
    for name, references in corpora.items():
        metric, rows = runs.rows(Run(name, references, "idf", case.videos, case.candidates))
        tables[name] = metric.table(rows)
    tables["corpus"] = metric.prepare(case.texts["idf_corpus"])
    tolerance = case.tolerance("idf")
    for name, table in tables.items():
        ids = sorted(table.weights)
        ours = {"token": ids, "value": table.of(ids), "unseen": table.unseen}
        ours["num_docs"] = np.exp(table.unseen) - 1
        for quantity, values in ours.items():
            expected = case.outputs[f"idf/{name}/{quantity}"]
            yield compare(f"idf/{name}/{quantity}", values, expected, tolerance)


def _nine(case: Case, weighted: str) -> Run:
    return Run("refs9", case.references, weighted, case.videos, case.candidates)


def _of_references(metric: VideoPacS, rows: pa.Table) -> Components:
    """Components of each pair of a caption and one of its nine references, (captions, 9)."""
    assert isinstance(metric, VideoRefPacS)
    found, _ = metric.of_references(rows, metric.table(rows))
    return Components(*(values.reshape(len(rows), -1) for values in vars(found).values()))


def _alone(case: Case, runs: Runs, weighted: str) -> Iterator[Comparison]:
    """Pairs by themselves, and as the largest batch pads them."""
    metric, rows = runs.rows(_nine(case, weighted))
    parts = metric.aggregate(rows).parts
    alone, scores = case.tolerance("scores_single_alone_paper"), case.tolerance("scores")
    prefix = f"alone_{weighted}/"
    ours = np.stack([np.asarray(parts[name]) for name in LETTERS.values()], axis=-1)
    yield compare(f"{prefix}video_figr_PRF", ours, case.outputs[f"{prefix}video_figr_PRF"], alone)
    yield compare(f"{prefix}video_cogr", parts["coarse"], case.outputs[f"{prefix}video_cogr"], alone)
    for kind, own, tolerance in (("alone", rows, alone), ("batched", _as_padded(rows), scores)):
        found = _of_references(metric, own)
        ours = np.stack([getattr(found, name) for name in LETTERS.values()], axis=-1)
        for quantity, values in (("figr_PRF", ours), ("cogr", found.coarse)):
            name = f"{kind}_{weighted}/per_reference_{quantity}"
            yield compare(name, values, case.outputs[name], tolerance)


def _paper(case: Case, runs: Runs, weighted: str) -> Iterator[Comparison]:
    """Eq. 5 and 6, of signed means as the case has them, and by default."""
    metric, rows = runs.rows(_nine(case, weighted))
    tolerance = case.tolerance("scores_single_alone_paper")
    for kind, own in (("paper", rows), ("paper_batched", _as_padded(rows))):
        prefix = f"{kind}_{weighted}/"
        references, score = _of_references(metric, own), metric.aggregate(own).parts["pac_s"]
        ours = {"score_t_V": np.asarray(score), "score_t_r": references.score}
        ours["refscore"] = (ours["score_t_V"] + references.score.max(axis=1)) / 2
        for quantity, values in ours.items():
            yield compare(f"{prefix}{quantity}", values, case.outputs[f"{prefix}{quantity}"], tolerance)
    plain, prefix = runs.metric(_nine(case, weighted), compat=None), f"paper_{weighted}/"
    values, per_reference = plain.aggregate(rows), _of_references(plain, rows)
    of_video = np.minimum(*(np.asarray(values.parts[name]) for name in ("precision", "recall"))) >= 0
    of_references = np.minimum(per_reference.precision, per_reference.recall) >= 0
    if not (of_video.sum() > len(of_video) / 2 and of_references.all()):
        raise UnreadableCaseError("has too many negative means to compare defaults with")
    for quantity, ours, there in (
        ("score_t_V", values.parts["pac_s"], of_video),
        ("score_t_r", per_reference.score, of_references),
        ("refscore", values.scores, of_video),
    ):
        expected = np.where(there, case.outputs[f"{prefix}{quantity}"], np.nan)
        yield compare(f"{prefix}{quantity}, by default", ours, expected, tolerance)


def _batched_runs(case: Case) -> Iterator[Run]:
    """All runs of the original that score several pairs, or one, in one batch."""
    ones = [own[:1] for own in case.references]
    for weighted in WEIGHTED:
        for name, references in (("refs1", ones), ("refs9", case.references), ("ragged", case.ragged)):
            yield Run(name, references, weighted, case.videos, case.candidates)
        yield Run("norefs", None, weighted, case.videos, case.candidates)
        yield replace(_nine(case, weighted), name="refs9_novideo", shows_video=False)
        yield Run("single", ones[:1], weighted, case.videos[:1], case.candidates[:1])
    yield Run("sampled10", case.references, "corpusidf", case.videos, case.candidates)


def _batched(case: Case, runs: Runs, run: Run) -> Iterator[Comparison]:
    options: dict[str, Any] = {}
    if run.name == "sampled10":
        options["max_frames"] = 10
        run = replace(run, table=runs.metric(run).prepare(case.texts["idf_corpus"]))
        for name, frames in zip(case.texts["videos"], case.videos, strict=True):
            index = Sampling(max_frames=10).evenly(len(frames))
            yield compare(f"sampled10_index/{name}", index, case.outputs[f"sampled10_index/{name}"], 0)
    alone = run.name == "single"
    tolerance = case.tolerance("scores_single_alone_paper" if alone else "scores")
    found, padded = runs.parts(run, **options), runs.parts(run, padded=not alone, **options)
    prefix = f"{run.name}_{run.weighted}"
    from_pairs = None if alone else _from_pairs(case, run)
    for block, parts in BLOCKS.items():
        if (run.references is None and block != "X,V") or (not run.shows_video and block != "X,R"):
            continue
        ours, as_batched = _fields(found, parts), _fields(padded, parts)
        pairs = None if from_pairs is None else _fields(from_pairs, parts)
        for field, values in ours.items():
            name = f"{prefix}/{block}/{field}"
            yield compare(name, as_batched[field], case.outputs[name], tolerance)
            if alone:
                continue
            # What no padding changes may be compared with the padded run.
            free = np.abs(values - as_batched[field]) < 1e-9
            expected = np.where(free, case.outputs[name], np.nan) if pairs is None else pairs[field]
            within = tolerance if pairs is None else case.tolerance("scores_single_alone_paper")
            yield compare(f"{name}, without padding", values, expected, within)


def _fields(parts: Mapping[str, Array], prefixes: tuple[str, ...]) -> dict[str, Array]:
    """The original's names of components, their means over blocks, and those of coarse and fine."""

    def mean(name: str) -> Array:
        return np.mean([parts[f"{prefix}{name}"] for prefix in prefixes], axis=0)

    fine = {letter: mean(name) for letter, name in LETTERS.items()}
    coarse = mean("coarse")
    full = {f"full_{letter}": (values + coarse) / 2 for letter, values in fine.items()}
    return {**{f"figr_{letter}": values for letter, values in fine.items()}, "cogr": coarse, **full}


def _from_pairs(case: Case, run: Run) -> dict[str, Array] | None:
    """The parts that follow from `alone_*`; None where the run's idf is another one than theirs."""
    if run.weighted == "corpusidf" or (run.weighted == "idf" and not run.name.startswith("refs9")):
        return None
    prefix = f"alone_{run.weighted}/"
    video, coarse = case.outputs[f"{prefix}video_figr_PRF"], case.outputs[f"{prefix}video_cogr"]
    parts = {name: video[:, column] for column, name in enumerate(LETTERS.values())} | {"coarse": coarse}
    if run.references is not None:
        fine, coarse = (case.outputs[f"{prefix}per_reference_{name}"] for name in ("figr_PRF", "cogr"))
        counts = [len(own) for own in run.references]
        for column, name in enumerate(LETTERS.values()):
            largest = [own[:count, column].max() for own, count in zip(fine, counts, strict=True)]
            parts[f"reference_{name}"] = np.array(largest)
        largest = [own[:count].max() for own, count in zip(coarse, counts, strict=True)]
        parts["reference_coarse"] = np.array(largest)
    return {name: np.asarray(values) for name, values in parts.items()}


def _as_padded(rows: pa.Table) -> pa.Table:
    """Rows as one batch of the original makes them.

    It pads videos, captions and references to the longest of the batch, and padding has similarity 0: where
    the counterpart is shorter than the longest, maxima are at least 0.
    """
    frames = rows["frames"].to_numpy()
    lengths = rows["caption_ids"].combine_chunks().value_lengths().to_numpy()
    columns = {"caption_maxima": _raised(rows["caption_maxima"].combine_chunks(), frames < frames.max())}
    if "reference_ids" in rows.column_names:
        ids, counts = inner(rows["reference_ids"])
        of_references, of_captions = ids.value_lengths().to_numpy(), np.repeat(lengths, counts)
        for name, shorter in (
            ("reference_caption_maxima", of_references < of_references.max()),
            ("reference_maxima", of_captions < lengths.max()),
        ):
            lists, counts = inner(rows[name])
            offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
            columns[name] = pa.ListArray.from_arrays(offsets, _raised(lists, shorter))
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def _raised(maxima: pa.ListArray, padded: Array) -> pa.ListArray:
    """Lists with the values of those that are padded raised to 0."""
    values, lengths = inner(maxima)
    raised = np.where(np.repeat(padded, lengths), np.maximum(values.to_numpy(), 0), values.to_numpy())
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, raised)
