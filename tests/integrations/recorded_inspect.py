"""What `caption_score` takes of Inspect, recorded: used where the package is not installed.

`tests/adapters` holds it against the real package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

PARAMETERS = {
    "Score.unscored": ["reason", "answer", "explanation", "metadata"],
    "Score": ["value", "answer", "explanation"],
    "scorer": ["metrics", "name", "metadata"],
    "Target": ["target"],
}
"""Functions of `inspect_ai.scorer`, and their first parameters."""


@dataclass
class Score:
    value: float
    answer: str | None = None
    explanation: str | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def unscored(cls, *, reason: Any = None, answer: Any = None, **rest: Any) -> Score:
        return cls(math.nan, answer, **rest)


class Target(list[str]):
    """References of a sample."""


def scorer(metrics: Any, name: str | None = None, **metadata: Any) -> Callable[[Any], Any]:
    def registered(function: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            one = function(*arguments, **options)
            one.registered = name or function.__name__, metrics
            return one

        return made

    return registered


def modules() -> dict[str, ModuleType]:
    """The recorded package, for `sys.modules`."""
    made = {name: ModuleType(name) for name in ("inspect_ai", "inspect_ai.scorer", "inspect_ai.solver")}
    vars(made["inspect_ai.scorer"]).update(
        Score=Score, Scorer=object, Target=Target, mean=lambda: "mean", scorer=scorer, stderr=lambda: "stderr"
    )
    vars(made["inspect_ai.solver"]).update(TaskState=object)
    return made


def state(completion: str, *images: str) -> Any:
    """A `TaskState` after a generation: a question with images, and the output."""
    parts = [SimpleNamespace(type="image", image=image) for image in images]
    message = SimpleNamespace(content=[SimpleNamespace(type="text", text="What is it?"), *parts])
    system = SimpleNamespace(content="You write captions.")
    return SimpleNamespace(input=[system, message], output=SimpleNamespace(completion=completion))
