"""Generated parts of documents: tables made from the classes, and paragraphs that documents share.

    python -m tools.documents                 all documents of the checkout, and setup.cfg
    python -m tools.documents README.md ...   only these documents

A document marks a generated part by two lines, `<!-- options pacs -->` and `<!-- /options pacs -->`: the
name of a table and its arguments. The lines between them are replaced. In setup.cfg and in YAML `# ` stands
before them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from capeval_core.description import describe_metric, licence_in_words
from capeval_core.errors import Problems, did_you_mean
from capeval_core.kept import write_whole
from capeval_core.metric import CaptionMetric
from capeval_core.options import describe_options
from capeval_core.project import address
from capeval_core.registry import METRICS, metric_class, variant_classes
from capeval_core.weights.catalogue import CONVERTED_AS, NAMESPACE, WEIGHTS, WeightsEntry
from tools.exactness import ON_CPU, ON_GPU, exactness_rows, has_networks, legend, read_lines

Row = list[str]
CHECKOUT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "metrics/*/README.md",
    "hub_cards/*.md",
    "docs/*.md",
    "setup.cfg",
    "capeval_core/integrations/lmms_tasks/captions",
)
"""The documents of a checkout."""
PARTS = CHECKOUT / "docs" / "parts"
"""Paragraphs that documents share, one per file."""


def markdown(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def folded(summary: str, content: str) -> str:
    """Markdown that a reader opens."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def metrics_table() -> str:
    """Every metric: name, summary, range, what a caption is compared with, default weights."""
    rows = []
    classes = {f"`{name}`": metric_class(name) for name in METRICS}
    classes |= {
        f'`{name}`, `media="{medium}"`': class_ for (name, medium), class_ in variant_classes().items()
    }
    for name, metric in classes.items():
        described = describe_metric(metric)
        rows.append(
            [
                name,
                f"[{described.title}]({described.address})",
                described.summary,
                f"{described.range}, {described.better}",
                described.compares,
                "none" if metric.default_weights is None else f"`{described.weights}`",
            ]
        )
    return markdown(
        ["name", "metric", "what it is", "range", "compares a caption with", "default weights"], rows
    )


def facts_table(metric: str, media: str | None = None) -> str:
    """The facts about one metric, or its variant for another medium."""
    class_ = metric_class(metric, media)
    described = describe_metric(class_)
    rows = [
        ["name", f"`{metric}`{_loaded_by(class_)}; in a result of `evaluate` the key is `{class_.key}`"],
        ["range", f"{described.range}, {described.better}"],
        [
            "compares a caption with",
            described.compares,
        ],
        [
            "default weights",
            "none"
            if class_.default_weights is None
            else f"`{described.weights}`, licence {described.licence}",
        ],
        ["paper", f"[{described.citation}]({described.address})"],
        *([["no comparisons", described.relative]] if described.relative else []),
    ]
    return markdown([described.title, described.summary], rows)


def _loaded_by(metric: type[CaptionMetric]) -> str:
    """How a variant is chosen, '' for a metric that its name is enough for."""
    if metric.variant is None:
        return ""
    return f', `load("{metric.name}", media="{metric.variant}")`, configuration `{metric.variant}`'


def inputs_list(metric: str, media: str | None = None) -> str:
    """The arguments of `compute` in a metric's `evaluate` module, or in its configuration for a medium."""
    inputs = describe_metric(metric_class(metric, media)).inputs
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in inputs.items())


def options_table(metric: str, media: str | None = None) -> str:
    """The options of a metric, folded: type, default, meaning; for a variant those that the metric lacks."""
    described = describe_options(metric_class(metric, media).Options)
    summary = f"The {len(described)} options"
    if media is not None:
        usual = describe_options(metric_class(metric).Options)
        lost = [f"<code>{d.name}</code>" for d in usual if d.name not in {other.name for other in described}]
        described = [option for option in described if option not in usual]
        without = " and ".join(filter(None, [", ".join(lost[:-1]), lost[-1]]))
        summary = f"Its own options; the others are those above, without {without}"
    rows = [[f"`{d.name}`", f"`{d.type}`", f"`{d.default!r}`", d.help] for d in described]
    return folded(summary, markdown(["option", "type", "default", "meaning"], rows))


def rows_table(metric: str, media: str | None = None) -> str:
    """Every column of a metric's rows, folded: type and meaning."""
    columns = metric_class(metric, media).ROW
    rows = [[f"`{c.name}`", f"`{c.type}`", c.metadata[b"meaning"].decode()] for c in columns]
    return folded(f"The {len(rows)} columns of a row", markdown(["column", "type", "meaning"], rows))


def published_table(metric: str) -> str:
    """The values that papers report for a metric; what is the same for all stands below the table."""
    class_ = metric_class(metric)
    values = class_.published
    about = {
        "images": [p.dataset for p in values],
        "weights": [f"`{p.weights}`" for p in values],
        "source": [p.source for p in values],
        "settings": [p.settings or "default" for p in values],
    }
    differing = {name: cells for name, cells in about.items() if len(set(cells)) > 1}
    shared = [cells[0] for name, cells in about.items() if name not in differing and cells[0] != "default"]
    rows = [[p.captions, f"{p.value:g}"] for p in values]
    rows = [[*row, *(cells[i] for cells in differing.values())] for i, row in enumerate(rows)]
    table = markdown(["captions", class_.title, *differing], rows)
    return "\n\n".join([table, *([f"All of them: {'; '.join(shared)}."] if shared else [])])


def exactness_table(metric: str, media: str | None = None) -> str:
    """How exact a metric is, folded, from the measurements in `benchmarks`."""
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
    meaning = legend(subject, on_cpu, describe_metric(metric_class(metric, media)).range)
    count = f"{len(rows)} comparison{'s' if len(rows) > 1 else ''}"
    return folded(f"How far scores move: {count}", f"{meaning}\n\n{table}\n\n{source}{gpu}.")


def weights_table() -> str:
    """Every repository of the catalogue: its weights, original checkpoint and licence."""
    rows = [[f"`{w.repository}`", w.title, w.checkpoint or "as it is", licence_in_words(w)] for w in WEIGHTS]
    return markdown(["repository", "weights", "original checkpoint", "licence"], rows)


def origin_table(folder: str) -> str:
    """The origin of weights that this project converts."""
    entry = _own_weights(folder)
    rows = [
        ["original release", entry.original],
        ["file", f"`{entry.checkpoint}`"],
        ["licence", licence_in_words(entry)],
        *[[name, f"`{value}`"] for name, value in entry.settings.items()],
    ]
    return markdown([entry.title, ""], rows)


def convert_command(metric: str, folder: str) -> str:
    """The command that converts these weights, as a block of code."""
    name = metric if metric in CONVERTED_AS.values() else metric_class(metric).name
    return f"```sh\n{_own_weights(folder).convert_command(name)}\n```"


def project_line() -> str:
    """Where the project is, '' while it has no address."""
    return f"Code, documentation and issues of capeval: <{address()}>" if address() else ""


def footguns_line() -> str:
    """Where the ways to go wrong are collected."""
    found = address("docs/footguns.md")
    where = f"[here]({found})" if found else "in the project's `docs/footguns.md`"
    return f"Ways to go wrong, each with its fix, are collected {where}."


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


def bibtex(metric: str) -> str:
    """The BibTeX entry of a metric's paper, as a block of code."""
    return f"```bibtex\n{describe_metric(metric_class(metric)).bibtex}\n```"


def part(name: str) -> str:
    """Paragraphs that several documents share."""
    parts = {path.stem: path for path in sorted(PARTS.glob("*.md"))}
    if name not in parts:
        raise ValueError(f"{PARTS} holds no part {name!r}{did_you_mean(name, parts)}")
    return parts[name].read_text(encoding="utf-8").strip()


def own_weights() -> dict[str, WeightsEntry]:
    """Listed weights that are converted from an original and published by this project, by name."""
    return {entry.folder: entry for entry in WEIGHTS if entry.checkpoint}


def _own_weights(folder: str) -> WeightsEntry:
    weights = own_weights()
    if folder not in weights:
        raise ValueError(f"no weights of {NAMESPACE} are named {folder!r}{did_you_mean(folder, weights)}")
    return weights[folder]


TABLES: dict[str, Callable[..., str]] = {
    "metrics": metrics_table,
    "facts": facts_table,
    "inputs": inputs_list,
    "options": options_table,
    "rows": rows_table,
    "published": published_table,
    "exactness": exactness_table,
    "weights": weights_table,
    "origin": origin_table,
    "convert": convert_command,
    "project": project_line,
    "footguns": footguns_line,
    "urls": package_urls,
    "lmms_metrics": lmms_metrics,
    "bibtex": bibtex,
    "part": part,
}
"""Every table by its name in markers, where its arguments follow."""

_MARKER = re.compile(r"^(?:# )?<!-- (?P<end>/?)(?P<call>[^\s/][^\n]*?) -->$", re.MULTILINE)


def filled(text: str, name: str = "document") -> str:
    """The document with its generated parts up to date.

    Args:
        text: of a Markdown document. name: of its file, for messages.

    Raises:
        ValueError: markers without a partner, or of unknown tables, metrics or weights, all of them at once.

    >>> print(filled("<!-- convert pacs pacs-clip-vit-b-32 -->\\n<!-- /convert pacs pacs-clip-vit-b-32 -->"))
    <!-- convert pacs pacs-clip-vit-b-32 -->
    ```sh
    capeval convert pacs clip_ViT-B-32.pth --activation quick_gelu --out pacs-clip-vit-b-32
    ```
    <!-- /convert pacs pacs-clip-vit-b-32 -->
    """
    problems = Problems()

    def complain(marker: re.Match[str], message: object) -> None:
        problems.add(f"{name}:{text.count(chr(10), 0, marker.start()) + 1}: {message}")

    written: list[str] = []
    position = 0
    opening: re.Match[str] | None = None
    for marker in _MARKER.finditer(text):
        if not marker["end"]:
            if opening:
                complain(opening, f"{opening[0]} has no end before {marker[0]}")
            opening = marker
            continue
        if opening is None or opening["call"] != marker["call"]:
            complain(marker, f"{marker[0]} has no beginning right before it")
        else:
            try:
                written += [text[position : opening.end()], "\n", _table(opening["call"]), "\n"]
            except ValueError as error:
                complain(opening, error)
            position = marker.start()
        opening = None
    if opening:
        complain(opening, f"{opening[0]} has no end")
    problems.raise_if_any()
    return "".join([*written, text[position:]])


def _table(call: str) -> str:
    name, *arguments = call.split()
    if name not in TABLES:
        raise ValueError(
            f"there is no table {name!r}{did_you_mean(name, TABLES)} (tables: {', '.join(TABLES)})"
        )
    parameters = inspect.signature(TABLES[name]).parameters.values()
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not len(needed) <= len(arguments) <= len(parameters):
        words = [p.name.upper() if p in needed else f"[{p.name.upper()}]" for p in parameters]
        expected = " ".join([name, *words])
        raise ValueError(f"<!-- {call} -->: expected <!-- {expected} -->")
    return TABLES[name](*arguments)


def documents() -> list[Path]:
    """Every document of the checkout."""
    return [path for pattern in DOCUMENTS for path in sorted(CHECKOUT.glob(pattern))]


def main(arguments: list[str]) -> None:
    """Write the generated parts of the named documents, or of all."""
    for path in map(Path, arguments) if arguments else documents():
        text = path.read_text(encoding="utf-8")
        write_whole(path, filled(text, str(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
