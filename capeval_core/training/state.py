"""Where a training stands: weights, optimiser and progress in one file, which is replaced as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.errors import FileError, file_problem
from capeval_core.writing import PARTIAL

STATE, LOG, CURVES, WEIGHTS = "state.safetensors", "log.jsonl", "curves.png", "weights"
REGIONS, TOWERS, TRACKED = "regions", "towers", "tracked"
"""Names in a training's folder."""
_LOCK = ".lock"
_MODEL, _BEST, _OPTIMISER = "model.", "best.", "optimiser."


@contextmanager
def locked(folder: Path, accelerator: Any) -> Iterator[None]:
    """Keep other trainings out of a folder, by a lock of the main process that ends with it.

    Raises:
        FileError: another training writes into it.
    """
    from filelock import FileLock, Timeout

    if not accelerator.is_main_process:
        yield
        return
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        found = "another training is writing into it"
        raise FileError(file_problem(folder, found, "wait for its end, or pass another folder")) from None
    except NotImplementedError:  # a file system without locks
        pass
    try:
        yield
    finally:
        lock.release()


@dataclass
class Progress:
    """Numbers of a training between two steps.

    step: steps done. window: sums and counts of the losses since the last line of the log. best: the best
    value that chooses the weights, and its step. finished: whether no step is left.
    """

    step: int = 0
    window: dict[str, list[float]] = field(default_factory=dict)
    best: list[float] | None = None
    finished: bool = False

    def add(self, terms: dict[str, tuple[float, int]]) -> None:
        """Note sums and counts of losses."""
        for name, (total, count) in terms.items():
            sums = self.window.setdefault(name, [0.0, 0.0])
            sums[0] += total
            sums[1] += count

    def take(self) -> dict[str, float]:
        """The means of the window, which begins anew."""
        means = {name: total / count for name, (total, count) in sorted(self.window.items()) if count}
        self.window = {}
        return means


def save_state(
    folder: Path,
    stamp: dict[str, Any],
    progress: Progress,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    best: dict[str, Tensor],
) -> None:
    """Write the state, so that whatever fails the one before stays.

    Random numbers are drawn from seed and step, so there is nothing of theirs to save.
    """
    from safetensors.torch import save_file

    tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
    tensors |= {_BEST + name: tensor for name, tensor in best.items()}
    for index, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"{_OPTIMISER}{index}.{name}": torch.as_tensor(value) for name, value in moments.items()}
    metadata = {"stamp": json.dumps(stamp), "progress": json.dumps(asdict(progress))}
    partial = folder / f".{STATE}{PARTIAL}"
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, metadata)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(folder / STATE)


@dataclass(frozen=True)
class SavedState:
    """What `save_state` wrote."""

    stamp: dict[str, Any]
    progress: Progress
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> SavedState | None:
        """The state in a folder, None if there is none.

        Raises:
            FileError: it cannot be read.
        """
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file

        path = folder / STATE
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            stamp, progress = json.loads(metadata["stamp"]), Progress(**json.loads(metadata["progress"]))
            return cls(stamp, progress, load_file(path))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            fix = "remove it to begin again"
            raise FileError(file_problem(path, f"is no state of a training ({error})", fix)) from error

    def differences(self, stamp: dict[str, Any]) -> list[str]:
        """What differs from the settings of another training, in words."""
        names = [name for name in {**self.stamp, **stamp} if self.stamp.get(name) != stamp.get(name)]
        return [f"{name} {self.stamp.get(name)!r}, now {stamp.get(name)!r}" for name in names]

    def restore(self, model: nn.Module) -> dict[str, Tensor]:
        """Fill the model; the best weights so far, none if there are none."""
        model.load_state_dict(_under(_MODEL, self.tensors))
        return _under(_BEST, self.tensors)

    def restore_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """Fill the optimiser's moments."""
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(_OPTIMISER, self.tensors).items():
            index, _, moment = name.partition(".")
            moments.setdefault(int(index), {})[moment] = tensor
        fresh = optimiser.state_dict()
        optimiser.load_state_dict({"state": moments, "param_groups": fresh["param_groups"]})


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
