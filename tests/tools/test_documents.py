"""Documents agree with the code: generated parts are up to date, links lead somewhere, cards are whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.exactness import ORIGINALS
from capeval_core import __version__
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from tools.documents import (
    CHECKOUT,
    DOCUMENTS,
    WEIGHTS,
    cards,
    exactness_table,
    filled,
    metric_card,
    seconds,
    weights_card,
)
from tools.exactness import NOT_YET, ON_CPU, RESULTS, exactness_rows, of_subject, read_lines

SECTIONS = ["How to use", "Limitations and bias", "Licence", "Citation"]
PATTERNS = ("CONTRIBUTING.md", "docs/*.md", "metrics/*/README.md", "hub_cards/*.md")
CARDS = {name: metric_card(name) for name in METRICS}
PAGES = [
    *DOCUMENTS,
    *(path for pattern in PATTERNS for path in sorted(CHECKOUT.glob(pattern)) if path not in DOCUMENTS),
]
LINES = read_lines(ON_CPU)


def named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def front_matter(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n", 2)[1]))


def anchors(path: Path) -> set[str]:
    """Names of the headings of a Markdown page, as GitHub and the Hub make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_generated_parts_are_current_and_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path not in DOCUMENTS or filled(text) == text, "run: python -m tools.documents"
    card = path.parents[1].name == "metrics" or path.parent.name == "hub_cards"
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        assert not card, target  # a card is read on the Hub, where the checkout's other files are not
        linked = path.parent / target if target else path
        made = re.fullmatch(r"(metrics|reference)/\w+\.md|changelog.md", target)  # by tools/documents.py
        assert made or (linked.exists() and (not anchor or anchor in anchors(linked))), f"{target}#{anchor}"


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_whole_card(name: str) -> None:
    text, metric = CARDS[name], metric_class(name)
    first, space = text.partition("## Limitations and bias")[0], front_matter(text)
    for part in (
        "| range |",
        "**Do not trust it** ",
        f'evaluate.load(capeval_core.module_path("{name}")',
        ".compute(",
    ):
        assert part in first
    assert len(text.splitlines()) <= 110
    assert [part for part in re.findall(r"^## (.*)$", text, re.MULTILINE) if "papers" not in part] == SECTIONS
    assert space["title"] == metric.title and {"evaluate", "metric"} <= set(space["tags"])
    assert len(str(space["short_description"])) <= 60  # what the Hub takes


def test_every_repository_of_weights_has_a_card_and_every_card_a_repository() -> None:
    tiny = {f"{metric_class(name).tiny}-tiny" for name in METRICS if metric_class(name).tiny}
    own = {entry.folder: entry for entry in WEIGHTS if entry.checkpoint}
    assert set(cards()) == own.keys() | tiny
    for name, entry in own.items():
        text = weights_card(name)
        card = front_matter(text)
        licence = card["license_name" if card["license"] == "other" else "license"]
        assert licence == (entry.licence or "unknown").lower().replace(" ", "-")
        assert re.search(rf"\n```sh\ncapeval fetch {name}.*\n```\n", text) and "\nCite [" in text


COSTS = {"pacs": ("pacs", "clips"), "refpacs": ("refpacs", "refclips")}


def test_costs_are_those_of_stored_runs() -> None:
    for run in filter(lambda run: "captions" in run, read_lines(RESULTS / "speed.jsonl")):
        for name in COSTS.get(run["name"], (run["name"],)):
            assert metric_class(name).advice["seconds"] == seconds(run)


def test_changelog_names_this_version() -> None:
    assert f"## {__version__}" in (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", [*METRICS, *(f"{name} {medium}" for name, medium in MEDIA_VARIANTS)])
def test_every_metric_was_measured_and_stays_near(subject: str) -> None:
    name, _, medium = subject.partition(" ")
    own = of_subject(LINES, subject)
    assert exactness_table(name, medium or None)
    network = {"batches", "repeats", "bfloat16", "float16"} if metric_class(name).default_weights else set()
    assert {line["comparison"] for line in own} - {"original"} == {"order"} | network
    assert all(line.get("met") is not False for line in own)
    originals = [line for line in own if line["comparison"] == "original"]
    assert all(line["largest"] <= line["tolerance"] for line in originals)
    assert {line["case"] for line in originals} == {
        case for case, of in ORIGINALS.items() if name in of
    } or medium
    assert (exactness_rows(name, LINES, [])[-1][2] == NOT_YET) == bool(network)  # on a GPU


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page, without code, tables and headings."""
    text = re.sub(r"^---\n.*?\n---\n|```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    lines = [line if not re.match(r"\s*(\||#|    )", line) else "" for line in text.splitlines()]
    for item in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", "\n".join(lines), flags=re.MULTILINE):
        plain = " ".join(re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)|[\[*]", "", item)).split())
        yield from (one for one in re.split(r"(?<=[.!?:;])\s+(?=[A-Zx])", plain) if one.count(" ") > 1)


def test_sentences_are_short() -> None:
    texts = [page.read_text("utf-8") for page in PAGES] + list(CARDS.values())
    texts += map(weights_card, cards())
    lengths = {one: len(one.split()) for text in texts for one in sentences(text)}
    assert [one for one, length in lengths.items() if length > 35] == []
    assert sum(lengths.values()) / len(lengths) <= 18
