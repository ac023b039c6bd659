"""UMIC: the original checkpoint, converted, run through the public doors; its batches, losses and box rule.

A case is a folder with config.json (sizes and the seed), manifest.json (the original's tensors), inputs.npz,
batch.npz, outputs.npz and outputs.json. Its texts are token ids: here every id is a word of its own.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.errors import InputWarning
from capeval_core.inputs.box_stores import BoxFeatureStore
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.regions.selection import boxes_kept
from capeval_core.registry import load
from capeval_core.scores.box_source import FirstBoxes, boxes_by_id
from capeval_core.training.umic import ranking_loss
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

STATES, LOGITS, SCORES = 1e-5, 3e-6, 1e-6
"""The tolerances that the README gives: hidden states and pooled, logits, scores and losses."""
MARKS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}
BATCH = (
    "input_ids",
    "position_ids",
    "img_feat",
    "img_pos_feat",
    "attn_masks",
    "gather_index",
    "txt_lens",
    "num_bbs",
)


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    config: dict[str, Any]
    manifest: dict[str, Any]
    inputs: dict[str, Array]
    batch: dict[str, Array]
    outputs: dict[str, Array]
    readable: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            names = ("config", "manifest", "outputs")
            config, manifest, readable = (
                json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names
            )
            arrays = []
            for name in ("inputs", "batch", "outputs"):
                with np.load(folder / f"{name}.npz") as stored:
                    arrays.append(dict(stored))
            case = cls(config, manifest, *arrays, readable)
            _ = (case.words, case.texts("cap"))
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    @property
    def words(self) -> list[str]:
        return [MARKS.get(index, f"w{index}") for index in range(self.config["model"]["vocab_size"])]

    def texts(self, name: str) -> list[str]:
        """The texts whose ids are those of `cap`, `grp5`, ..."""
        rows = zip(self.inputs[f"{name}_ids"], self.inputs[f"{name}_len"], strict=True)
        return [" ".join(self.words[index] for index in ids[:length]) for ids, length in rows]

    @property
    def groups(self) -> list[str]:
        return sorted(
            name.removesuffix("_ids")
            for name in self.inputs
            if name.startswith("grp") and name.endswith("_ids")
        )

    @property
    def filters(self) -> list[str]:
        return [
            name.removeprefix("filter_").removesuffix("_conf")
            for name in self.inputs
            if name.startswith("filter_") and name.endswith("_conf")
        ]

    @property
    def pure(self) -> list[str]:
        """Names of the cases of logits alone."""
        return sorted(
            name.removesuffix("_logits")
            for name in self.inputs
            if name.startswith("pure") and name.endswith("_logits")
        )


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare."""
    case = Case.read(folder)
    rules = {f"box_filter {name}{rule}" for name in case.filters for rule in ("", ", first rows", ", rows")}
    return case.outputs.keys() | set(BATCH) | rules


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    case = Case.read(folder)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        place = Path(name)
        weights, store = _converted(case, place), _store(case, place / "boxes")
        encoder = UniterEncoder.from_pretrained(weights, device=device())
        yield from _scores(case, weights, store)
        yield from _batch(case, encoder, store)
        yield from _losses(case, encoder, store)
        for name in case.filters:
            yield from _box_rule(case, name, place)


def _converted(case: Case, place: Path) -> Path:
    """A weights folder of the original's checkpoint."""
    (place / "vocab.txt").write_text("\n".join(case.words) + "\n")
    tensors = recipe.state_dict(case.manifest, int(case.config["seed"]))
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, place / "umic.pt")
    heads = case.config["model"]["num_attention_heads"]
    release = UniterEncoder.convert(place / "umic.pt", vocabulary=str(place / "vocab.txt"), heads=heads)
    UniterEncoder(release.config, release.tensors, device=device()).save_pretrained(place / "ours")
    return place / "ours"


def _store(case: Case, folder: Path) -> Path:
    """Box features of each image, as a detector hands them over."""
    folder.mkdir()
    for k in range(len(case.config["images"])):
        arrays = {part: case.inputs[f"img{k}_{part}"] for part in ("features", "norm_bb", "conf")}
        np.savez(folder / f"{k}.npz", **arrays)
    return folder


def _boxes(case: Case, store: Path, images: Array) -> list[FirstBoxes]:
    visuals = boxes_by_id(BoxFeatureStore.open(store), images.tolist())
    return [FirstBoxes(visual, "bua10_100") for visual in visuals]


def _scores(case: Case, weights: Path, store: Path) -> Iterator[Comparison]:
    """The metric, on stored box features."""
    metric = load("umic", weights=str(weights), regions=store, device=device(), empty="score")
    result = metric.score(case.texts("cap"), case.inputs["cap_img"].tolist())
    for kind, tolerance, ours in (
        ("logits", LOGITS, result.parts["logit"]),
        ("scores", SCORES, result.scores),
    ):
        yield compare(kind, ours, case.outputs[kind], tolerance)
        yield compare(f"{kind}_f64", ours, case.outputs[f"{kind}_f64"], tolerance)


def _batch(case: Case, encoder: UniterEncoder, store: Path) -> Iterator[Comparison]:
    """The network's input laid out as the original does, then its states but for the original's filler."""
    ids = encoder.tokenizer.encode(case.texts("cap")).ids
    prepared = [encoder.prepare_visual(boxes.load()) for boxes in _boxes(case, store, case.inputs["cap_img"])]
    theirs = case.batch
    texts, counts = [len(row) for row in ids], [len(boxes.positions) for boxes in prepared]
    longest, boxes_at = max(map(sum, zip(texts, counts, strict=True))), max(texts)
    gather, mask = np.tile(np.arange(longest), (len(ids), 1)), np.zeros((len(ids), longest), dtype=np.int64)
    for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
        gather[row, text : text + count] = boxes_at + np.arange(count)
        mask[row, : text + count] = 1
    ours = {
        "input_ids": _padded([np.array(row) for row in ids]),
        "position_ids": np.arange(boxes_at)[None],
        "img_feat": _padded([boxes.features for boxes in prepared]),
        "img_pos_feat": _padded([boxes.positions for boxes in prepared]),
        "attn_masks": mask,
        "gather_index": gather,
        "txt_lens": texts,
        "num_bbs": counts,
    }
    for name in BATCH:
        yield compare(name, ours[name], theirs[name], 0)
    with torch.inference_mode():
        regions = encoder.states(prepared)
        states = encoder.model.states(regions, ids)
        pooled = encoder.model.pooled(regions, ids).cpu().numpy()
        model = deepcopy(encoder.model)
        model.init_ranking_head()
        initial = model.ranking_logits(regions, ids).cpu().numpy()
    real = theirs["attn_masks"] == 1
    names = ["embedding_output", *(f"hidden_{layer}" for layer in range(len(states) - 1))]
    for name, state in zip([*names, "sequence_output"], [*states, states[-1]], strict=True):
        yield compare(name, state.cpu().numpy(), case.outputs[name][real], STATES)
    yield compare("pooled", pooled, case.outputs["pooled"], STATES)
    yield compare("pooled_f64", pooled, case.outputs["pooled_f64"], STATES)
    yield compare("logits_after_init_output", initial, case.outputs["logits_after_init_output"], LOGITS)


def _padded(rows: Sequence[Array]) -> Array:
    padded = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), dtype=rows[0].dtype)
    for row, own in zip(padded, rows, strict=True):
        row[: len(own)] = own
    return padded


def _losses(case: Case, encoder: UniterEncoder, store: Path) -> Iterator[Comparison]:
    """Logits of ranking groups, and the loss of each."""
    for name in case.groups:
        boxes = _boxes(case, store, case.inputs[f"{name}_img"])
        texts = [[text] for text in case.texts(name)]
        logits = np.concatenate(
            [ranked.logits for ranked in encoder.rank(boxes, texts, cache=FeatureCache(0))]
        )
        yield compare(f"{name}_logits", logits, case.outputs[f"{name}_logits"], LOGITS)
        yield _loss(case, name, logits, case.readable["ranking_loss"][name]["sample_size"])
    for name in case.pure:
        yield _loss(case, name, case.inputs[f"{name}_logits"], int(case.inputs[f"{name}_sample_size"]))


def _loss(case: Case, name: str, logits: Array, size: int) -> Comparison:
    loss = ranking_loss(torch.from_numpy(logits), size, margin=case.config["margin"])
    return compare(f"{name}_loss", loss.numpy(), case.outputs[f"{name}_loss"], SCORES)


def _box_rule(case: Case, name: str, folder: Path) -> Iterator[Comparison]:
    """How many boxes are kept, and which: column 0 of the features is the row's number."""
    expected = case.readable["box_filter"][name]
    arrays = {part: case.inputs[f"filter_{name}_{part}"] for part in ("conf", "features", "norm_bb")}
    yield compare(f"box_filter {name}", boxes_kept(arrays["conf"]), expected["rows_returned"], 0)
    fixed = boxes_kept(arrays["conf"], threshold=-1)
    yield compare(f"box_filter {name}, first rows", fixed, expected["rows_with_conf_th_-1_num_bb_36"], 0)
    np.savez(folder / f"{name}.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # one case is not sorted by confidence
        kept = FirstBoxes(InputBoxes.of(folder / f"{name}.npz"), "bua10_100").load()
    rows = np.arange(expected["rows_returned"])
    yield compare(f"box_filter {name}, rows", kept.features[:, 0], rows, 0)
