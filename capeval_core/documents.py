"""Tables for documents, generated from the metrics' classes, and the command that writes them there.

    python -m capeval_core.documents README.md

replaces what stands between `<!-- NAME -->` and `<!-- /NAME -->` by the table of that name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from capeval_core.options import describe_options
from capeval_core.registry import METRICS, metric_class
from capeval_core.weights.catalogue import WEIGHTS

Row = list[str]


def markdown(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def metrics_table() -> str:
    """Every metric: name, what it is, range, what it needs, default weights."""
    rows = []
    for name in METRICS:
        metric = metric_class(name)
        low, high = metric.range
        better = "higher" if metric.higher_is_better else "lower"
        address = metric.paper.rsplit(" ", 1)[-1]
        rows.append(
            [
                f"`{name}`",
                f"[{metric.title}]({address})",
                metric.summary,
                f"{low:g} to {high:.3g}, {better} is better",
                "yes" if metric.needs_references else "no",
                f"`{metric.default_weights.repository}`",
            ]
        )
    return markdown(["name", "metric", "what it is", "range", "references", "default weights"], rows)


def options_table(name: str) -> str:
    """Every option of a metric: type, default and meaning."""
    described = describe_options(metric_class(name).Options)
    rows = [[f"`{d.name}`", f"`{d.type}`", f"`{d.default!r}`", d.help] for d in described]
    return markdown(["option", "type", "default", "meaning"], rows)


def weights_table() -> str:
    """Every listed weights repository: what it is, where it comes from, and its licence."""
    rows = [
        [f"`{w.repository}`", w.title, w.checkpoint or "as it is", w.licence or "not stated"] for w in WEIGHTS
    ]
    return markdown(["repository", "weights", "original checkpoint", "licence"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "metrics": metrics_table,
    "weights": weights_table,
    "options": lambda: options_table("refpacs"),
}


def filled(text: str) -> str:
    """The document with every marked table as it should be."""
    for name, table in TABLES.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = block.sub(lambda m, table=table: f"{m[1]}{table()}\n{m[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
