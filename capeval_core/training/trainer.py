"""The loop of every training: phases, steps, and what is saved, logged and looked at on the way.

Whatever a batch draws depends on the seed and its number alone, so that a training goes on bit for bit from a
state of weights, moments and counts.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.errors import FileError, file_problem
from capeval_core.kept import PARTIAL, write_whole
from capeval_core.models.device import resolve_device
from capeval_core.models.model import CheckedModel
from capeval_core.project import install_command
from capeval_core.reports.figures import draw_curves
from capeval_core.training.settings import Phase, Training
from capeval_core.weights.folder import WeightsFolder

STATE, LOG, CURVES, WEIGHTS = "state.safetensors", "log.jsonl", "curves.png", "weights"
REGIONS, TOWERS, TRACKED = "regions", "towers", "tracked"
"""Names in a training's folder."""
CORRELATION, VALIDATION = "correlation", "validation_loss"
"""What trainings are judged by."""
_JUDGED = {
    CORRELATION: "correlation with human judgements (Kendall's tau-c)",
    VALIDATION: "loss on images that are held out",
}
Terms = dict[str, tuple[float, int]]
"""For the log: sum and number of the losses of each kind."""
ReadTerms = Callable[[], Terms]
"""Reads them from the device, once: it waits for all that was launched before."""
Report = Callable[[str], None]


class Objective:
    """What is trained, and on what: phases go by name, batches by number."""

    model: nn.Module
    """With heads that only the training needs."""

    def begin(self, phase: str) -> None:
        """Get the model ready for a phase that begins."""

    def batch(self, phase: str, number: int) -> Any:
        """A batch of a phase, from the training's seed and the number alone; made in another thread."""
        raise NotImplementedError

    def losses(self, phase: str, batch: Any) -> tuple[Tensor, ReadTerms]:
        """The loss of a batch, and what reads its terms; itself it does not wait for the device."""
        raise NotImplementedError

    def end_step(self) -> None:
        """Bring back into its bounds what a step has moved out of them."""

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the model's state that are written at the end."""
        return state


@dataclass(frozen=True)
class Looks:
    """Looks at what a training is judged by, which choose the weights and end it early.

    first: steps before them. every: steps between two. patience: steps without a better value that end the
    training; 0: none. measure: the value of the model as it is. name: of the value in the log.
    """

    first: int
    every: int
    patience: int
    measure: Callable[[], float]
    name: str

    def due(self, step: int, last: int) -> bool:
        """Whether there is a look after a step."""
        return step > self.first and ((step - self.first) % self.every == 0 or step == last)

    def better(self, value: float, best: float) -> bool:
        """Whether a value is better than the best one so far."""
        return value < best if self.name == VALIDATION else value > best


@dataclass
class Progress:
    """Numbers of a training between two steps.

    step: steps done. window: sums and counts of the losses since the last line of the log. best: the best
    value that chooses the weights, and its step. finished: whether looks have ended it.
    """

    step: int = 0
    window: dict[str, list[float]] = field(default_factory=dict)
    best: list[float] | None = None
    finished: bool = False

    def add(self, terms: Terms) -> None:
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


def scalar_terms(losses: Mapping[str, Tensor]) -> Terms:
    """Losses of one number each, read together.

    >>> scalar_terms({"words": torch.tensor(0.5), "boxes": torch.tensor(2.0)})
    {'words': (0.5, 1), 'boxes': (2.0, 1)}
    """
    values: list[float] = torch.stack([loss.detach() for loss in losses.values()]).tolist()
    return {name: (value, 1) for name, value in zip(losses, values, strict=True)}


@contextmanager
def opened(training: Training, out: Path) -> Iterator[Any]:
    """`accelerate`'s accelerator of a training, whose folder is locked until the block ends."""
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise ImportError(f"training needs accelerate: {install_command('train')}") from error
    from filelock import FileLock, Timeout

    on_cpu = resolve_device(training.device).type == "cpu"
    accelerator = Accelerator(cpu=on_cpu, log_with=training.tracker, project_dir=str(out))
    lock = FileLock(out / ".lock", timeout=0)
    if accelerator.is_main_process:
        try:
            lock.acquire()
        except Timeout:
            found = "another training is writing into it"
            raise FileError(file_problem(out, found, "wait for its end, or pass another folder")) from None
        except NotImplementedError:  # a file system without locks
            pass
    try:
        if training.tracker is not None:
            settings = {name: value for name, value in vars(training).items() if value is not None}
            plain = {n: v if isinstance(v, (int, float, str)) else str(v) for n, v in settings.items()}
            accelerator.init_trackers(TRACKED, config=plain)
        yield accelerator
    finally:
        lock.release()


class Trainer:
    """One training on one or several processes; it goes on where its folder's state stands."""

    def __init__(
        self,
        training: Training,
        objective: Objective,
        looks: Looks | None,
        out: Path,
        stamp: dict[str, Any],
        accelerator: Any,
        report: Report,
    ) -> None:
        self.training, self.out, self.stamp, self.accelerator = training, out, stamp, accelerator
        self.objective, self.model, self.looks, self.report = objective, objective.model, looks, report
        self.progress, self.best = Progress(), dict[str, Tensor]()
        moments = self._restore()
        self.model.to(accelerator.device).train()
        self.optimiser = self._optimiser()
        if moments and self.progress.step != training.phase_at(self.progress.step).start:
            groups = self.optimiser.state_dict()["param_groups"]
            self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.log = _Log(out, self.progress.step) if accelerator.is_main_process else None

    def run(self) -> dict[str, Tensor]:
        """Train to the end; the weights: the best where they are judged, else the last."""
        with ThreadPoolExecutor(1, thread_name_prefix="capeval-batches") as thread:
            ahead = self._numbered_batches(thread)
            while not self.progress.finished and self.progress.step < self.training.all_steps:
                self._step(ahead)
        if self.log is not None:
            self._save()
            self.log.draw()
        for tracker in self.accelerator.trackers:
            tracker.finish()
        weights = self.objective.weights(self.best or self.model.state_dict())
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}

    def _numbered_batches(self, thread: ThreadPoolExecutor) -> Iterable[tuple[int, Any]]:
        """Batches of this process from the current step on, each made while the one before is trained on."""
        world, rank, each = self._world, self.accelerator.process_index, self.training.accumulation

        def make(place: int) -> tuple[int, Any]:
            number = place * world + rank
            return number, self.objective.batch(self.training.phase_at(place // each).name, number)

        place = self.progress.step * each
        future = thread.submit(make, place)
        while True:
            made = future.result()
            place += 1
            future = thread.submit(make, place)
            yield made

    @property
    def _world(self) -> int:
        return int(self.accelerator.num_processes)

    def _step(self, ahead: Iterable[tuple[int, Any]]) -> None:
        training, progress, device = self.training, self.progress, self.accelerator.device
        phase = training.phase_at(progress.step)
        if progress.step == phase.start:
            self.objective.begin(phase.name)
            self.optimiser = self._optimiser()
        rate = training.rate_at(progress.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        for _, (number, batch) in zip(range(training.accumulation), ahead, strict=False):
            # Dropout of a batch depends on seed and number alone, so a resumed run repeats it.
            torch.manual_seed(_seed(training.seed, number))
            # accelerate keeps one precision for a whole process, so the autocast is torch's own.
            with torch.autocast(device.type, torch.bfloat16, training.precision == "bfloat16"):
                loss, read_terms = self.objective.losses(phase.name, batch)
            (loss / training.accumulation).backward()  # type: ignore[no-untyped-call]
            terms = read_terms()
            if not all(math.isfinite(total) for total, _ in terms.values()):
                raise self._diverged("the loss")
            progress.add(terms)
        if self._world > 1:
            self._average_gradients()
        if training.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimiser.step()
        self.objective.end_step()
        progress.step += 1
        self._look_and_keep(phase, rate)

    def _average_gradients(self) -> None:
        """Give every process the mean gradient of all."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        mean = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _look_and_keep(self, phase: Phase, rate: float) -> None:
        """What comes after a step: a look at what judges it, a line of the log, the state."""
        training, progress = self.training, self.progress
        line: dict[str, Any] = {"step": progress.step, "phase": phase.name}
        if progress.step % training.log_every == 0 or progress.step == phase.start + phase.steps:
            line |= {"learning_rate": rate, "losses": progress.take()}
        if self.looks is not None and self.looks.due(progress.step, training.all_steps):
            line[self.looks.name] = self._look(self.looks)
        if self.log is None:
            return
        if len(line) > 2:
            self.log.add(line)
            values = {f"loss/{name}": value for name, value in line.get("losses", {}).items()}
            values |= {name: value for name, value in line.items() if isinstance(value, float)}
            self.accelerator.log(values, step=progress.step)
            self.report(_in_words(line, training.all_steps))
        if progress.step % training.save_every == 0 or progress.finished:
            self._save()
            self.log.draw()

    def _look(self, looks: Looks) -> float:
        """The value by which weights are chosen; notes the best ones, and whether to go on."""
        progress = self.progress
        measured = torch.tensor(looks.measure(), device=self.accelerator.device)
        if self._world > 1:  # processes round differently on some devices, but must decide alike
            measured = self.accelerator.reduce(measured, "mean")
        value = float(measured)
        if looks.name == VALIDATION and not math.isfinite(value):  # a correlation may be undefined
            raise self._diverged("the validation loss")
        if progress.best is None or looks.better(value, progress.best[0]):
            progress.best = [value, progress.step]
            self.best = {
                name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
            }
        else:
            progress.finished = 0 < looks.patience <= progress.step - progress.best[1]
        return value

    def _diverged(self, what: str) -> ValueError:
        found = f"{what} is not a finite number after {self.progress.step:,} steps: the training has diverged"
        return ValueError(f"{found}; begin again in another folder, with a lower learning rate")

    def _optimiser(self) -> torch.optim.Optimizer:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.training.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        chosen = [group for group in groups if group["params"]]
        return torch.optim.AdamW(chosen, lr=0.0, betas=self.training.betas)

    def _save(self) -> None:
        """Write the state beside, on the disk before its name is: whatever fails, the one before stays."""
        from safetensors.torch import save_file

        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for index, moments in self.optimiser.state_dict()["state"].items():
            own = {name: torch.as_tensor(value) for name, value in moments.items()}
            tensors |= {f"optimiser.{index}.{name}": value for name, value in own.items()}
        metadata = {"stamp": json.dumps(self.stamp), "progress": json.dumps(asdict(self.progress))}
        partial = self.out / f".{STATE}{PARTIAL}"
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, metadata)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(self.out / STATE)

    def _restore(self) -> dict[int, dict[str, Tensor]]:
        """Fill model, best weights and progress from the folder's state; the moments of the optimiser."""
        from safetensors import SafetensorError, safe_open

        path = self.out / STATE
        if not path.is_file():
            return {}
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}}
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    part, _, rest = name.partition(".")
                    parts[part][rest] = file.get_tensor(name)
            stamp, progress = json.loads(metadata["stamp"]), Progress(**json.loads(metadata["progress"]))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            found = f"is no state of a training ({error})"
            raise FileError(file_problem(path, found, "remove it to begin again")) from error
        names = [name for name in {**stamp, **self.stamp} if stamp.get(name) != self.stamp.get(name)]
        if names:
            pairs = [f"{name} {stamp.get(name)!r}, now {self.stamp.get(name)!r}" for name in names]
            found = f"holds a training with other settings ({'; '.join(pairs)})"
            raise FileError(file_problem(self.out, found, "pass the same ones, or another folder"))
        self.progress, self.best = progress, parts["best"]
        self.model.load_state_dict(parts["model"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimiser"].items():
            index, _, moment = name.partition(".")
            moments.setdefault(int(index), {})[moment] = tensor
        return moments


def _seed(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _in_words(line: dict[str, Any], steps: int) -> str:
    losses = "  ".join(f"{name} {value:.3f}" for name, value in line.get("losses", {}).items())
    judged = "".join(f"  {name.replace('_', ' ')} {line[name]:.3f}" for name in _JUDGED if name in line)
    return f"step {line['step']:,} of {steps:,}, {line['phase']}: {losses}{judged}"


class _Log:
    """The log of a training, a JSON object a line; those after `step`, of a killed run, are dropped.

    Raises FileError where a whole line is damaged; the last one may be cut off.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.path = folder, folder / LOG
        self.lines: list[dict[str, Any]] = []
        if self.path.is_file():
            *whole, _ = self.path.read_bytes().split(b"\n")
            lines = (self._read(number, line) for number, line in enumerate(whole, 1))
            self.lines = [line for line in lines if line["step"] <= step]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def _read(self, number: int, content: bytes) -> dict[str, Any]:
        try:
            line = dict(json.loads(content))
            if not isinstance(line["step"], int) or "phase" not in line:
                raise ValueError("no line of a training's log")
            return line
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            fix = "delete the line to go on without it"
            problem = file_problem(self.path, f"damaged ({error})", fix, index=f"line {number}", verb="is")
            raise FileError(problem) from error

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, which has a `step`."""
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def draw(self) -> None:
        """Draw the curves: losses by kind, learning rate, and what the training is judged by."""
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}

        def add(panel: str, curve: str, value: float) -> None:
            panels.setdefault(panel, {}).setdefault(curve, []).append((float(line["step"]), value))

        for line in self.lines:
            for name, value in line.get("losses", {}).items():
                add(f"loss, {line['phase']}", name.replace("_", " "), value)
        for line in self.lines:
            for name, title in {"learning_rate": "learning rate", **_JUDGED}.items():
                if name in line:
                    add(title, "", line[name])
        with suppress(ModuleNotFoundError):  # no matplotlib: log.jsonl has the numbers
            partial = self.folder / f".{CURVES}"
            draw_curves(panels).save(partial, format="PNG")
            partial.replace(self.folder / CURVES)


def save_trained(
    folder: Path,
    encoder: type[CheckedModel],
    start: WeightsFolder,
    tensors: dict[str, Tensor],
    training: Training,
    stamp: Mapping[str, Any],
    constants: Mapping[str, Any],
    card: str | None = None,
) -> None:
    """Write trained weights as a folder that is opened like any other.

    tensors: all of the network. constants: what the metric takes from the config, beside what the start has.
    card: README.md; None: the general one.
    """
    read = encoder.read_config(start)
    config = {name: value for name, value in read.items() if name not in ("canary", "checksum")}
    source = dict(config.get("source") or {})
    note = f"Trained by `capeval train {training.name}`; see `training`."
    source["notes"] = [*source.get("notes", []), note]
    config |= {"source": source, "training": json.loads(json.dumps(stamp))}
    if constants:
        config["constants"] = {**config.get("constants", {}), **constants}
    if card is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "README.md", card)
    encoder(config, tensors, device="cpu").save_pretrained(folder)


def as_stored(tensor: Tensor, training: Training) -> Tensor:
    """A tensor in the numeric type of `training.stored`."""
    return tensor.half() if training.stored == "float16" else tensor.float()
