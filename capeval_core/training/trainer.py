"""The parts of every training: options, phases with their learning rates, and the loop of steps.

Every draw for a batch depends on the seed and its number alone, so a training resumes bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from capeval_core.errors import Problems, file_error, wrong_option
from capeval_core.models.device import resolve_device
from capeval_core.models.model import CheckedModel
from capeval_core.options import Settings, option
from capeval_core.project import install_command
from capeval_core.reports.examples import Pictures, examples_of
from capeval_core.reports.figures import draw_curves
from capeval_core.reports.trackers import Guard, accelerate_trackers
from capeval_core.store import check_seal, seal, stamp_difference, whole_file, write_whole
from capeval_core.weights.folder import WeightsFolder

# Files and folders of a training.
STATE = "state.pt"
LOG = "log.jsonl"
CURVES = "curves.png"
WEIGHTS = "weights"
REGIONS = "regions"
TOWERS = "towers"
TRACKED = "tracked"
# Validation measures, by their names in the log.
CORRELATION = "correlation"
VALIDATION = "validation_loss"
_MEASURE_TITLES = {
    CORRELATION: "correlation with human judgements (Kendall's tau-c)",
    VALIDATION: "loss on images that are held out",
}
Terms = dict[str, tuple[float, int]]
"""For the log: sum and number of the losses of each kind."""
ReadTerms = Callable[[], Terms]
"""Reads terms from the device, once, as that waits for all that was launched before."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class Phase:
    """A phase of a training, over which the learning rate rises and falls once."""

    name: str
    steps: int
    rate: float  # the highest learning rate
    start: int = 0  # steps before it


@dataclass(frozen=True, kw_only=True)
class Training(Settings, ABC):
    """Options of a training."""

    name: ClassVar[str]  # of the training in `capeval train`
    metric: ClassVar[str]  # of the weights
    betas: ClassVar[tuple[float, float]] = (0.9, 0.98)  # of AdamW
    shares: ClassVar[tuple[str, ...]] = ()  # options that are less than 1
    free: ClassVar[tuple[str, ...]] = ("save_every", "log_every", "tracker", "device", "start")
    """Options that the weights do not depend on, or whose fingerprints stamps have instead."""

    start: str | PathLike[str] = option(
        "", "weights to start from: a folder made by `capeval convert`, a Hub repository id, or `tiny`"
    )
    data: str = option("", "name of the captions, recorded in the weights: e.g. `COCO train2014, Karpathy`")
    warmup: int = option(4_000, "steps over which the learning rate rises", minimum=0)
    batch_size: int = option(32, "captions, each with its negatives, per forward pass", minimum=1)
    accumulation: int = option(16, "forward passes per step", minimum=1)
    clip: float = option(0.25, "largest norm of the gradient; 0: no limit", minimum=0)
    weight_decay: float = option(0.0, "decay of the matrices", minimum=0)
    seed: int = option(42, "seed of every random draw", minimum=0)
    save_every: int = option(500, "steps between two saved states", minimum=1)
    log_every: int = option(50, "steps between two lines of the log", minimum=1)
    tracker: str | None = option(
        None, "one of accelerate's trackers that curves are sent to, e.g. `tensorboard`; None: none"
    )
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda`; None: CUDA where there is a GPU")
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "numeric type of the forward passes of training"
    )
    stored: Literal["float16", "float32"] = option("float16", "numeric type of the weights that are written")

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_device(self.device)
        problems = Problems()

        def refuse(name: str, problem: str, fix: str) -> None:
            problems.add(wrong_option(name, getattr(self, name), problem, fix))

        if not self.start:
            refuse("start", "is missing", "pass the weights to start from")
        for phase in self.phases():
            # The rate would never reach its highest value, and its fall have no steps.
            if self.warmup >= phase.steps:
                refuse("warmup", f"is not below the {phase.steps:,} steps of {phase.name}", "pass fewer")
        for name in self.shares:
            if not getattr(self, name) < 1:
                refuse(name, "", "expected less than 1")
        if self.tracker is not None:
            from accelerate.tracking import get_available_trackers

            available = [str(tracker) for tracker in get_available_trackers()]
            if self.tracker not in available:
                problem = "is not an installed tracker of accelerate"
                fix = f"install it, or pass one of these: {', '.join(available) or 'none'}"
                refuse("tracker", problem, fix)
        problems.raise_if_any()

    @abstractmethod
    def schedule(self) -> list[Phase]:
        """The phases in order, those without steps among them; where each starts follows from the steps."""

    def phases(self) -> list[Phase]:
        """The phases that have steps, in order."""
        phases = []
        start = 0
        for phase in self.schedule():
            if phase.steps:
                phases.append(replace(phase, start=start))
                start += phase.steps
        return phases

    def phase_at(self, step: int) -> Phase:
        """The phase of a step, from 0; behind the end the last one."""
        begun = [phase for phase in self.phases() if phase.start <= step]
        return begun[-1]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: in each phase a linear rise, then a linear fall to 0."""
        phase = self.phase_at(step)
        step_of_phase = step - phase.start
        rise = (step_of_phase + 1) / max(self.warmup, 1)
        fall = (phase.steps - step_of_phase) / (phase.steps - self.warmup)
        return phase.rate * min(rise, fall)

    def stamp(self) -> dict[str, Any]:
        """The settings that the trained weights depend on."""
        return {name: value for name, value in vars(self).items() if name not in self.free}


@dataclass(frozen=True)
class HeldOut:
    """Captions of images that are held out, for tables of examples."""

    captions: Sequence[str]
    visual: Callable[[int], Any]  # of a caption
    scores: Callable[[], Sequence[float]]  # of all of them, by the model as it is


@dataclass(frozen=True)
class Looks:
    """Looks at the validation measure, which choose the weights and end a training early."""

    steps_before: int
    steps_between: int
    patience: int  # steps without a better value that end the training; 0: none
    measure: Callable[[], float]  # the value of the model as it is
    name: str  # of the value in the log
    held_out: HeldOut | None = None  # None: nothing of it is shown

    def due(self, step: int, last: int) -> bool:
        """True if there is a look after a step; always after the last one, which may be the best."""
        steps = step - self.steps_before
        return steps > 0 and (steps % self.steps_between == 0 or step == last)

    def better(self, value: float, best: float) -> bool:
        """True if a value is better than the best one so far."""
        return value < best if self.name == VALIDATION else value > best


class Objective(ABC):
    """A network to train and its data: phases go by name, batches by number."""

    training: Any
    model: nn.Module  # with heads that only the training needs
    looks: Looks | None = None

    def begin(self, phase: str) -> None:  # noqa: B027
        """Get the model ready for a phase that begins."""

    @abstractmethod
    def batch(self, phase: str, number: int) -> Any:
        """A batch of a phase, from the training's seed and the number alone; made in another thread."""

    @abstractmethod
    def losses(self, phase: str, batch: Any) -> tuple[Tensor, ReadTerms]:
        """The loss of a batch and a function that reads its terms, without waiting for the device."""

    def end_step(self) -> None:  # noqa: B027
        """Bring parameters back into their bounds, out of which a step may have moved them."""

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that the training has changed, as they are written at the end."""
        return state


@dataclass
class _Progress:
    """A training between two steps."""

    step: int = 0  # steps done
    window: dict[str, list[float]] = field(default_factory=dict)  # sums and counts since the last line
    lines: list[dict[str, Any]] = field(default_factory=list)  # of the log
    best: list[float] | None = None  # the value that chooses the weights, and its step
    finished: bool = False  # by looks


def scalar_terms(losses: Mapping[str, Tensor]) -> Terms:
    """Losses of one number each, read together."""
    # One transfer for all: each waits for everything that was launched on the device before.
    stacked = torch.stack([loss.detach() for loss in losses.values()])
    values: list[float] = stacked.tolist()
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
    # Two trainings in one folder would overwrite each other's states. The system frees the lock of a
    # process that was killed, so nothing is left to remove by hand.
    lock = FileLock(out / ".lock", timeout=0)
    try:
        if accelerator.is_main_process:
            with suppress(NotImplementedError):  # a file system without locks
                lock.acquire()
        if training.tracker is not None:
            settings = {}
            for name, value in vars(training).items():
                if value is not None:
                    settings[name] = str(value)  # trackers take no paths or lists
            accelerator.init_trackers(TRACKED, config=settings)
        yield accelerator
    except Timeout:
        problem = "another training is writing into it"
        raise file_error(out, problem, "wait for its end, or pass another folder", sentence=True) from None
    finally:
        lock.release()


class Trainer:
    """One training on one or several processes; it resumes from its folder's state."""

    def __init__(
        self, objective: Objective, out: Path, stamp: dict[str, Any], accelerator: Any, report: Report
    ) -> None:
        self.objective = objective
        self.model = objective.model
        self.training = objective.training
        self.out = out
        self.stamp = stamp
        self.accelerator = accelerator
        self.report = report
        self.main = bool(accelerator.is_main_process)
        self.world = int(accelerator.num_processes)
        self.progress = _Progress()
        self._scores_before: Sequence[float] | None = (
            None  # of captions held out, at the last look of this run
        )
        self._guard = Guard()
        self.best: dict[str, Tensor] = {}
        moments = self._restore()
        self.model.to(accelerator.device).train()
        self.optimiser = self._optimiser()
        # At the start of a phase the optimiser is new.
        if moments and self.progress.step != self.training.phase_at(self.progress.step).start:
            self.optimiser.load_state_dict(moments)
        self.last = sum(phase.steps for phase in self.training.phases())

    def run(self) -> dict[str, Tensor]:
        """Train to the end; the trained tensors: the best where looks choose them, else the last."""
        if self.main:
            # Written anew: a run that was killed may have logged steps after its last state.
            lines = [json.dumps(line) + "\n" for line in self.progress.lines]
            write_whole(self.out / LOG, "".join(lines))
        with ThreadPoolExecutor(1, thread_name_prefix="capeval-batches") as thread:
            ahead = self._numbered_batches(thread)
            while not self.progress.finished and self.progress.step < self.last:
                self._step(ahead)
        self._save()
        for tracker in self.accelerator.trackers:
            self._guard.log("the tracker", tracker.finish)
        weights = self.objective.weights(self.best or self.model.state_dict())
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}

    def _numbered_batches(self, thread: ThreadPoolExecutor) -> Iterable[tuple[int, Any]]:
        """Batches of this process from the current step on, each made while the one before is trained on."""
        # With 2 forward passes a step in 3 processes:
        #
        #     step               0         |  1
        #     place              0    1    |  2    3
        #     number, process 0  0    3    |  6    9
        #     number, process 1  1    4    |  7   10
        #     number, process 2  2    5    |  8   11
        batches_per_step = self.training.accumulation

        def make(place: int) -> tuple[int, Any]:
            number = place * self.world + self.accelerator.process_index
            phase = self.training.phase_at(place // batches_per_step)
            return number, self.objective.batch(phase.name, number)

        place = self.progress.step * batches_per_step
        future = thread.submit(make, place)
        while True:
            numbered_batch = future.result()
            place += 1
            future = thread.submit(make, place)
            yield numbered_batch

    def _step(self, ahead: Iterable[tuple[int, Any]]) -> None:
        training = self.training
        progress = self.progress
        device = self.accelerator.device
        phase = training.phase_at(progress.step)
        if progress.step == phase.start:
            self.objective.begin(phase.name)
            self.optimiser = self._optimiser()
        rate = training.rate_at(progress.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        # The range first: `zip` asks it before it would take one batch too many.
        for _, (number, batch) in zip(range(training.accumulation), ahead, strict=False):
            # Dropout of a batch depends on seed and number alone, so a resumed run repeats it.
            torch.manual_seed(_seed(training.seed, number))
            # accelerate keeps one precision for a whole process, so the autocast is torch's own.
            with torch.autocast(device.type, torch.bfloat16, training.precision == "bfloat16"):
                loss, read_terms = self.objective.losses(phase.name, batch)
            (loss / training.accumulation).backward()
            # Behind `backward`, so that reading waits while the device computes both.
            for name, (total, count) in read_terms().items():
                if not math.isfinite(total):
                    raise self._diverged("the loss")
                sums = progress.window.setdefault(name, [0.0, 0.0])
                sums[0] += total
                sums[1] += count
        # Once a step, and not in every forward pass, as a wrapped model would do it.
        if self.world > 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.accelerator.reduce(parameter.grad, "mean")
        if training.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimiser.step()
        self.objective.end_step()
        progress.step += 1
        self._look_and_keep(phase, rate)

    def _look_and_keep(self, phase: Phase, rate: float) -> None:
        """Look at the validation measure, write a line of the log and the state, each when it is due."""
        training = self.training
        progress = self.progress
        line: dict[str, Any] = {"step": progress.step, "phase": phase.name}
        if progress.step % training.log_every == 0 or progress.step == phase.start + phase.steps:
            means = {}
            for name, (total, count) in sorted(progress.window.items()):
                if count:
                    means[name] = total / count
            line |= {"learning_rate": rate, "losses": means}
            progress.window = {}
        looks = self.objective.looks
        if looks is not None and looks.due(progress.step, self.last):
            line[looks.name] = self._look(looks)
            if self.main and looks.held_out is not None:
                self._log_examples(looks.held_out)
        if self.main and len(line) > 2:
            self._log(line)
        if progress.step % training.save_every == 0 or progress.finished:
            self._save()

    def _look(self, looks: Looks) -> float:
        """The value by which weights are chosen; notes the best ones, and whether the training ends."""
        progress = self.progress
        # Processes round differently on some devices, but must decide alike.
        measured = torch.tensor(looks.measure(), device=self.accelerator.device)
        value = float(self.accelerator.reduce(measured, "mean"))
        if looks.name == VALIDATION and not math.isfinite(value):  # a correlation may be undefined
            raise self._diverged("the validation loss")
        if progress.best is None or looks.better(value, progress.best[0]):
            progress.best = [value, progress.step]
            # Copies: the next steps change the model's own tensors in place.
            state = self.model.state_dict()
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        else:
            progress.finished = 0 < looks.patience <= progress.step - progress.best[1]
        return value

    def _log_examples(self, held_out: HeldOut) -> None:
        """Send the captions with the worst, best and most changed scores to trackers."""
        trackers = accelerate_trackers(self.accelerator.trackers)
        if not trackers:
            return
        scores = held_out.scores()
        pictures = Pictures(held_out.visual)
        examples = examples_of(scores, held_out.captions, pictures.of, scores_before=self._scores_before)
        self._scores_before = scores
        for tracker in trackers:
            log = partial(tracker.log_examples, "examples", examples, self.progress.step)
            self._guard.log(tracker.name, log)

    def _diverged(self, what: str) -> ValueError:
        steps = f"{self.progress.step:,} steps"
        return ValueError(
            f"{what} is not a finite number after {steps}: the training has diverged; begin again in another "
            "folder, with a lower learning rate"
        )

    def _optimiser(self) -> torch.optim.Optimizer:
        """A new AdamW; matrices alone decay, as is usual for transformers."""
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                (matrices if parameter.ndim > 1 else vectors).append(parameter)
        groups: list[dict[str, Any]] = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": self.training.weight_decay})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        return torch.optim.AdamW(groups, lr=0.0, betas=self.training.betas)

    def _log(self, line: dict[str, Any]) -> None:
        """Write a line, send it to trackers and report it."""
        self.progress.lines.append(line)
        with (self.out / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        losses: dict[str, float] = line.get("losses", {})
        values: dict[str, float] = {}
        words = []
        for name, value in losses.items():
            values[f"loss/{name}"] = value
            words.append(f"{name} {value:.3f}")
        for name, value in line.items():
            if isinstance(value, float):
                values[name] = value
        self._guard.log("the tracker", lambda: self.accelerator.log(values, step=line["step"]))
        text = "  ".join(words)
        for name in _MEASURE_TITLES:
            if name in line:
                text += f"  {name.replace('_', ' ')} {line[name]:.3f}"
        self.report(f"step {line['step']:,} of {self.last:,}, {line['phase']}: {text}")

    def _save(self) -> None:
        """Write the state, and the curves: losses by kind, learning rate and validation measure."""
        if not self.main:
            return
        with whole_file(self.out / STATE) as partial:
            state = {"model": self.model.state_dict(), "best": self.best}
            state |= {"optimiser": self.optimiser.state_dict(), "progress": asdict(self.progress)}
            torch.save({"stamp": self.stamp, **state}, partial)
            seal(partial)  # the digest, by which `_restore` knows damage
        # Without matplotlib there are no curves, but log.jsonl has the numbers.
        with suppress(ModuleNotFoundError), whole_file(self.out / CURVES) as partial:
            curves = draw_curves(self._panels())
            curves.save(partial, format="PNG")

    def _panels(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """Points (step, value) of each curve by panel: the losses of each phase, then the other values."""
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for line in self.progress.lines:
            for name, value in line.get("losses", {}).items():
                curves = panels.setdefault(f"loss, {line['phase']}", {})
                curves.setdefault(name.replace("_", " "), []).append((line["step"], value))
        for name, title in {"learning_rate": "learning rate", **_MEASURE_TITLES}.items():
            points = []
            for line in self.progress.lines:
                if name in line:
                    points.append((line["step"], line[name]))
            if points:
                panels[title] = {"": points}  # one curve, which the panel's title names
        return panels

    def _restore(self) -> dict[str, Any]:
        """Fill model, best weights and progress from the folder's state; the state of the optimiser."""
        path = self.out / STATE
        if not path.is_file():
            return {}
        try:
            check_seal(path)  # torch.load would take a flipped bit for a number
            state = torch.load(path, map_location="cpu", weights_only=True)
            stamp = dict(state["stamp"])
            progress = _Progress(**state["progress"])
            model = state["model"]
            best = state["best"]
            moments = dict(state["optimiser"])
        except Exception as error:  # a damaged file can raise anything
            problem = f"is not a state of a training ({' '.join(str(error).split())[:200]})"
            raise file_error(path, problem, "remove it to begin again") from error
        difference = stamp_difference(stamp, self.stamp)
        if difference:
            problem = f"holds a training with other settings ({difference})"
            raise file_error(self.out, problem, "pass the same ones, or another folder")
        # Set at the end, so that a state that is refused has changed nothing.
        self.progress = progress
        self.best = best
        self.model.load_state_dict(model)
        return moments

    def write(
        self,
        encoder: type[CheckedModel],
        start: WeightsFolder,
        weights: Mapping[str, Tensor],
        constants: Mapping[str, Any],
        card: str | None = None,
    ) -> Path:
        """Write the tensors of `run` as a folder of weights, with constants of the metric; its path."""
        folder = self.out / WEIGHTS
        if self.main:
            tensors = start.tensors()
            dtype = torch.float16 if self.training.stored == "float16" else torch.float32
            # Tensors that are not trained keep the type of the start. Some networks hold a scale as (),
            # where the release has (1,).
            for name, tensor in weights.items():
                tensors[name] = tensor.reshape(tensors[name].shape).to(dtype)
            config = {**encoder.read_config(start), "training": self.stamp}
            source = dict(config.get("source") or {})
            note = f"Trained by `capeval train {self.training.name}`; see `training`."
            config["source"] = {**source, "notes": [*source.get("notes", []), note]}
            if constants:
                config["constants"] = {**config.get("constants", {}), **constants}
            for name in ("canary", "checksum"):  # of the start; `save_pretrained` makes new ones
                config.pop(name, None)
            encoder(config, tensors, device="cpu").save_pretrained(folder)
            if card is not None:
                write_whole(folder / "README.md", card)
        # The others return a folder that is there.
        self.accelerator.wait_for_everyone()
        return folder


def _seed(seed: int, number: int) -> int:
    """The seed of a batch's draws in forward passes, of 56 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest(), "little")
