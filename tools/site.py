"""The site: pages of `docs/`, and those that are made from the code while mkdocs builds it.

    mkdocs build --strict

A metric's page has its card, inputs, options, columns of rows, published values and exactness; the reference
has the public modules and the help of every command.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any
from unittest import mock

from capeval_core.cli import COMMANDS, main
from capeval_core.description import MetricDescription
from capeval_core.judgements.sets import SETS
from capeval_core.judgements.tables import published
from capeval_core.publishing import cards, metric_card, weights_card
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from tools.documents import CHECKOUT, filled, markdown
from tools.exactness import ON_CPU, ON_GPU, exactness_rows, has_networks, legend, read_lines

MODULES = (
    "cache", "demo", "errors", "integrations", "integrations.ray", "integrations.shards",
    "judgements.correlation", "metric", "options", "registry", "replay.bundle",
    "replay.why", "result", "rows", "scores.pac", "scores.umic",
    "scores.video", "scores.vilbert", "statistics",
)  # fmt: skip
"""The public modules: what the documents name, and what a metric of another package builds on."""
AGREEMENT = {
    "flickr8k_expert": ["tau_b", "tau_c"],
    "flickr8k_cf": ["tau_b", "tau_c"],
    "composite": ["tau_b", "tau_c"],
    "pascal50s": ["mean"],
    "foil": ["1 reference", "4 references"],
}
"""The judged sets, and columns of their tables, on a metric's page."""


def inputs_list(metric: str, media: str | None = None) -> str:
    """The arguments of `compute` in a metric's `evaluate` module, or in its configuration for a medium."""
    inputs = MetricDescription(metric_class(metric, media)).inputs
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in inputs.items())


def options_table(metric: str, media: str | None = None) -> str:
    """The options of a metric: type, default, meaning; for a variant those that the metric lacks."""
    described = metric_class(metric, media).Options.describe()
    summary = ""
    if media is not None:
        usual = metric_class(metric).Options.describe()
        lost = [f"`{name}`" for name in usual if name not in described]
        described = {name: option for name, option in described.items() if option != usual.get(name)}
        without = " and ".join(filter(None, [", ".join(lost[:-1]), lost[-1]]))
        summary = f"Its own options; the others are those of images, without {without}.\n\n"
    rows = [
        [f"`{name}`", f"`{d.type}`".replace(" | ", " or "), f"`{d.default!r}`", d.help]
        for name, d in described.items()
    ]
    return summary + markdown(["option", "type", "default", "meaning"], rows)


def rows_table(metric: str, media: str | None = None) -> str:
    """Every column of a metric's rows: type and meaning."""
    columns = metric_class(metric, media).ROW
    rows = [[f"`{c.name}`", f"`{c.type}`", c.metadata[b"meaning"].decode()] for c in columns]
    return markdown(["column", "type", "meaning"], rows)


def published_table(metric: str) -> str:
    """The values that papers report for a metric; what is the same for all stands below the table."""
    class_ = metric_class(metric)
    about, weights = class_.published, class_.default_weights
    shared = [about["dataset"], f"`{weights.repository}`" if weights else "", about["source"]]
    rows = [[captions, f"{mean:g}"] for captions, mean in about["means"].items()]
    table = markdown(["captions", class_.title], rows)
    return f"{table}\n\nAll of them: {'; '.join(filter(None, [*shared, about.get('settings')]))}."


def exactness_table(metric: str, media: str | None = None) -> str:
    """How exact a metric is, from the measurements in `benchmarks`."""
    on_cpu, on_gpu = read_lines(ON_CPU), read_lines(ON_GPU)
    subject = f"{metric} {media}" if media else metric
    rows = exactness_rows(subject, on_cpu, on_gpu)
    table = markdown(["compared", "weights", "largest difference", "Kendall's tau-b"], rows)
    about = next(line for line in on_cpu if "date" in line)
    source = (
        f"Measured on {about['date']} with torch {about['torch']}, on a CPU where nothing else is stated, "
        "by `python -m benchmarks.exactness` (48 captions)"
    )
    gpu = "; `python -m benchmarks.cuda` measures it on a GPU" if has_networks(subject, on_cpu) else ""
    meaning = legend(subject, on_cpu, MetricDescription(metric_class(metric, media)).range)
    return f"{meaning}\n\n{table}\n\n{source}{gpu}.\n"


def agreement_table(metric: str) -> str:
    """How well a metric agrees with people, as papers report it; '' where none does."""
    rows = []
    for name, columns in AGREEMENT.items():
        for column in columns:
            if cell := published(name, metric_class(metric).title, column):
                rows.append([SETS[name].title, column, f"{cell.value:.1f}", cell.source])
    return markdown(["judged set", "measure", "value", "source"], rows) if rows else ""


def metric_page(name: str) -> str:
    """The page of a metric: its card, and what is made from its class."""
    elsewhere = (
        "Agreement with people, options, rows, intervals, tests and exactness: see the documentation. "
    )
    parts = [metric_card(name).split("---\n", 2)[2].replace(elsewhere, "").strip()]
    for media in [None, *(medium for other, medium in MEDIA_VARIANTS if other == name)]:
        of = f" for a {media}" if media else ""
        parts += [f"## Inputs{of}", inputs_list(name, media), f"## Options{of}", options_table(name, media)]
        parts += [f"## Columns of a row{of}", rows_table(name, media)]
        parts += [f"## Exactness{of}", exactness_table(name, media)]
    if agreement := agreement_table(name):
        meaning = (
            "Kendall's tau times 100, accuracies in %, of the published weights. Not reproduced here yet."
        )
        parts += ["## Agreement with people", meaning, agreement]
    if metric_class(name).published:
        parts += ["## Published means", published_table(name)]
    return "\n\n".join(parts)


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands", "What `--help` says of each."]
    for name in COMMANDS:
        written = io.StringIO()
        columns = mock.patch.dict(os.environ, COLUMNS="100")
        with columns, contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
            main([name, "--help"])
        parts += [f"## capeval {name}", f"```text\n{written.getvalue().rstrip()}\n```"]
    return "\n\n".join(parts)


def pages() -> dict[str, str]:
    """The text of every page that is made, by its path in `docs/`."""
    modules = ["capeval_core", *(f"capeval_core.{name}" for name in MODULES)]
    python = "\n\n".join(["# Python API", *(f"::: {name}" for name in modules)])
    made = {"reference/python.md": python, "reference/commands.md": commands_page()}
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (CHECKOUT / f"{name}.md").read_text(encoding="utf-8")
        made[f"{name.lower()}.md"] = text.replace("](docs/", "](")
    made |= {f"metrics/{name}.md": metric_page(name) for name in METRICS}
    made |= {f"weights/{name}.md": weights_card(name).split("---\n", 2)[2] for name in cards()}
    return made


def on_files(files: Any, config: Any) -> Any:
    """mkdocs asks this for the files of the site."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """mkdocs asks this for a page's text: generated parts are filled in, links lead to pages."""
    text = filled(text).replace("](../CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"\]\(\.\./metrics/(\w+)/README\.md", r"](metrics/\1.md", text)
