"""The stub of `capeval_core`: `load` overloaded per metric, generated from the options of every metric."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from types import NoneType
from typing import Any

from capeval_core.metric import CaptionMetric
from capeval_core.options import Settings
from capeval_core.registry import METRICS, metric_class, variant_classes

WIDTH = 110
_HEAD = """# Generated from the options of every metric by `python -m tools.documents`: do not edit.
# mypy: disable-error-code="overload-overlap"
# A call of a known metric that fits none of its overloads returns a type that nothing accepts, so that type
# checkers refuse its use; every other name is a metric of another package, with options of its own.
"""
_WRONG = "class UnknownOptionOrWrongType(Generic[_T]): ...\n"
_TAIL = """@overload
@deprecated("the metric has no such option, or the value is of the wrong type")
def load(name: _Known, **options: Any) -> UnknownOptionOrWrongType[_T]: ...
@overload
def load(name: str, **options: Any) -> CaptionMetric: ...
"""


def load_stub() -> str:
    """The text of `capeval_core/__init__.pyi`."""
    metrics = {name: metric_class(name) for name in METRICS}
    variants = variant_classes()
    imports = _Imports()
    imports.add("typing", "Any", "Generic", "Literal", "TypeAlias", "TypedDict", "TypeVar", "overload")
    imports.add("typing_extensions", "Unpack", "deprecated")
    imports.add(CaptionMetric.__module__, CaptionMetric.__name__)
    imports.add("capeval_core._version", "__version__ as __version__")
    imports.add("capeval_core.integrations.evaluate_module", "module as module")
    imports.add("capeval_core.registry", "list_metrics as list_metrics", "module_path as module_path")
    imports.add("capeval_core.result", "Result as Result")
    for metric in [*metrics.values(), *variants.values()]:
        imports.add(metric.__module__, metric.__name__)
    classes = {
        base: None
        for metric in [*metrics.values(), *variants.values()]
        for base in reversed(metric.Options.__mro__)
        if issubclass(base, Settings) and base is not Settings
    }
    options = [_typed_dict(class_, imports) for class_ in classes]
    names = "_Known: TypeAlias = Literal[\n" + "".join(f'    "{name}",\n' for name in metrics) + "]\n"
    overloads = [
        _overload(name, f'media: Literal["{medium}"]', metric) for (name, medium), metric in variants.items()
    ]
    for name, metric in metrics.items():
        media = "".join(f'"{medium}", ' for medium in metric.media)
        overloads.append(_overload(name, f"media: Literal[{media}None] = None", metric))
    exported = '__all__ = ["Result", "__version__", "list_metrics", "load", "module", "module_path"]\n'
    return "\n".join(
        [
            _HEAD + "\n" + str(imports),
            exported + '\n_T = TypeVar("_T")\n',
            _joined([*options, _WRONG]),
            names,
            "".join(overloads) + _TAIL,
        ]
    )


def _overload(name: str, media: str, metric: type[CaptionMetric]) -> str:
    arguments = [f'name: Literal["{name}"]', "*", media, f"**options: Unpack[_{metric.Options.__name__}]"]
    returned = f"-> {metric.__name__}: ..."
    on_one_line = f"def load({', '.join(arguments)}) {returned}"
    if len(on_one_line) <= WIDTH:
        return f"@overload\n{on_one_line}\n"
    line = f"    {', '.join(arguments)}\n"
    if len(line) > WIDTH + 1:
        line = "".join(f"    {argument},\n" for argument in arguments)
    return f"@overload\ndef load(\n{line}) {returned}\n"


def _joined(classes: Sequence[str]) -> str:
    """Classes with a line between them, but for those without a body that follow each other."""
    text = classes[0]
    for before, class_ in pairwise(classes):
        text += class_ if before.endswith(": ...\n") and class_.endswith(": ...\n") else "\n" + class_
    return text


class _Imports:
    """Import statements in the formatter's order."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def add(self, module: str, *names: str) -> None:
        self._names.setdefault(module, set()).update(names)

    def __str__(self) -> str:
        sections: list[list[str]] = [[], [], []]
        for module in sorted(self._names):
            section = 2 if module.startswith("capeval_core") else 1 if module == "typing_extensions" else 0
            names = sorted(self._names[module], key=lambda name: (not name[0].isupper(), name.lower()))
            plain = [", ".join(name for name in names if " as " not in name)]
            again = [name for name in names if " as " in name]  # each has a line of its own
            sections[section] += [f"from {module} import {name}\n" for name in [*again, *plain] if name]
        return "\n".join("".join(section) for section in sections)


def _typed_dict(class_: type[Settings], imports: _Imports) -> str:
    """The TypedDict of a class of options, whose bases are those of the class."""
    bases = [base for base in class_.__bases__ if base is not Settings]
    inherited = {name: hint for base in bases for name, hint in typing.get_type_hints(base).items()}
    hints = typing.get_type_hints(class_)
    parents = ", ".join(f"_{base.__name__}" for base in bases) or "TypedDict"
    head, body = f"class _{class_.__name__}({parents}, total=False):", list[str]()
    for spec in fields(class_):
        if spec.name not in inherited:
            help = textwrap.wrap(f'"""{spec.metadata["help"]}"""', WIDTH - 4)
            body += [f"{spec.name}: {_written(hints[spec.name], imports)}", *help]
        elif hints[spec.name] != inherited[spec.name]:
            raise TypeError(f"{class_.__name__}.{spec.name} has another type than in {parents}")
    if not body:
        return f"{head} ...\n"
    return f"{head}\n{textwrap.indent(chr(10).join(body), '    ')}\n"


def _written(hint: Any, imports: _Imports) -> str:
    """A type as source code."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is NoneType:
        return "None"
    if hint is Any:
        return "Any"
    if origin is typing.Literal:
        values = [f'"{value}"' if isinstance(value, str) else repr(value) for value in arguments]
        line = f"Literal[{', '.join(values)}]"
        if len(line) <= WIDTH // 2:
            return line
        return "Literal[\n" + "".join(f"    {value},\n" for value in values) + "]"
    if origin is None:
        if hint.__module__ != "builtins":
            imports.add(hint.__module__, hint.__name__)
        return str(hint.__name__)
    written = [_written(argument, imports) for argument in arguments]
    if isinstance(origin, type) and origin.__name__ != "UnionType":
        return f"{_written(origin, imports)}[{', '.join(written)}]"
    return " | ".join(written)
