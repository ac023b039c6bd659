"""Documents made from the classes: tables between markers, and pages of the site.

    python -m tools.documents    writes the tables of README, docs and lmms-eval's tasks, and `build/docs`
    mkdocs build --strict        makes the site of `build/docs`, with pages of each metric, commands and API

Two lines mark a table by its name, `<!-- metrics -->` and `<!-- /metrics -->`; in YAML with `# ` before them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from capeval_core.cli import COMMANDS, main
from capeval_core.commands.list import advice
from capeval_core.inputs.names import written_levels
from capeval_core.inputs.openers import forms_read
from capeval_core.judgements.sets import SETS
from capeval_core.judgements.tables import published
from capeval_core.metric_text import MetricDescription, licence_in_words
from capeval_core.publishing import cards, metric_card, weights_card
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from capeval_core.store import write_whole
from capeval_core.weights.catalogue import WEIGHTS
from tools.exactness import ON_CPU, ON_GPU, RESULTS, Line, exactness_rows, has_networks, legend, read_lines

Row = list[str]
CHECKOUT = Path(__file__).parents[1]
SITE = CHECKOUT / "build" / "docs"
"""The folder of the site's sources, which mkdocs reads."""
_FILLED = ("README.md", "docs/files.md", "docs/speed.md", "capeval_core/integrations/lmms_tasks/captions")
DOCUMENTS = [CHECKOUT / name for name in _FILLED]
"""The files of a checkout whose tables are committed; the site fills those of the other pages."""
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


def markdown(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = []
    for row in (header, ["---"] * len(header), *rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# tables between markers


def metrics_table() -> str:
    """Every metric: name, summary, what a caption is compared with, cost and agreement with people."""
    rows = []
    advice_of = {name: row for name, *row in advice()}
    variants = [(name, metric_class(name)) for name in METRICS]
    variants += [(f"{name} ({medium})", metric_class(name, medium)) for name, medium in MEDIA_VARIANTS]
    for name, metric in variants:
        about = MetricDescription(metric)
        compares = about.compares.replace("its ", "")
        row = [f"`{name}`", f"[{about.title}]({about.address})", about.summary, compares]
        rows.append([*row, *advice_of[name][2:4]])
    return markdown(["name", "metric", "what it is", "compares a caption with", "seconds", "τ_c"], rows)


def forms_table() -> str:
    """The forms of files that `capeval` reads."""
    return markdown(["form", "what is read"], [list(row) for row in forms_read()])


def columns_table() -> str:
    """The names of columns by what they hold; a later list counts only without a name of an earlier one."""
    rows = []
    for role in ("id", "caption", "references", "split", "left_out"):
        levels = map(", ".join, written_levels(role))
        rows.append([role.replace("_", " "), "; then ".join(levels)])
    return markdown(["role", "names"], rows)


def advice_table() -> str:
    """Advice on the choice of a metric, and its agreement with people as papers report it."""
    rows = [[f"`{name}`", *row] for name, *row in advice()]
    choice = markdown(
        ["metric", "with", "tokens read", "seconds", "for", "blind to"], [row[:4] + row[9:] for row in rows]
    )
    sets = ["Flickr8k-Expert τ_c", "Pascal-50S", "Flickr8k-CF τ_c", "Composite τ_c", "FOIL, 1 reference"]
    agreed = [[row[0], *row[4:9]] for row in rows if set(row[4:9]) != {"-"}]
    return f"{choice}\n\n{markdown(['metric', *sets], agreed)}"


def weights_table() -> str:
    """Every repository of the catalogue: its weights, original checkpoint and licence."""
    rows = []
    for w in WEIGHTS:
        name = f"[`{w.name}`](weights/{w.folder}.md)" if w.checkpoint else f"`{w.name}`"
        rows.append([name, w.title, w.checkpoint or "as it is", licence_in_words(w)])
    return markdown(["repository", "weights", "original checkpoint", "licence"], rows)


def verified_table() -> str:
    """Published numbers that `examples/verify_job.py` reproduced with real weights, where it was run."""
    path = RESULTS / "verified.json"
    if not path.is_file():
        job = "`uv run examples/verify_job.py --accept`"
        return f"Nothing yet. {job}, on a machine with a network, makes this table."
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for row in content["rows"]:
        numbers = [f"{row[name]:.4f}" if name in row else "-" for name in ("published", "found", "distance")]
        digest = f"`{row['sha256'][:12]}`" if row.get("sha256") else "-"
        rows.append([row["metric"], row["what"], *numbers, row["verdict"], digest])
    header = ["metric", "what", "published", "found", "distance", "verdict", "sha256 of the weights"]
    about = f"On {content['date']}, {content['device']}, capeval {content['capeval']}."
    return f"{about}\n\n{markdown(header, rows)}"


def seconds(run: Line) -> float:
    """The seconds of 1,000 captions in a stored run, to two digits."""
    cost = float(f"{1_000 * run['ours'] / run['captions']:.2g}")
    return int(cost) if cost >= 10 else cost


def speed_table() -> str:
    """Every stored run of `benchmarks.speed`: ours beside the plain way, and what a caption costs."""
    rows = []
    for run in read_lines(RESULTS / "speed.jsonl"):
        cost = f"{seconds(run):,}" if "captions" in run else ""
        share = f"{run['share']:.2f}" if "share" in run else ""
        rows.append([run["about"], f"{run['ratio']:.1f}", cost, share, run["commit"], run["date"]])
    header = ["", "times as fast", "seconds per 1,000 captions", "share of sgemm", "commit", "date"]
    return markdown(header, rows)


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
    "forms": forms_table,
    "columns": columns_table,
    "advice": advice_table,
    "weights": weights_table,
    "speed": speed_table,
    "verified": verified_table,
    "lmms_metrics": lmms_metrics,
}
"""Every table by its name in markers."""

_PART = re.compile(r"^((?:# )?<!-- (\w+) -->\n).*?^((?:# )?<!-- /\2 -->)$", re.MULTILINE | re.DOTALL)


def filled(text: str) -> str:
    """A document with its tables up to date.

    >>> filled("<!-- lmms_metrics -->\\n<!-- /lmms_metrics -->").splitlines()[1]
    '  - metric: pac_s'
    """
    return _PART.sub(lambda part: f"{part[1]}{TABLES[part[2]]()}\n{part[3]}", text)


# the page of a metric


def inputs_list(metric: str, media: str | None = None) -> str:
    """The arguments of `compute` in a metric's `evaluate` module, or in its configuration for a medium."""
    inputs = MetricDescription(metric_class(metric, media)).inputs
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in inputs.items())


def options_table(metric: str, media: str | None = None) -> str:
    """The options of a metric: type, default, meaning; for a variant those that the metric lacks."""
    described = metric_class(metric, media).Options.describe()
    options_of_images = metric_class(metric).Options.describe() if media else {}
    rows = []
    for name, option in described.items():
        if option != options_of_images.get(name):
            kind = f"`{option.type}`".replace(" | ", " or ")
            rows.append([f"`{name}`", kind, f"`{option.default!r}`", option.help])
    table = markdown(["option", "type", "default", "meaning"], rows)
    lacking = ", ".join(f"`{name}`" for name in options_of_images if name not in described)
    if not media:
        return table
    return f"Its own options; the others are those of images, without {lacking}.\n\n{table}"


def rows_table(metric: str, media: str | None = None) -> str:
    """Every column of a metric's rows: type and meaning."""
    columns = metric_class(metric, media).ROW
    rows = [[f"`{c.name}`", f"`{c.type}`", c.metadata[b"meaning"].decode()] for c in columns]
    return markdown(["column", "type", "meaning"], rows)


def exactness_table(metric: str, media: str | None = None) -> str:
    """The largest differences of a metric's scores, from the measurements in `benchmarks`."""
    on_cpu = read_lines(ON_CPU)
    on_gpu = read_lines(ON_GPU)
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
    """A metric's agreement with people, as papers report it; '' where none does."""
    title = metric_class(metric).title
    rows = []
    for name, columns in AGREEMENT.items():
        for column in columns:
            cell = published(name, title, column)
            if cell:
                rows.append([SETS[name].title, column, f"{cell.value:.1f}", cell.source])
    return markdown(["judged set", "measure", "value", "source"], rows) if rows else ""


def published_table(metric: str) -> str:
    """The mean scores of captions that papers report; what is the same for all stands below the table."""
    class_ = metric_class(metric)
    about = class_.published
    weights = class_.default_weights
    shared = [about["dataset"], f"`{weights.repository}`" if weights else "", about["source"]]
    rows = [[captions, f"{mean:g}"] for captions, mean in about["means"].items()]
    table = markdown(["captions", class_.title], rows)
    return f"{table}\n\nAll of them: {'; '.join(filter(None, [*shared, about.get('settings')]))}."


def metric_page(name: str) -> str:
    """The page of a metric: its card, and what is made from its class."""
    elsewhere = (
        "Agreement with people, options, rows, intervals, tests and exactness: see the documentation. "
    )
    parts = [metric_card(name).split("---\n", 2)[2].replace(elsewhere, "").strip()]
    variants = [medium for metric_name, medium in MEDIA_VARIANTS if metric_name == name]
    for media in [None, *variants]:
        of = f" for a {media}" if media else ""
        parts += [f"## Inputs{of}", inputs_list(name, media), f"## Options{of}", options_table(name, media)]
        parts += [f"## Columns of a row{of}", rows_table(name, media)]
        parts += [f"## Exactness{of}", exactness_table(name, media)]
    agreement = agreement_table(name)
    if agreement:
        meaning = (
            "Kendall's tau times 100, accuracies in %, of the published weights. Not reproduced here yet."
        )
        parts += ["## Agreement with people", meaning, agreement]
    if metric_class(name).published:
        parts += ["## Published means", published_table(name)]
    return "\n\n".join(parts)


# the site


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
    """The text of every page that is made, by its path in the site."""
    modules = ["capeval_core", *(f"capeval_core.{name}" for name in MODULES)]
    python = "\n\n".join(["# Python API", *(f"::: {name}" for name in modules)])
    texts = {"reference/python.md": python, "reference/commands.md": commands_page()}
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (CHECKOUT / f"{name}.md").read_text(encoding="utf-8")
        texts[f"{name.lower()}.md"] = text.replace("](docs/", "](")
    for name in METRICS:
        texts[f"metrics/{name}.md"] = metric_page(name)
    for name in cards():
        texts[f"weights/{name}.md"] = weights_card(name).split("---\n", 2)[2]
    return texts


def site_text(text: str) -> str:
    """A page as the site has it: tables are filled in, links lead to pages."""
    text = filled(text).replace("](../CHANGELOG.md)", "](changelog.md)")
    text = text.replace("](../benchmarks/results/", "](results/")
    return re.sub(r"\]\(\.\./metrics/(\w+)/README\.md", r"](metrics/\1.md", text)


def write_site() -> None:
    """Write the files that mkdocs reads: those of `docs/`, measurements, and the pages that are made."""
    shutil.rmtree(SITE, ignore_errors=True)  # else a page that is gone would stay in the site
    shutil.copytree(CHECKOUT / "docs", SITE)
    shutil.copytree(RESULTS, SITE / "results")
    for name, text in pages().items():
        path = SITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in SITE.rglob("*.md"):
        path.write_text(site_text(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for path in DOCUMENTS:
        write_whole(path, filled(path.read_text(encoding="utf-8")))
    write_site()
