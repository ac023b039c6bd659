"""Files of `capeval score --eval-results` and `--every-eval-ever`, which the Hub and leaderboards read."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from capeval_core.commands import common
from capeval_core.reports.hub_results import Evaluation, eval_results, every_eval_ever
from capeval_core.reports.tables import System, Systems
from capeval_core.weights.hub import HUB_NAME


def check(flags: Namespace, systems: Sequence[str]) -> Evaluation | None:
    """The evaluation that files are written of, or None. ValueError where flags are missing."""
    if flags.eval_results is None and flags.every_eval_ever is None:
        for flag in ("model", "dataset", "dataset_split", "evaluator"):
            if getattr(flags, flag) is not None:
                name = flag.replace("_", "-")
                raise ValueError(
                    f"--{name} is of --eval-results and --every-eval-ever: name one of them, too"
                )
        return None
    if len(systems) > 1:
        raise ValueError("--eval-results and --every-eval-ever are of one model: score its captions alone")
    if flags.model is None or flags.dataset is None:
        raise ValueError("--eval-results and --every-eval-ever need --model ORGANISATION/NAME and --dataset")
    if not _is_hub_name(flags.model, parts=2):
        raise ValueError(f"--model {flags.model!r}: name it as the Hub does, ORGANISATION/NAME")
    if not _is_hub_name(flags.dataset, parts=1) and not _is_hub_name(flags.dataset, parts=2):
        raise ValueError(
            f"--dataset {flags.dataset!r}: name it as the Hub does, or by letters, digits and . _ -"
        )
    now = datetime.now(UTC)
    evaluation = Evaluation(flags.model, flags.dataset, flags.dataset_split, flags.evaluator, now)
    if flags.eval_results is not None and not evaluation.is_on_hub:
        raise ValueError(
            f"--eval-results: --dataset {flags.dataset} is not on the Hub: name ORGANISATION/NAME"
        )
    if flags.every_eval_ever is not None:
        common.check_folder(flags.every_eval_ever, flag="--every-eval-ever")
    return evaluation


def _is_hub_name(name: str, *, parts: int) -> bool:
    """The name has so many parts, each as the Hub allows: it names folders, too."""
    names = name.split("/")
    return len(names) == parts and all(HUB_NAME.fullmatch(part) for part in names)


def write(flags: Namespace, compared: Systems, evaluation: Evaluation | None) -> None:
    """Write the files, if there are some."""
    if evaluation is None:
        return
    system: System = compared.systems[0]
    columns: Sequence[Any] = compared.columns
    if flags.eval_results is not None:
        common.write("--eval-results", flags.eval_results, eval_results(system, columns, evaluation))
    if flags.every_eval_ever is not None:
        for name, content in every_eval_ever(system, columns, evaluation).items():
            path = flags.every_eval_ever / name
            path.parent.mkdir(parents=True, exist_ok=True)
            common.write("--every-eval-ever", path, content)
