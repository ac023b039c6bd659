"""A few drawn scenes with captions on the disk, an untrained UNITER, and short trainings of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from capeval_core.cli import main
from tools.tiny import write_scenes, write_start

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
SHORT = {
    "word_steps": 4,
    "matching_steps": 4,
    "steps": 6,
    "warmup": 2,
    "batch_size": 3,
    "accumulation": 2,
    "pretraining_rate": 3e-3,
    "learning_rate": 3e-3,
    "save_every": 2,
    "log_every": 3,
}


def write_set(folder: Path, scenes: int = 12) -> Path:
    """`images`, `captions.jsonl` and `start` in a folder."""
    write_scenes(folder, scenes, seed=5)
    write_start("umic", folder / "start", 0, SIZES)
    return folder


def arguments(folder: Path, out: Path, **settings: Any) -> list[str]:
    """Of a short training of UMIC on the scenes in a folder."""
    return arguments_of("umic", folder, out, **{**SHORT, **settings})


def arguments_of(name: str, folder: Path, out: Path, **settings: Any) -> list[str]:
    given = {"captions": folder / "captions.jsonl", "images": folder / "images", "start": folder / "start"}
    given |= {"regions": "tiny", "tagger": "scenes", "device": "cpu", "out": out, **settings}
    flags = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value is not None}
    return ["train", name, *(str(part) for pair in flags.items() for part in pair)]


def run_until_killed(arguments: list[str], saves: int) -> None:
    """Run `capeval` in a process that is killed while it saves its state for the n-th time."""

    def killed() -> None:
        replace, names = Path.replace, []

        def replaced(path: Path, target: Path) -> Path:
            names.append(Path(target).name)
            if names.count("state.pt") == saves and names[-1] == "state.pt":
                os.kill(os.getpid(), signal.SIGKILL)  # the new state is written, the old one still in place
            return replace(path, target)

        Path.replace = replaced  # type: ignore[method-assign,assignment]
        main(arguments)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def check_flipped_bits(arguments: list[str], out: Path) -> None:
    """Flip one bit of a state after the other: the training does not go on from it."""
    path = out / "state.pt"
    state = path.read_bytes()
    for place in np.random.default_rng(7).integers(0, 8 * len(state), 6).tolist():
        flipped = bytearray(state)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert main(arguments) == 2, place
    path.write_bytes(state)


def train(folder: Path, out: Path, **settings: Any) -> Path:
    assert main(arguments(folder, out, **settings)) == 0
    return out


def tensors_of(out: Path) -> dict[str, Any]:
    tensors: dict[str, Any] = load_file(out / "weights" / "model.safetensors")
    return tensors


def log_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
