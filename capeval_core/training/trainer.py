"""A training: phases, steps, what is saved, logged and looked at on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.errors import FileError, file_problem
from capeval_core.models.device import resolve_device
from capeval_core.training.log import TrainingLog
from capeval_core.training.objective import Looks, Objective
from capeval_core.training.settings import Phase, RegionTraining
from capeval_core.training.state import Progress, SavedState, save_state


class Trainer:
    """One training on one or several processes; it goes on where its folder's state stands.

    Args:
        training: the settings.
        objective: model, batches and losses.
        looks: at human judgements.
        out: the folder of state, log and curves.
        stamp: everything that the result depends on; a state with another one is refused.
        accelerator: of `accelerate`.

    Raises:
        ValueError: the folder holds the state of another training.
    """

    def __init__(
        self,
        training: RegionTraining,
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
        """Train to the end; the weights: the best by judgements where there are any, else the last.

        report: takes a line for the user now and then.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="capeval-batches") as thread:
            ahead = self._numbered_batches(thread)
            while not self.finished:
                self._step(ahead, report)
        if self.log is not None:
            self._save()
            self.log.draw()
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
                loss, terms = self.objective.losses(phase.name, batch)
            (loss / training.accumulation).backward()  # type: ignore[no-untyped-call]
            progress.add(terms)
        self._average_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimiser.step()
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
        """What comes after a step: a look at the judgements, a line of the log, the state."""
        training, progress = self.training, self.progress
        line: dict[str, Any] = {"step": progress.step, "phase": phase.name}
        if progress.step % training.log_every == 0 or progress.step == phase.start + phase.steps:
            line |= {"learning_rate": rate, "losses": progress.take()}
        if self.looks is not None and self._due(self.looks):
            line["correlation"] = self._look(self.looks)
        if self.log is None:
            return
        if len(line) > 2:
            self.log.add(line)
            report(_in_words(line, training.all_steps))
        if progress.step % training.save_every == 0 or progress.finished:
            self._save()
            self.log.draw()

    def _due(self, looks: Looks) -> bool:
        step = self.progress.step
        looked = step - looks.first
        return looked > 0 and (looked % looks.every == 0 or step == self.training.all_steps)

    def _look(self, looks: Looks) -> float:
        """The correlation with human judgements; notes the best weights, and whether to go on."""
        progress = self.progress
        tau = torch.tensor(looks.correlation(), device=self.accelerator.device)
        if self._world > 1:  # processes round differently on some devices, but must decide alike
            tau = self.accelerator.reduce(tau, "mean")
        correlation = float(tau)
        if progress.best is None or correlation > progress.best[0]:
            progress.best, progress.looks = [correlation, progress.step], 0
            self.best = {
                name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
            }
        else:
            progress.looks += 1
            progress.finished = 0 < looks.patience <= progress.looks
        return correlation

    def _optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=self.training.weight_decay
        )

    def _save(self) -> None:
        save_state(self.out, self.stamp, self.progress, self.model, self.optimiser, self.best)


def open_accelerator(training: RegionTraining) -> Any:
    """`accelerate`'s accelerator for these settings.

    Raises:
        ImportError: the package is missing.
    """
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise ImportError('training needs accelerate: pip install "capeval[train]"') from error
    return Accelerator(cpu=resolve_device(training.device).type == "cpu")


def _seed(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _in_words(line: dict[str, Any], steps: int) -> str:
    losses = "  ".join(f"{name} {value:.3f}" for name, value in line.get("losses", {}).items())
    tau = f"  correlation {line['correlation']:.3f}" if "correlation" in line else ""
    return f"step {line['step']:,} of {steps:,}, {line['phase']}: {losses}{tau}"
