"""Expected values of a CLIP-S case: `python -m tests.golden.make_clips DIR`.

Features by open_clip, scores by the formula of Hessel et al., CLIPScore, EMNLP 2021, section 3.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.golden.case import Case

Features = NDArray[np.float64]


def main(folder: Path) -> None:
    case = Case(folder)
    pairs, config = case.json("pairs"), case.config
    model = open_clip.model.build_model_from_openai_state_dict(case.tensors()).float()
    kept = model.state_dict().keys()
    model.load_state_dict(
        {name: values for name, values in case.tensors().items() if name in kept}
    )  # not in half
    size = config["model"]["image_resolution"]
    transform = open_clip.image_transform(size, False, config["image_mean"], config["image_std"])
    prefix, w = config["score"]["prefix"], config["score"]["w"]

    def encode(texts: list[str]) -> Features:
        return unit(model.encode_text(open_clip.tokenize([prefix + text for text in texts])))

    with torch.inference_mode():
        pixels = [transform(Image.open(case.path(name))) for name in pairs["images"]]
        images = unit(model.encode_image(torch.stack(pixels)))
        captions = encode([pair["caption"] for pair in pairs["pairs"]])
        references = [encode(pair["references"]) for pair in pairs["pairs"]]
    shown = images[[pairs["images"].index(pair["image"]) for pair in pairs["pairs"]]]
    cosine = (shown * captions).sum(axis=1)
    nearest = np.array([(own @ caption).max() for own, caption in zip(references, captions, strict=True)])
    clip_s, positive = w * np.maximum(cosine, 0), np.maximum(nearest, 0)
    total = clip_s + positive
    refclip_s = np.divide(2 * clip_s * positive, total, out=np.zeros_like(total), where=total > 0)
    np.savez(
        folder / "outputs.npz",
        image_features=images,
        text_features=captions,
        cosine=cosine,
        reference_cosine=nearest,
        clip_s=clip_s,
        refclip_s=refclip_s,
        mean_clip_s=clip_s.mean(),
        mean_refclip_s=refclip_s.mean(),
    )


def unit(features: torch.Tensor) -> Features:
    rows = features.double().numpy()
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
