"""ViLBERT: the original checkpoints, converted, and the states of both streams after every block.

A case is a folder with config.json (per part its sizes and seed), a manifest of each part, inputs.npz and
outputs.npz, whose keys begin with the name of the part. Its texts are token ids: here every id is a word of
its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.inputs.boxes import InputBoxes
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

STATES, INPUTS = 1e-5, 1e-6
"""The README's tolerance of all states, and ours of what the network takes, which it states in float32."""
MARKS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}
DECODER, WORDS = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
POOLED = (
    "pooled_text_from_last_co",
    "pooled_visual_from_last_co",
    "pooled_text_final",
    "pooled_visual_final",
)


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    config: dict[str, Any]
    manifests: dict[str, dict[str, Any]]
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config = read_json(folder / "config.json")
            manifests = {part: read_json(folder / f"manifest_{part}.json") for part in config["parts"]}
            with np.load(folder / "inputs.npz") as inputs, np.load(folder / "outputs.npz") as outputs:
                case = cls(config, manifests, dict(inputs), dict(outputs))
            for part in case.manifests:
                _ = (case.texts(part), case.blocks(part), case.inputs[f"{part}/image_mask"])
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    def texts(self, part: str) -> list[str]:
        """The texts whose ids, between the marks, are those of the case."""
        ids, mask = self.inputs[f"{part}/input_ids"], self.inputs[f"{part}/input_mask"]
        return [text_of(row[: real.sum()]) for row, real in zip(ids, mask, strict=True)]

    def boxes(self, part: str, row: int) -> dict[str, Array]:
        """Box features of an image, as a detector hands them over."""
        raw = f"{part}/raw{row}"
        return {
            "boxes": self.inputs[f"{raw}_bbox"],
            "features": self.inputs[f"{raw}_features"],
            "size": self.inputs[f"{raw}_wh"],
        }

    def blocks(self, part: str) -> int:
        return len(self.config["parts"][part]["model"]["t_biattention_id"])


def read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def text_of(ids: Array) -> str:
    """A text that the tokenizer turns into these ids; of the marks, and of one that was cut, nothing else."""
    return " ".join(f"w{index}" for index in ids.tolist() if index not in MARKS)


def write_checkpoint(file: Path, manifest: Mapping[str, Any], seed: int) -> None:
    """The original's checkpoint, with the decoder that is tied to the word table."""
    tensors = {name: torch.from_numpy(array) for name, array in recipe.state_dict(manifest, seed).items()}
    torch.save({**tensors, DECODER: tensors[WORDS]}, file)


def opened(place: Path, manifest: Mapping[str, Any], seed: int, model: Mapping[str, Any], task: int) -> Path:
    """A weights folder of the original's checkpoint, made in `place`."""
    words = [MARKS.get(index, f"w{index}") for index in range(model["vocab_size"])]
    (place / "vocab.txt").write_text("\n".join(words) + "\n")
    write_checkpoint(place / "model.bin", manifest, seed)
    has_tasks = any("task_embeddings" in name for name in manifest)
    release = VilbertEncoder.convert(
        place / "model.bin",
        vocabulary=str(place / "vocab.txt"),
        text_heads=model["num_attention_heads"],
        visual_heads=model["v_num_attention_heads"],
        co_heads=model["bi_num_attention_heads"],
        text_layers_before=",".join(map(str, model["t_biattention_id"])),
        visual_layers_before=",".join(map(str, model["v_biattention_id"])),
        task=task if has_tasks else None,
    )
    VilbertEncoder(release.config, release.tensors, device=device()).save_pretrained(place / "ours")
    return place / "ours"


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare."""
    case = Case.read(folder)
    inputs = {f"{part}/{name}" for part in case.manifests for name in ("input_ids", "features", "spatials")}
    return set(case.outputs) | inputs


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins, part by part."""
    case = Case.read(folder)
    for part in case.manifests:
        yield from _part(case, part)


def _part(case: Case, part: str) -> Iterator[Comparison]:
    """A part whose rows have tasks of their own: each task is a setting of the converted weights."""
    settings, count = case.config["parts"][part], len(case.texts(part))
    ours: dict[str, list[Array]] = {}
    tasks = case.inputs[f"{part}/task_ids"][:, 0].tolist()
    for task in dict.fromkeys(tasks):
        rows = [row for row in range(count) if tasks[row] == task]
        with tempfile.TemporaryDirectory(prefix="golden-") as name:
            place, model = Path(name), settings["model"]
            weights = opened(place, case.manifests[part], settings["seed"], model, task)
            encoder = VilbertEncoder.from_pretrained(weights, device=device())
            for quantity, found in _run(case, part, encoder, rows).items():
                values = ours.setdefault(quantity, [np.empty(0)] * count)
                for row, own in zip(rows, found, strict=True):
                    values[row] = own
    for quantity, values in ours.items():
        name = quantity.partition(",")[0]
        theirs = case.inputs[name] if name in case.inputs else case.outputs[name]
        # What the original fills rows with to the length of the longest is left out.
        real = [rows[: len(own)] for rows, own in zip(theirs, values, strict=True)]
        tolerance = 0 if name.endswith("ids") else INPUTS if name in case.inputs else STATES
        yield compare(quantity, np.concatenate(values), np.concatenate(real), tolerance)


def _run(case: Case, part: str, encoder: VilbertEncoder, rows: list[int]) -> dict[str, list[Array]]:
    """What these rows give, without padding."""
    texts = [case.texts(part)[row] for row in rows]
    tokens = encoder.tokenizer.encode(texts).ids
    visuals = [InputBoxes.of(case.boxes(part, row), f"images[{row}]") for row in rows]
    prepared = [encoder.prepare_visual(visual.load()) for visual in visuals]
    found: dict[str, list[Any]] = {
        "input_ids": [np.array(ids) for ids in tokens],
        "features": [each.features for each in prepared],
        "spatials": [each.locations for each in prepared],
    }
    with torch.inference_mode():
        regions = encoder.region_states(prepared)
        lower = encoder.text_states(tokens, FeatureCache(0), None)
        both = list(encoder.model.states(lower, regions, [(row, row) for row in range(len(rows))]))
        pools = [pool.cpu().numpy() for index in (-2, -1) for pool in encoder.model.pooled(*both[index])]
    found |= dict(zip(POOLED, pools, strict=True))
    for block, (text, visual) in enumerate(both):
        final = block == len(both) - 1
        found["final_text" if final else f"text_{block}"] = text
        found["final_visual" if final else f"visual_{block}"] = visual
        if not final:  # again, through the door that the metric takes
            captions = [[text] for text in texts]
            features = encoder.token_features(visuals, captions, layer=block, cache=FeatureCache(0))
            found[f"text_{block}, token_features"] = [each.features[0] for each in features if each.features]
    return {
        f"{part}/{name}": [np.asarray(torch.as_tensor(own).cpu()) for own in values]
        for name, values in found.items()
    }
