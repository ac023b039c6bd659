"""Train a tiny UNITER on drawn scenes, by `capeval train`, or a tiny Long-CLIP.

    python -m tools.tiny umic --out DIR [--seed 0]
    python -m tools.tiny specs --out DIR [--seed 0] [--start DIR]

The first one sees no pair of shape and colour, and no template, that `tools.sets` holds out for tests.
The weights that ship with the package were made by `tools/tiny` of commit 37a6b70, which also pre-trained
the tiny ViLBERT, those of `specs` by
`tools/tiny_long.py` from those of commit df10d6aa with positions of waves, tower by tower: 1,500 steps of
crowds each, then some 200 of texts and 460 of images with ordinary scenes.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from capeval_core import registry
from capeval_core.cli import main as capeval
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import END, PAD, START, UNKNOWN
from capeval_core.encoders.uniter import Uniter
from capeval_core.encoders.vilbert import Vilbert
from capeval_core.training.regions import MASK
from tools import tiny_long
from tools.captions import describe
from tools.scenes import draw, sample_scene
from tools.sets import split_caption, split_scene

SCENES = 12_000
SIDES = (96, 128, 192)
"""Of images, in pixels, at random."""
WORDINGS = 2
SPREAD = 0.05  # deviation of the first weights
LOCATION_SPREAD = 2.0  # the five numbers of a location are added to 64 larger ones of features
SOURCE: dict[str, Any] = {
    **dict.fromkeys(("url", "file", "sha256")),
    "name": "capeval synthetic scenes",
    "licence": "apache-2.0",
    "notes": ["Its scores of images other than drawn scenes mean nothing."],
}
_LAYERS = {"hidden_size": 128, "num_attention_heads": 4}
_TEXT = {**_LAYERS, "max_position_embeddings": 128}
SIZES: dict[str, dict[str, Any]] = {
    "umic": {**_TEXT, "num_hidden_layers": 3, "intermediate_size": 512},
    "vilbert": {
        "text": {**_TEXT, "num_hidden_layers": 4, "intermediate_size": 256},
        "visual": {**_LAYERS, "num_hidden_layers": 2, "intermediate_size": 256},
        "co_attention": _LAYERS,
        "text_layers_before": [2, 3, 4],
        "visual_layers_before": [0, 1, 2],
        "tasks": 1,
    },
}
_COMMON = (
    "--batch-size 16 --accumulation 1 --clip 1 --dropout 0 --weight-decay 0.01 --log-every 50 --warmup 100"
)
FLAGS = {
    # Without masked words the network, which starts from nothing, reads captions alone for a very long time.
    "umic": f"{_COMMON} --warmup 100 --word-steps 2400 --matching-steps 1400 --steps 800 --save-every 500 "
    "--pretraining-rate 1e-3 --learning-rate 4e-4"
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.tiny", description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=[*FLAGS, "specs"])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the trained weights")
    parser.add_argument("--start", type=Path, metavar="DIR", help="of specs: weights to go on from")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the threads
    if options.name == "specs":
        torch.manual_seed(options.seed)
        config, tensors = tiny_long.train(options.start, options.seed)
        ClipEncoder({**config, "source": SOURCE}, tensors).save_pretrained(options.out)
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_scenes(folder, SCENES, options.seed)
        write_start(options.name, folder / "start", options.seed)
        settings = {
            "captions": folder / "captions.jsonl",
            "images": folder / "images",
            "start": folder / "start",
            "out": folder / "run",
            "regions": "tiny",
            "tagger": "scenes",
            "data": "drawn scenes",
            "seed": options.seed,
            "device": "cpu",
        }
        flags = []
        for flag, value in settings.items():
            flags += [f"--{flag}", str(value)]
        status = capeval(["train", options.name, *flags, *FLAGS[options.name].split()])
        if status == 0:
            (folder / "run" / "weights").rename(options.out)
    return status


def write_scenes(folder: Path, count: int, seed: int) -> None:
    """Draw and describe scenes: `images/<id>.png` and `captions.jsonl`."""
    rng = np.random.default_rng([seed, 21])
    (folder / "images").mkdir(parents=True)
    with (folder / "captions.jsonl").open("w", encoding="utf-8") as file:
        for index in range(count):
            scene = split_scene(rng, held_out=False)
            side = SIDES[int(rng.integers(len(SIDES)))]
            draw(scene, side).save(folder / "images" / f"{index}.png", compress_level=1)
            captions = [split_caption(scene, rng, held_out=False) for _ in range(WORDINGS)]
            file.write(json.dumps({"image_id": str(index), "captions": captions}) + "\n")


@cache
def vocabulary() -> list[str]:
    """BERT's marks, the words of captions of scenes, and all printable ASCII at the start and within words.

    So every English word has ids: an unknown one those of its characters.
    """
    rng = np.random.default_rng(0)
    texts = (describe(sample_scene(rng), rng) for _ in range(4000))
    words = {word.rstrip(",") for text in texts for word in text.split()}
    characters = [c for c in string.printable if c.isprintable() and c != " " and not c.isupper()]
    within = [f"##{c}" for c in characters]
    return [PAD, UNKNOWN, START, END, MASK, *sorted(words - {*characters}), *characters, *within]


def write_start(name: str, folder: Path, seed: int, sizes: Mapping[str, Any] | None = None) -> None:
    """Untrained weights: a folder that a training starts from."""
    sizes = sizes or SIZES[name]
    words = vocabulary()
    detector: Any = registry.network("scene_regions").from_pretrained("tiny")
    region_size = detector.region_size
    architecture: dict[str, Any] = {**sizes}
    if name == "umic":
        architecture |= {"vocab_size": len(words), "region_size": region_size}
        settings = {"encoder": "uniter", "context_length": sizes["max_position_embeddings"]}
    else:
        architecture["text"] = {**sizes["text"], "vocab_size": len(words)}
        architecture["visual"] = {**sizes["visual"], "region_size": region_size}
        settings = {"encoder": "vilbert", "context_length": sizes["text"]["max_position_embeddings"]}
        settings["task"] = 0 if sizes["tasks"] else None
    torch.manual_seed(seed)
    model: Any = Uniter(architecture) if name == "umic" else Vilbert(architecture)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=SPREAD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if name == "vilbert":
        nn.init.normal_(model.region_embeddings.location.weight, std=LOCATION_SPREAD)
    config = {"format": 1, "architecture": architecture, "vocabulary": words, "lowercase": True, **settings}
    config["source"] = {**SOURCE, "notes": [*SOURCE["notes"], "It was not pretrained."]}
    registry.network(config["encoder"])(config, model.state_dict()).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
