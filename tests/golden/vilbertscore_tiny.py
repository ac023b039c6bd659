"""ViLBERTScore: precision, recall and F of each reference, as the release has them and of words alone.

A case is a folder with config.json (sizes, seeds, layers), manifest.json and manifest_pretrained.json,
inputs.npz (a candidate and its references per item, images, an idf table) and outputs.npz.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.result import Result
from capeval_core.scores.idf import TokenIdf
from capeval_core.scores.vilbert import VilbertOptions, VilbertScore
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.golden.vilbert_tiny import STATES, opened, read_json, text_of
from tests.support.device import device

Array = NDArray[Any]

PLAIN, WEIGHTED = 2e-6, 1e-5
"""The tolerances that the README gives, without and with idf weights."""
PARTS = {"P": "precision", "R": "recall", "F": "f"}


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    config: dict[str, Any]
    manifests: tuple[dict[str, Any], dict[str, Any]]
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config = read_json(folder / "config.json")
            first, second = (read_json(folder / f"manifest{part}.json") for part in ("", "_pretrained"))
            with np.load(folder / "inputs.npz") as inputs, np.load(folder / "outputs.npz") as outputs:
                case = cls(config, (first, second), dict(inputs), dict(outputs))
            _ = (case.texts, case.images, case.idf, case.config["layers"], case.config["seed_pretrained"])
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    @property
    def texts(self) -> list[list[str]]:
        """Per item the candidate, then its references."""
        ids, mask = self.inputs["input_ids"], self.inputs["input_mask"]
        return [
            [text_of(row[: real.sum()]) for row, real in zip(*item, strict=True)]
            for item in zip(ids, mask, strict=True)
        ]

    @property
    def images(self) -> list[dict[str, Array]]:
        """Per item the boxes of its image, whose features follow that of the whole image."""
        return [
            {
                "boxes": self.inputs[f"raw{image}_bbox"],
                "features": self.inputs["features"][image, 1:],
                "size": self.inputs[f"raw{image}_wh"],
            }
            for image in self.inputs["image_of_item"].tolist()
        ]

    @property
    def idf(self) -> TokenIdf:
        """The table; ids that it lacks have the largest value."""
        ids, values = self.inputs["idf_ids"].tolist(), self.inputs["idf_values"].tolist()
        return TokenIdf(dict(zip(ids, values, strict=True)), max(values))


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare."""
    return {*Case.read(folder).outputs, "idf_values, as counts", "spatials"}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    case = Case.read(folder)
    model, task = case.config["model"], int(case.config["task_id"])
    for manifest, part in zip(case.manifests, ("", "_pretrained"), strict=True):
        with tempfile.TemporaryDirectory(prefix="golden-") as name:
            weights = opened(Path(name), manifest, int(case.config[f"seed{part}"]), model, task)
            if part:
                found = _score(case, weights)
                yield _of_references(found, "pretrained_words_only_per_ref_f64", case, PLAIN)
                continue
            yield from _inputs(case, weights)
            for layer in case.config["layers"]:
                yield from _layer(case, weights, layer)


def _score(case: Case, weights: Path, **options: Any) -> Result:
    settings = {
        "weights": weights,
        "device": device(),
        "empty": "score",
        "cache": FeatureCache(),
        "regions": "tiny",
    }
    metric = VilbertScore(VilbertOptions.of("vilbertscore", {**settings, **options}))
    texts = case.texts
    return metric.score([own[0] for own in texts], case.images, [own[1:] for own in texts])


def _layer(case: Case, weights: Path, layer: int) -> Iterator[Comparison]:
    """The scores from one co-attention block."""
    for mode, tolerance, options in (
        ("plain_mask", PLAIN, {}),
        ("idf", WEIGHTED, {"statistics": case.idf}),
    ):
        found = _score(case, weights, layer=layer, compat="released", **options)
        for letter, part in PARTS.items():
            name = f"{mode}_layer{layer}_{letter}"
            yield compare(name, found.parts[part], case.outputs[name], tolerance)
        yield _of_references(found, f"{mode}_layer{layer}_per_ref", case, tolerance)
    found = _score(case, weights, layer=layer)
    yield _of_references(found, f"words_only_layer{layer}_per_ref_f64", case, PLAIN)


def _of_references(found: Result, name: str, case: Case, tolerance: float) -> Comparison:
    ours = np.stack([np.array(found.parts[f"reference_{part}"]) for part in PARTS.values()], axis=2)
    return compare(name, ours, case.outputs[name], tolerance)


def _inputs(case: Case, weights: Path) -> Iterator[Comparison]:
    """What the network takes, its states, and the idf table as `prepare` makes it."""
    encoder = VilbertEncoder.from_pretrained(weights, device=device())
    texts, visuals = case.texts, [InputBoxes.of(image) for image in case.images]
    theirs = case.inputs["spatials"][case.inputs["image_of_item"]]
    ours = np.stack([encoder.prepare_visual(visual.load()).locations for visual in visuals])
    yield compare("spatials", ours, theirs, PLAIN)
    found = list(encoder.token_features(visuals, [own[:2] for own in texts], cache=FeatureCache(0)))
    for slot, name in enumerate(("text_last_candidate", "text_last_reference0")):
        rows = [each.features[slot] for each in found if each.features is not None]
        real = [own[: len(row)] for own, row in zip(case.outputs[name], rows, strict=True)]
        yield compare(name, np.concatenate(rows), np.concatenate(real), STATES)
    # How many references hold each id, by either table. The release counts whole references, but the case
    # holds the beginnings of those that were cut: each may hold one more id.
    references = [text for own in texts for text in own[1:]]
    cut = int((case.inputs["input_mask"][:, 1:].sum(axis=2) == case.config["max_text_tokens"]).sum())
    table = TokenIdf.of_documents(encoder.tokenizer.whole(references))
    ids, total = case.inputs["idf_ids"].tolist(), len(references) + 1
    counts, expected = (total / np.exp(values) for values in (table.of(ids), case.inputs["idf_values"]))
    yield compare("idf_values, as counts", counts, expected, cut + 1e-6)
