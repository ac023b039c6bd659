"""A training: phases, steps, what is saved, logged and looked at on the way."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.errors import FileError, file_problem
from capeval_core.models.device import resolve_device
from capeval_core.project import install_command
from capeval_core.training.log import TrainingLog
from capeval_core.training.objective import CORRELATION, VALIDATION, Looks, Objective
from capeval_core.training.settings import Phase, Training
from capeval_core.training.state import Progress, SavedState, save_state


class Trainer:
    """One training on one or several processes; it goes on where its folder's state stands.

    Args:
        training: the settings.
        objective: model, batches and losses.
        looks: at what the training is judged by.
        out: the folder of state, log and curves.
        stamp: everything that the result depends on; a state with another one is refused.
        accelerator: of `accelerate`.

    Raises:
        ValueError: the folder holds the state of another training.
    """

    def __init__(
        self,
        training: Training,
        objective: Objective,
        looks: Looks | None,
        out: Path,
        stamp: dict[str, Any],
        accelerator: Any,
    ) -> None:
        self.training, self.out, self.stamp, self.accelerator = training, out, stamp, accelerator
        self.objective, self.model, self.looks = objective, objective.model, looks
        self.progress, self.best = Progress(), dict[str, Tensor]()
        saved = SavedState.read(out)
        if saved is not None:
            if differences := saved.differences(stamp):
                found = f"holds a training with other settings ({'; '.join(differences)})"
                raise FileError(file_problem(out, found, "pass the same ones, or another folder"))
            self.progress, self.best = saved.progress, saved.restore(self.model)
        self.model.to(accelerator.device).train()
        self.optimiser = self._optimiser()
        if saved is not None and self.progress.step != training.phase_at(self.progress.step).start:
            saved.restore_optimiser(self.optimiser)
        self.log = TrainingLog(out, self.progress.step) if accelerator.is_main_process else None

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return self.progress.finished or self.progress.step >= self.training.all_steps

    def run(self, report: Callable[[str], None]) -> dict[str, Tensor]:
        """Train to the end; the weights: the best where they are judged, else the last.

        report: takes a line for the user now and then.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="capeval-batches") as thread:
            ahead = self._numbered_batches(thread)
            while not self.finished:
                self._step(ahead, report)
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

    def _step(self, ahead: Iterable[tuple[int, Any]], report: Callable[[str], None]) -> None:
        training, progress = self.training, self.progress
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
            with torch.autocast(
                self.accelerator.device.type, torch.bfloat16, training.precision == "bfloat16"
            ):
                loss, read_terms = self.objective.losses(phase.name, batch)
            (loss / training.accumulation).backward()  # type: ignore[no-untyped-call]
            terms = read_terms()
            if not all(math.isfinite(total) for total, _ in terms.values()):
                raise self._diverged("the loss")
            progress.add(terms)
        self._average_gradients()
        if training.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimiser.step()
        self.objective.end_step()
        progress.step += 1
        self._look_and_keep(phase, rate, report)

    def _average_gradients(self) -> None:
        """Give every process the mean gradient of all."""
        if self._world > 1:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            mean = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
            for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _look_and_keep(self, phase: Phase, rate: float, report: Callable[[str], None]) -> None:
        """What comes after a step: a look at what judges it, a line of the log, the state."""
        training, progress = self.training, self.progress
        line: dict[str, Any] = {"step": progress.step, "phase": phase.name}
        if progress.step % training.log_every == 0 or progress.step == phase.start + phase.steps:
            line |= {"learning_rate": rate, "losses": progress.take()}
        if self.looks is not None and self._due(self.looks):
            line[self.looks.name] = self._look(self.looks)
        if self.log is None:
            return
        if len(line) > 2:
            self.log.add(line)
            self.accelerator.log(_values(line), step=progress.step)
            report(_in_words(line, training.all_steps))
        if progress.step % training.save_every == 0 or progress.finished:
            self._save()
            self.log.draw()

    def _due(self, looks: Looks) -> bool:
        step = self.progress.step
        looked = step - looks.first
        return looked > 0 and (looked % looks.every == 0 or step == self.training.all_steps)

    def _look(self, looks: Looks) -> float:
        """The value by which weights are chosen; notes the best ones, and whether to go on."""
        progress = self.progress
        measured = torch.tensor(looks.measure(), device=self.accelerator.device)
        if self._world > 1:  # processes round differently on some devices, but must decide alike
            measured = self.accelerator.reduce(measured, "mean")
        value = float(measured)
        if looks.lowest and not math.isfinite(value):  # a correlation may be undefined
            raise self._diverged(f"the {looks.name.replace('_', ' ')}")
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
        decay = self.training.weight_decay
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        chosen = [group for group in groups if group["params"]]
        return torch.optim.AdamW(chosen, lr=0.0, betas=self.training.betas)

    def _save(self) -> None:
        save_state(self.out, self.stamp, self.progress, self.model, self.optimiser, self.best)


def open_accelerator(training: Training, out: Path) -> Any:
    """`accelerate`'s accelerator for these settings, with the tracker that they name.

    out: the folder of the training, where trackers that write files do so.

    Raises:
        ImportError: the package is missing.
    """
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise ImportError(f"training needs accelerate: {install_command('train')}") from error
    accelerator = Accelerator(
        cpu=resolve_device(training.device).type == "cpu", log_with=training.tracker, project_dir=str(out)
    )
    if training.tracker is not None:
        settings = {name: value for name, value in vars(training).items() if value is not None}
        plain = {n: v if isinstance(v, (int, float, str)) else str(v) for n, v in settings.items()}
        accelerator.init_trackers("tracked", config=plain)
    return accelerator


def _seed(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _values(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line of the log by name, as trackers take them."""
    values = {f"loss/{name}": value for name, value in line.get("losses", {}).items()}
    return values | {name: value for name, value in line.items() if isinstance(value, float)}


def _in_words(line: dict[str, Any], steps: int) -> str:
    losses = "  ".join(f"{name} {value:.3f}" for name, value in line.get("losses", {}).items())
    judged = "".join(
        f"  {name.replace('_', ' ')} {line[name]:.3f}" for name in (CORRELATION, VALIDATION) if name in line
    )
    return f"step {line['step']:,} of {steps:,}, {line['phase']}: {losses}{judged}"
