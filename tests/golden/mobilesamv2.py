"""MobileSAMv2: its image encoders at full size, and what happens around its object detector.

The encoders' checkpoints are built in the form of the releases, beside a seeded decoder: `mobile_sam.pt` in
one file, `l2.pt` with `Prompt_guided_Mask_Decoder.pt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.golden import recipe, sam_decoder
from tests.golden.case import Case, Comparison, Json, Place, compare, converted, opened, save
from tests.support.seams import letterbox, object_boxes

TOLERANCE, PIXELS, SCORES, LEVEL = 1e-4, 1e-3, 1e-6, 1.001 / 255


def run(case: Case) -> Iterator[Comparison]:
    with Image.open(case.path("image.png")) as image:
        yield from detector(case, image)
        for name, watched in (("tinyvit", TINYVIT), ("efficientvit_l2", EFFICIENTVIT)):
            theirs = case.npz(name)
            with Place() as place:
                sam = opened("sam", weights(case, name, place))
                for key, values in encoded(sam, image, watched, tuple(theirs)).items():
                    yield compare(f"{name}_{key}", values, theirs[key], TOLERANCE)


def weights(case: Case, name: str, place: Path) -> Path:
    """A weights folder, made of files as they are released."""
    scales = f"{name}_scales" if case.path(f"{name}_scales.json").exists() else ""
    tensors = case.tensors(f"{name}_manifest", case.json("encoders")["seed"], scales)
    encoder = {f"image_encoder.{key}": tensor for key, tensor in tensors.items()}
    decoder = {key: torch.from_numpy(x) for key, x in recipe.state_dict(sam_decoder.decoder()).items()}
    if name == "tinyvit":
        return converted("sam", save(encoder | decoder, place / "mobile_sam.pt"), place / "weights")
    parts: dict[str, dict[str, Tensor]] = {"PromtEncoder": {}, "MaskDecoder": {}}
    for key, tensor in decoder.items():
        first, _, rest = key.partition(".")
        parts["PromtEncoder" if first == "prompt_encoder" else "MaskDecoder"][rest] = tensor
    checkpoint = save({"state_dict": encoder}, place / "l2.pt")
    return converted("sam", checkpoint, place / "weights", decoder=save(parts, place / "decoder.pt"))


TINYVIT: Json = {
    "patch_embed_every32": (lambda vision: vision.patch_embed, lambda x: x[:, :, ::32, ::32]),
    "layer0_first64": (
        lambda vision: vision.stages[1].downsample,
        lambda x: x.flatten(2).transpose(1, 2)[:, :64],
    ),
}
EFFICIENTVIT: Json = {
    "stage2_every8": (lambda vision: vision.stages[1], lambda x: x[:, :, ::8, ::8]),
    "stage3_every8": (lambda vision: vision.stages[2], lambda x: x[:, :, ::8, ::8]),
    "stage4_every4": (lambda vision: vision.stages[3], lambda x: x[:, :, ::4, ::4]),
}
"""Inner state -> the module that gives it, and which of its values are stored."""


def encoded(sam: Any, image: Image.Image, watched: Json, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The features of an image and some inner states, picked as the case stores them."""
    vision, found = sam.model.vision_encoder, dict[str, Tensor]()

    def note(key: str, pick: Callable[[Tensor], Tensor]) -> Callable[..., None]:
        return lambda _, inputs, *output: found.update({key: pick((output or inputs)[0]).detach()})

    with ExitStack() as hooks:
        for key, (module, pick) in watched.items():
            hooks.callback(module(vision).register_forward_hook(note(key, pick)).remove)
        if "resized512_every8" in names:
            picked = note("resized512_every8", lambda x: x[:, :, ::8, ::8])
            hooks.callback(vision.stem.register_forward_pre_hook(picked).remove)
        if "pixel_values_every16" in names:
            found["pixel_values_every16"] = sam.preprocess(image)[None, :, ::16, ::16]
        output = sam.embed(image)
    return {
        **found,
        "output_every8": output[:, :, ::8, ::8],
        "output_row5": output[:, :, 5],
        "output_channel_mean": output.mean((2, 3)),
        "output_channel_std": output.std((2, 3)),
    }


def detector(case: Case, image: Image.Image) -> Iterator[Comparison]:
    """What the object detector takes, and what is made of its output."""
    theirs, expected, ours = case.npz("letterbox"), case.json("letterbox"), letterbox(image)
    every16, corner = ours[:, ::16, ::16], ours[:, :40, :40]
    yield compare("letterbox_network_input_every16", every16, theirs["network_input_every16"], LEVEL)
    yield compare("letterbox_top_left_40", corner, theirs["top_left_40"], LEVEL)
    means = expected["image.png"]["channel_means_of_network_input"]
    yield compare("letterbox_channel_means", ours.mean((1, 2), dtype=np.float64), means, TOLERANCE)
    shapes = [letterbox(Image.new("RGB", entry["hw"][::-1])).shape[1:] for entry in expected["shapes"]]
    yield compare("letterbox_network_hw", shapes, [entry["network_hw"] for entry in expected["shapes"]], 0.0)
    stored = case.npz("objectaware_post")
    for name in sorted({name.partition("_")[0] for name in stored}):
        network, size = (tuple(stored[f"{name}_{of}_hw"].tolist()) for of in ("letterbox", "image"))
        boxes = object_boxes(stored[f"{name}_raw"], network, size)
        yield compare(f"objectaware_post_{name}_boxes", boxes.corners, stored[f"{name}_boxes"], PIXELS)
        yield compare(f"objectaware_post_{name}_scores", boxes.scores, stored[f"{name}_scores"], SCORES)
