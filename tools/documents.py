"""Generated parts of documents: tables made from the classes.

    python -m tools.documents                 all documents of the checkout, and setup.cfg
    python -m tools.documents README.md ...   only these documents

A document marks a generated part by two lines, `<!-- metrics -->` and `<!-- /metrics -->`, with the name of a
table. The lines between them are replaced. In setup.cfg and in YAML `# ` stands
before them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from capeval_core.commands.list import advice
from capeval_core.description import MetricDescription, licence_in_words
from capeval_core.kept import write_whole
from capeval_core.project import address
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from capeval_core.weights.catalogue import WEIGHTS
from tools.exactness import BENCHMARKS, Line, read_lines

Row = list[str]
CHECKOUT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/speed.md",
    "setup.cfg",
    "capeval_core/integrations/lmms_tasks/captions",
)
"""The documents of a checkout."""


def markdown(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def metrics_table() -> str:
    """Every metric: name, summary, what a caption is compared with, cost and agreement with people."""
    rows, known = [], {name: row for name, *row in advice()}
    classes = {name: metric_class(name) for name in METRICS}
    classes |= {f"{name} ({medium})": metric_class(name, medium) for name, medium in MEDIA_VARIANTS}
    for name, metric in classes.items():
        described = MetricDescription(metric)
        rows.append(
            [
                f"`{name}`",
                f"[{described.title}]({described.address})",
                described.summary,
                described.compares.replace("its ", ""),
                *known[name][2:4],
            ]
        )
    return markdown(["name", "metric", "what it is", "compares a caption with", "seconds", "τ_c"], rows)


def advice_table() -> str:
    """What to choose a metric by, and its agreement with people as papers report it."""
    rows = [[f"`{name}`", *row] for name, *row in advice()]
    choice = markdown(
        ["metric", "with", "tokens read", "seconds", "for", "blind to"], [row[:4] + row[9:] for row in rows]
    )
    sets = ["Flickr8k-Expert τ_c", "Pascal-50S", "Flickr8k-CF τ_c", "Composite τ_c", "FOIL, 1 reference"]
    agreed = [[row[0], *row[4:9]] for row in rows if set(row[4:9]) != {"-"}]
    return f"{choice}\n\n{markdown(['metric', *sets], agreed)}"


def weights_table() -> str:
    """Every repository of the catalogue: its weights, original checkpoint and licence."""
    pages = {w.folder: f"weights/{w.folder}.md" for w in WEIGHTS if w.checkpoint}
    rows = [
        [
            f"[`{w.repository}`]({pages[w.folder]})" if w.folder in pages else f"`{w.repository}`",
            w.title,
            w.checkpoint or "as it is",
            licence_in_words(w),
        ]
        for w in WEIGHTS
    ]
    return markdown(["repository", "weights", "original checkpoint", "licence"], rows)


def seconds(run: Line) -> float:
    """What 1,000 captions cost in a stored run, to two digits."""
    cost = float(f"{1_000 * run['ours'] / run['captions']:.2g}")
    return int(cost) if cost >= 10 else cost


def speed_table() -> str:
    """Every stored run of `benchmarks.speed`: ours beside the plain way, and what a caption costs."""
    rows = []
    for run in read_lines(BENCHMARKS / "speed.jsonl"):
        cost = f"{seconds(run):,}" if "captions" in run else ""
        rows.append([run["about"], f"{run['ratio']:.1f}", cost, run["commit"], run["date"]])
    return markdown(["", "times as fast", "seconds per 1,000 captions", "commit", "date"], rows)


def package_urls() -> str:
    """The addresses in the package's metadata, '' while there are none."""
    if not address():
        return ""
    named = {"Documentation": "README.md", "Changelog": "CHANGELOG.md"}
    lines = [f"    {name} = {address(path)}" for name, path in named.items()]
    return "\n".join([f"url = {address()}", "project_urls =", *lines])


def lmms_metrics() -> str:
    """The metrics that lmms-eval's tasks report where `CAPEVAL_METRICS` names them."""
    return "\n".join(
        f"  - metric: {metric.key}\n    aggregation: !function capeval_core.integrations.lmms_eval.combine\n"
        f"    higher_is_better: {str(metric.higher_is_better).lower()}"
        for metric in map(metric_class, METRICS)
        if metric.media and not metric.relative
    )


TABLES: dict[str, Callable[[], str]] = {
    "metrics": metrics_table,
    "advice": advice_table,
    "weights": weights_table,
    "speed": speed_table,
    "urls": package_urls,
    "lmms_metrics": lmms_metrics,
}
"""Every table by its name in markers."""

_PART = re.compile(r"^((?:# )?<!-- (\w+) -->\n).*?^((?:# )?<!-- /\2 -->)$", re.MULTILINE | re.DOTALL)


def filled(text: str) -> str:
    """A document with its generated parts up to date.

    >>> filled("<!-- lmms_metrics -->\\n<!-- /lmms_metrics -->").splitlines()[1]
    '  - metric: pac_s'
    """
    return _PART.sub(lambda part: f"{part[1]}{TABLES[part[2]]()}\n{part[3]}", text)


def documents() -> list[Path]:
    """Every document of the checkout."""
    return [path for pattern in DOCUMENTS for path in sorted(CHECKOUT.glob(pattern))]


def main(arguments: list[str]) -> None:
    """Write the generated parts of the named documents, or of all."""
    for path in map(Path, arguments) if arguments else documents():
        text = path.read_text(encoding="utf-8")
        write_whole(path, filled(text))


if __name__ == "__main__":
    main(sys.argv[1:])
