"""PAC-S and RefPAC-S: the original checkpoint, converted, scored through the public doors.

A case is a folder with config.json, manifest.json, inputs/pairs.json with its images, and outputs.npz.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

import capeval_core
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import grouped_cosine, paired_cosine
from capeval_core.scores.pac import pac_score, ref_pac_score
from capeval_core.weights.conversion import Release
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

# Prefix of a set of outputs -> the adapters that it was made with.
VARIANTS: dict[str, Literal["released", "all", "none"]] = {
    "": "released",
    "alllora_": "all",
    "nolora_": "none",
}

# Quantity -> the tolerance of config.json that it goes by.
TOLERANCES = {
    "image_features": "image_features_atol",
    "text_features": "text_features_atol",
    "reference_features": "text_features_atol",
    "image_text_cosine_matrix": "cosine_atol",
    "cosine": "cosine_atol",
    "reference_cosine": "cosine_atol",
    "pac_s": "pac_s_atol",
    "mean_pac_s": "pac_s_atol",
    "ref_similarity": "cosine_atol",
    "mean_ref_similarity": "cosine_atol",
    "refpac_s": "refpac_s_atol",
    "mean_refpac_s": "refpac_s_atol",
}

# Inputs rather than outputs, or states inside the original that no public door shows.
NOT_COMPARED = ("debug_", "alllora_debug_", "pair_image", "reference_offsets", "arith_reference_offsets",
                "arith_image_features", "arith_text_features", "arith_reference_features")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    folder: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config, manifest, inputs = (
                json.loads((folder / name).read_text(encoding="utf-8"))
                for name in ("config.json", "manifest.json", "inputs/pairs.json")
            )
            with np.load(folder / "outputs.npz") as stored:
                outputs = dict(stored)
            case = cls(folder, config, manifest, inputs, outputs)
            missing = [name for name in case.image_names if not (folder / "inputs" / name).is_file()]
            if missing:
                raise UnreadableCaseError(f"inputs/ lacks {', '.join(missing)}")
            _ = (case.seed, case.scale, case.references, case.tolerance("pixels_atol"))
            _ = (case.candidates, case.heads, case.preprocessing)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            what = (
                f"{error.args[0]!r} is missing"
                if isinstance(error, KeyError)
                else " ".join(str(error).split())
            )
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scale(self) -> float:
        return float(self.config["score"]["w"])

    @property
    def prompt(self) -> str:
        return str(self.inputs.get("prefix", self.config["score"]["prefix"]))

    @cached_property
    def image_names(self) -> list[str]:
        return list(self.inputs["images"])

    @cached_property
    def pair_image(self) -> list[int]:
        return [self.image_names.index(pair["image"]) for pair in self.inputs["pairs"]]

    @cached_property
    def candidates(self) -> list[str]:
        return [pair["caption"] for pair in self.inputs["pairs"]]

    @cached_property
    def references(self) -> list[list[str]]:
        return [list(pair["references"]) for pair in self.inputs["pairs"]]

    @cached_property
    def flat_references(self) -> list[str]:
        return [text for group in self.references for text in group]

    @property
    def paths(self) -> list[Path]:
        return [self.folder / "inputs" / name for name in self.image_names]

    @property
    def preprocessing(self) -> dict[str, Any]:
        model = self.config["model"]
        size = model["vision_cfg"]["image_size"] if "vision_cfg" in model else model["image_resolution"]
        return {"image_size": size, "mean": self.config["image_mean"], "std": self.config["image_std"]}

    def tolerance(self, name: str) -> float:
        return float(self.config["tolerance"][name])

    @property
    def heads(self) -> dict[str, Any]:
        """What the tensors of the checkpoint cannot tell, and only where it differs from the usual."""
        model = self.config["model"]
        if "vision_cfg" in model:
            vision, text = model["vision_cfg"], model["text_cfg"]
            found = {"head_width": vision.get("head_width", 64), "text_heads": text["heads"]}
            width = text["width"]
        else:
            vision_width = model["vision_width"] * (32 if isinstance(model["vision_layers"], list) else 1)
            found = {"head_width": vision_width // model["vision_heads"], "text_heads": model["text_heads"]}
            width = model["text_width"]
        usual = {"head_width": 64, "text_heads": width // 64}
        given: dict[str, Any] = {name: value for name, value in found.items() if value != usual[name]}
        # open_clip's own models have the exact GELU; one that holds OpenAI's weights has to say so.
        return {**given, "activation": "quick_gelu"} if model.get("quick_gelu") else given


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    return {name for name in Case.read(folder).outputs if not name.startswith(NOT_COMPARED)}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    case = Case.read(folder)
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        checkpoint = Path(place) / "original.pth"
        # The order of the manifest is that of the original's state dict, and part of what is converted.
        tensors = {
            name: torch.from_numpy(x) for name, x in recipe.state_dict(case.manifest, case.seed).items()
        }
        torch.save({"state_dict": tensors}, checkpoint)
        del tensors
        for prefix, adapters in VARIANTS.items():
            if not any(name.startswith(f"{prefix}image_features") for name in case.outputs):
                continue
            weights = Path(place) / f"weights-{adapters}"
            _save(case, ClipEncoder.convert(checkpoint, adapters=adapters, **case.heads), weights)
            encoder = ClipEncoder.from_pretrained(str(weights), device=device())
            if prefix == "":
                yield from _inputs(case, encoder)
            yield from _encoders(case, encoder, prefix)
            yield from _scores(case, weights, prefix)
    if "arith_pac_s" in case.outputs:
        yield from _arithmetic(case)


def _save(case: Case, release: Release, folder: Path) -> None:
    """The release as a weights folder, with the preprocessing and the prompt that the case states."""
    config = {
        **release.config,
        "constants": {**release.config["constants"], "prompt": case.prompt},
        "preprocessing": {**release.config["preprocessing"], **case.preprocessing},
    }
    ClipEncoder(config, release.tensors, device=device()).save_pretrained(folder)


def _inputs(case: Case, encoder: ClipEncoder) -> Iterator[Comparison]:
    """Pixels and token ids."""
    tolerance = case.tolerance("pixels_atol")
    images = [InputImage.of(path, where=path.name).load() for path in case.paths]
    pixels = np.stack([encoder.preprocess(image) for image in images])
    for name, theirs in case.outputs.items():
        if name == "pixels":
            yield compare(name, pixels, theirs, tolerance)
        elif every := re.fullmatch(r"pixels_every(\d+)", name):
            step = int(every[1])
            yield compare(name, pixels[:, :, ::step, ::step], theirs, tolerance)
        elif name in ("pixels_mean", "pixels_std"):
            wide = pixels.astype(np.float64)
            # torch's std divides by n - 1.
            ours = wide.mean(axis=(2, 3)) if name == "pixels_mean" else wide.std(axis=(2, 3), ddof=1)
            yield compare(name, ours, theirs, tolerance)
    for name, texts in {"input_ids": case.candidates, "reference_ids": case.flat_references}.items():
        if name in case.outputs:
            rows = encoder.tokenizer.encode([case.prompt + text for text in texts]).ids
            padded = np.zeros((len(rows), case.outputs[name].shape[1]), dtype=np.int64)
            for row, ids in enumerate(rows):
                padded[row, : len(ids)] = ids
            yield compare(name, padded, case.outputs[name], 0)


def _encoders(case: Case, encoder: ClipEncoder, prefix: str) -> Iterator[Comparison]:
    """Features, and the cosine of every image with every caption."""
    images = [InputImage.of(path, where=path.name) for path in case.paths]
    images = np.concatenate([part.features for part in encoder.encode_images(images)])
    texts = encoder.encode_texts([case.prompt + text for text in case.candidates]).features
    references = encoder.encode_texts([case.prompt + text for text in case.flat_references]).features
    matrix = [paired_cosine(np.repeat(image[None], len(texts), axis=0), texts) for image in images]
    lengths = np.array([len(group) for group in case.references])
    ours = {
        "image_features": images,
        "text_features": texts,
        "reference_features": references,
        "image_text_cosine_matrix": np.stack(matrix),
        "reference_cosine": grouped_cosine(texts, references, lengths),
    }
    for name, value in ours.items():
        if prefix + name in case.outputs:
            theirs = case.outputs[prefix + name]
            yield compare(prefix + name, value, theirs, case.tolerance(TOLERANCES[name]))


def _scores(case: Case, weights: Path, prefix: str) -> Iterator[Comparison]:
    """Scores, parts and means: as released and, where they coincide, as in the paper."""
    if prefix + "pac_s" not in case.outputs:
        return
    options: dict[str, Any] = {"weights": str(weights), "device": device(), "empty": "score", "w": case.scale}
    images = [case.paths[i] for i in case.pair_image]
    pacs = capeval_core.load("pacs", compat="released", **options).score(case.candidates, images)
    refpacs = capeval_core.load("refpacs", compat="released", **options).score(
        case.candidates, images, case.references
    )
    nearest = refpacs.parts["reference_cosine"]
    ours = {
        "cosine": pacs.parts["cosine"],
        "pac_s": pacs.scores,
        "mean_pac_s": pacs.mean,
        "ref_similarity": nearest,
        "mean_ref_similarity": float(np.mean(nearest)),
        "refpac_s": refpacs.scores,
        "mean_refpac_s": refpacs.mean,
    }
    for name, value in ours.items():
        if prefix + name in case.outputs:
            theirs = case.outputs[prefix + name]
            yield compare(prefix + name, value, theirs, case.tolerance(TOLERANCES[name]))

    paper = capeval_core.load("refpacs", **options).score(case.candidates, images, case.references)
    same = case.outputs[prefix + "ref_similarity"] >= 0
    for name, values in {"pac_s": paper.parts["pac_s"], "refpac_s": paper.scores}.items():
        theirs = case.outputs[prefix + name][same]
        yield compare(
            f"{prefix}paper_{name}", np.array(values)[same], theirs, case.tolerance(TOLERANCES[name])
        )


def _arithmetic(case: Case) -> Iterator[Comparison]:
    """The formulas alone, on features that the case made up."""
    given = {name.removeprefix("arith_"): x for name, x in case.outputs.items() if name.startswith("arith_")}
    image, text, references = (given[f"{kind}_features"] for kind in ("image", "text", "reference"))
    starts = given["reference_offsets"]
    flat = grouped_cosine(text, references, np.diff(starts))
    nearest = np.maximum.reduceat(flat, starts[:-1]).astype(np.float64)
    pac = pac_score(paired_cosine(image, text).astype(np.float64), case.scale)
    ours = {"pac_s": pac, "ref_similarity": nearest, "refpac_s": ref_pac_score(pac, nearest, released=True)}
    for name, value in ours.items():
        yield compare(f"arith_{name}", value, given[name], case.tolerance(TOLERANCES[name]))
    same = given["ref_similarity"] >= 0
    paper = ref_pac_score(pac, nearest)[same]
    yield compare("arith_paper_refpac_s", paper, given["refpac_s"][same], case.tolerance("refpac_s_atol"))
