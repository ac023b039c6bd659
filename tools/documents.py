"""Generated parts of documents: tables made from the classes.

    python -m tools.documents                 all documents of the checkout, and setup.cfg
    python -m tools.documents README.md ...   only these documents

A document marks a generated part by two lines, `<!-- facts pacs -->` and `<!-- /facts pacs -->`: the
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
from capeval_core.project import address
from capeval_core.registry import METRICS, metric_class, variant_classes
from capeval_core.weights.catalogue import CONVERTED_AS, NAMESPACE, WEIGHTS, WeightsEntry

Row = list[str]
CHECKOUT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "metrics/*/README.md",
    "hub_cards/*.md",
    "setup.cfg",
    "capeval_core/integrations/lmms_tasks/captions",
)
"""The documents of a checkout."""


def markdown(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


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
    "weights": weights_table,
    "origin": origin_table,
    "convert": convert_command,
    "urls": package_urls,
    "lmms_metrics": lmms_metrics,
    "bibtex": bibtex,
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
