"""MobileSAMv2: its image encoders at full size, and what happens around its object detector.

The encoders' checkpoints are built in the form of the releases, beside a seeded decoder: `mobile_sam.pt` in
one file, `l2.pt` with `Prompt_guided_Mask_Decoder.pt`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.regions.object_aware import letterbox, read_output
from capeval_core.regions.sam import Sam
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.regions import original_sam
from tests.support.device import device

Array = NDArray[Any]

ENCODERS = ("tinyvit", "efficientvit_l2")
FILES = (*ENCODERS, "objectaware_post", "letterbox")
INPUTS = ("raw", "letterbox_hw", "image_hw")
TOLERANCE, PIXELS = 1e-4, 1e-3
LEVEL = 1.001 / 255


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    names = {f"{file}_{name}" for file in FILES for name in _read(folder / f"{file}.npz")}
    shapes = {"letterbox_network_hw", "letterbox_channel_means"}
    return {name for name in names if not name.endswith(INPUTS)} | shapes


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    image = folder / "image.png"
    if not image.is_file():
        raise UnreadableCaseError("there is no image.png")
    seed = int(_json(folder / "encoders.json")["seed"])
    yield from _detector(folder)
    for name in ENCODERS:
        scales = folder / f"{name}_scales.json"
        tensors = {
            key: torch.from_numpy(x)
            for key, x in recipe.state_dict(_json(folder / f"{name}_manifest.json"), seed).items()
        }
        for key, scale in (_json(scales) if scales.is_file() else {}).items():
            tensors[key] *= scale
        with tempfile.TemporaryDirectory(prefix="golden-") as place:
            sam = Sam.from_pretrained(_converted(name, tensors, Path(place)), device=device())
            theirs = _read(folder / f"{name}.npz")
            for key, values in _encoded(name, sam, image).items():
                yield compare(f"{name}_{key}", values, theirs[key], TOLERANCE)


def _converted(name: str, encoder: dict[str, torch.Tensor], place: Path) -> Path:
    """A weights folder, made of files as they are released."""
    decoder = {key: torch.from_numpy(x) for key, x in recipe.state_dict(original_sam.decoder()).items()}
    prefixed = {f"image_encoder.{key}": tensor for key, tensor in encoder.items()}
    if name == "tinyvit":
        torch.save(prefixed | decoder, place / "mobile_sam.pt")
        release = Sam.convert(place / "mobile_sam.pt")
    else:
        torch.save({"state_dict": prefixed}, place / "l2.pt")
        parts: dict[str, dict[str, torch.Tensor]] = {"PromtEncoder": {}, "MaskDecoder": {}}
        for key, tensor in decoder.items():
            first, _, rest = key.partition(".")
            parts["PromtEncoder" if first == "prompt_encoder" else "MaskDecoder"][rest] = tensor
        torch.save(parts, place / "decoder.pt")
        release = Sam.convert(place / "l2.pt", decoder=place / "decoder.pt")
    Sam(release.config, release.tensors, device=device()).save_pretrained(place / "weights")
    return place / "weights"


def _encoded(name: str, sam: Sam, image: Path) -> dict[str, Array]:
    """The features of an image and some inner states, picked as the case stores them."""
    vision: Any = sam.model
    vision = vision.vision_encoder
    found: dict[str, Array] = {}

    def keep(key: str, values: torch.Tensor) -> None:
        found[key] = values.detach().cpu().numpy()

    with ExitStack() as hooks, Image.open(image) as decoded:
        if name == "tinyvit":
            keep("pixel_values_every16", sam.preprocess(decoded)[None, :, ::16, ::16])
            watched = [
                (vision.patch_embed, lambda x: keep("patch_embed_every32", x[:, :, ::32, ::32])),
                (
                    vision.stages[1].downsample,
                    lambda x: keep("layer0_first64", x.flatten(2).transpose(1, 2)[:, :64]),
                ),
            ]
        else:
            stem = vision.stem.register_forward_pre_hook(
                lambda _, inputs: keep("resized512_every8", inputs[0][:, :, ::8, ::8])
            )
            hooks.callback(stem.remove)
            watched = [
                (vision.stages[1], lambda x: keep("stage2_every8", x[:, :, ::8, ::8])),
                (vision.stages[2], lambda x: keep("stage3_every8", x[:, :, ::8, ::8])),
                (vision.stages[3], lambda x: keep("stage4_every4", x[:, :, ::4, ::4])),
            ]
        for module, note in watched:
            hooks.callback(module.register_forward_hook(lambda _, __, x, note=note: note(x)).remove)
        output = sam.embed(decoded)
    keep("output_every8", output[:, :, ::8, ::8])
    keep("output_row5", output[:, :, 5])
    keep("output_channel_mean", output.mean((2, 3)))
    keep("output_channel_std", output.std((2, 3)))
    return found


def _detector(folder: Path) -> Iterator[Comparison]:
    theirs = _read(folder / "letterbox.npz")
    expected = _json(folder / "letterbox.json")
    with Image.open(folder / "image.png") as decoded:
        ours = letterbox(decoded)
    yield compare(
        "letterbox_network_input_every16", ours[:, ::16, ::16], theirs["network_input_every16"], LEVEL
    )
    yield compare("letterbox_top_left_40", ours[:, :40, :40], theirs["top_left_40"], LEVEL)
    means = expected["image.png"]["channel_means_of_network_input"]
    yield compare("letterbox_channel_means", ours.mean((1, 2), dtype=np.float64), means, TOLERANCE)
    shapes = [letterbox(Image.new("RGB", entry["hw"][::-1])).shape[1:] for entry in expected["shapes"]]
    yield compare("letterbox_network_hw", shapes, [entry["network_hw"] for entry in expected["shapes"]], 0.0)
    cases = _read(folder / "objectaware_post.npz")
    for case in sorted({name.partition("_")[0] for name in cases}):
        network, image = (tuple(cases[f"{case}_{of}_hw"].tolist()) for of in ("letterbox", "image"))
        boxes = read_output(cases[f"{case}_raw"], network, image)
        yield compare(f"objectaware_post_{case}_boxes", boxes.corners, cases[f"{case}_boxes"], PIXELS)
        yield compare(f"objectaware_post_{case}_scores", boxes.scores, cases[f"{case}_scores"], 1e-6)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnreadableCaseError(f"cannot be read: {' '.join(str(error).split())}") from error


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path) as stored:
            return dict(stored)
    except (OSError, ValueError, BadZipFile) as error:
        raise UnreadableCaseError(f"cannot be read: {' '.join(str(error).split())}") from error
