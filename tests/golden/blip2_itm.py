"""BLIP-2: the original checkpoint, converted, asked through the public doors; and transformers' own format.

A case is a folder with config.json (transformers' sizes and the seed), manifest.json (transformers' tensors),
scales.json, lavis_key_map.json, images image0.png and so on, and golden.npz. Its texts are token ids: here
every id is a word of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.blip2_model import matched_states
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import best_query_cosine, unit
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

SCORES, STATES = 1e-4, 1e-3
"""The tolerances that the README gives, of scores and of hidden states."""
MARKS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}

NOT_COMPARED = ("attention_mask",)  # an input


@dataclass(frozen=True)
class Case:
    """What a golden folder holds."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Array]
    names: dict[str, Any]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config, manifest, scales, names = (
                json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
                for name in ("config", "manifest", "scales", "lavis_key_map")
            )
            with np.load(folder / "golden.npz") as stored:
                outputs = dict(stored)
            tensors = recipe.state_dict(manifest, int(config["seed"]))
            for name, scale in scales.items():
                tensors[name] = (tensors[name] * scale).astype(np.float32)
            case = cls(folder, config, tensors, names, outputs)
            _ = (case.texts, case.heads)
            missing = [image.name for image in case.images if not (folder / image.where).is_file()]
            if missing:
                raise UnreadableCaseError(f"lacks {', '.join(missing)}")
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    @property
    def words(self) -> list[str]:
        size = self.config["qformer_config"]["vocab_size"]
        return [MARKS.get(index, f"w{index}") for index in range(size)]

    @property
    def texts(self) -> list[str]:
        """Texts whose ids are the golden ones, the marks around them left away."""
        rows = zip(self.outputs["input_ids"], self.outputs["attention_mask"], strict=True)
        return [" ".join(self.words[index] for index in ids[mask == 1][1:-1]) for ids, mask in rows]

    @property
    def images(self) -> list[InputImage]:
        count = len(self.outputs["pixel_values"])
        names = [f"image{index}.png" for index in range(count)]
        return [InputImage.of(self.folder / name, where=name) for name in names]

    @property
    def heads(self) -> dict[str, int]:
        """What the tensors cannot tell."""
        return {
            "vision_heads": self.config["vision_config"]["num_attention_heads"],
            "qformer_heads": self.config["qformer_config"]["num_attention_heads"],
        }

    def lavis_checkpoint(self, place: Path) -> Path:
        """The original's file, under the original's names."""
        content: dict[str, torch.Tensor] = {}
        for name, original in self.names.items():
            tensor = torch.from_numpy(self.tensors[name])
            if isinstance(original, str):
                content[original] = tensor
                continue
            parts = tensor.chunk(len(original))
            content |= {own: part.clone() for own, part in zip(original, parts, strict=True) if own}
        path = place / "lavis.pth"
        torch.save({"model": content}, path)
        return path

    def transformers_folder(self, place: Path) -> Path:
        """A repository as transformers writes it."""
        folder = place / "transformers"
        folder.mkdir()
        keys = ("vision_config", "qformer_config", "num_query_tokens", "image_text_hidden_size")
        config = {
            "model_type": "blip-2",
            "architectures": ["Blip2ForImageTextRetrieval"],
            "image_token_index": 30523,
            **{key: self.config[key] for key in keys},
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").write_text(json.dumps({"resample": 3}))
        (folder / "vocab.txt").write_text("\n".join(self.words) + "\n")
        tensors = {name: torch.from_numpy(array) for name, array in self.tensors.items()}
        save_file(tensors, folder / "model.safetensors")
        return folder


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare."""
    return Case.read(folder).outputs.keys() - set(NOT_COMPARED)


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins, converted from LAVIS; then values of transformers' format."""
    case = Case.read(folder)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        place = Path(name)
        (place / "vocab.txt").write_text("\n".join(case.words) + "\n")
        settings = {"vocabulary": str(place / "vocab.txt"), **case.heads}
        release = Blip2Encoder.convert(case.lavis_checkpoint(place), **settings)
        Blip2Encoder(release.config, release.tensors, device=device()).save_pretrained(place / "ours")
        converted = Blip2Encoder.from_pretrained(place / "ours", device=device())
        direct = Blip2Encoder.from_pretrained(case.transformers_folder(place), device=device())
    yield from _all(case, converted)
    for quantity, ours in _matched(case, direct).items():
        if quantity in case.outputs:
            yield compare(f"{quantity} of transformers' format", ours, case.outputs[quantity], SCORES)


def _all(case: Case, encoder: Blip2Encoder) -> Iterator[Comparison]:
    theirs = case.outputs
    ids = np.zeros_like(theirs["input_ids"])
    for row, own in zip(ids, encoder.tokenizer.encode(case.texts).ids, strict=True):
        row[: len(own)] = own
    yield compare("input_ids", ids, theirs["input_ids"], 0)
    images = [image.load() for image in case.images]
    yield compare(
        "pixel_values", [encoder.preprocess(each) for each in images], theirs["pixel_values"], SCORES
    )
    states = encoder.states([encoder.prepare_visual(each) for each in images])
    (image_features,) = encoder.encode_images(case.images, cache=FeatureCache(0))
    text_features = encoder.encode_texts(case.texts, cache=FeatureCache(0)).features
    first = torch.tensor(
        [encoder.tokenizer.encode(case.texts[:1]).ids[0]] * len(states), device=states.device
    )
    with torch.inference_mode():
        hidden = matched_states(encoder.model, states, first)
    ours = {
        "itm_query_hidden_caption0": (hidden.cpu().numpy(), STATES),
        "image_embeds": (states.cpu().numpy(), STATES),
        "itc_image_feats": (unit(image_features.features), STATES),
        "itc_text_feats": (unit(text_features), STATES),
        **{quantity: (found, SCORES) for quantity, found in _matched(case, encoder).items()},
    }
    for quantity, (found, tolerance) in ours.items():
        if quantity in theirs:
            yield compare(quantity, found, theirs[quantity], tolerance)


def _matched(case: Case, encoder: Blip2Encoder) -> dict[str, Array]:
    found = list(encoder.match(case.images, [case.texts] * len(case.images), cache=FeatureCache(0)))
    return {
        "itc_images_x_captions": np.stack(
            [best_query_cosine(part.queries, part.text_features) for part in found]
        ),
        "itm_logits": np.stack([part.logits for part in found]),
        "itm_scores": np.stack([part.itm for part in found]),
    }
