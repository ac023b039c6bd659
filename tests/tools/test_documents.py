"""Documents agree with the code: generated parts are up to date, and nothing is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from capeval_core._version import __version__
from capeval_core.description import describe_metric
from capeval_core.options import describe_options
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from capeval_core.weights.catalogue import NAMESPACE
from tools.documents import (
    CHECKOUT,
    PARTS,
    STUB,
    documents,
    filled,
    main,
    options_table,
    own_weights,
    rows_table,
)
from tools.load_types import load_stub

TEMPLATE = (
    "Metric description",
    "How to use",
    "Inputs",
    "Output values",
    "Values from popular papers",
    "Examples",
    "Limitations and bias",
    "Citation",
    "Further references",
)
"""The sections of evaluate's metric cards."""
COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}


def named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def front_matter(path: Path) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("---\n"), f"{path} has no front matter"
    content = yaml.safe_load(text.split("---\n", 2)[1])
    assert isinstance(content, dict)
    return content


def anchors(path: Path) -> set[str]:
    """Names of the headings of a Markdown page, as GitHub and the Hub make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.skipif(
    NAMESPACE != "capeval", reason="CAPEVAL_NAMESPACE is set: documents name the project's own"
)
@pytest.mark.parametrize("path", documents(), ids=named)
def test_what_is_generated_is_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert filled(text, named(path)) == text, "run: python -m tools.documents"


def test_the_stub_of_load_is_current() -> None:
    assert STUB.read_text(encoding="utf-8") == load_stub(), "run: python -m tools.documents"


@pytest.mark.parametrize("path", documents(), ids=named)
def test_links_inside_the_checkout_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text(encoding="utf-8")):
        linked = path.parent / target if target else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


@pytest.mark.parametrize(
    "path", [*CHECKOUT.glob("metrics/*/README.md"), *CHECKOUT.glob("hub_cards/*.md")], ids=named
)
def test_links_of_cards_are_absolute(path: Path) -> None:
    """A card is read on the Hub, where the checkout's other files are not."""
    links = re.findall(r"\]\((?!https?:|#)([^)]*)\)", path.read_text(encoding="utf-8"))
    assert not links


@pytest.mark.parametrize("name", METRICS)
def test_a_card_begins_with_what_a_number_means_and_when_not_to_trust_it(name: str) -> None:
    text = (CHECKOUT / "metrics" / name / "README.md").read_text(encoding="utf-8")
    first = text.split("---\n", 2)[2].partition("### Inputs")[0]
    for part in ("| range |", "**Do not trust it** ", "evaluate.load(", ".compute("):
        assert part in first
    assert len(first.split()) < 600
    unfolded = re.sub(r"<details>.*?</details>|<!--.*?-->", "", text, flags=re.DOTALL)
    assert len(unfolded.split()) < 2000
    assert text.count("<details>") == text.count("</details>") >= 2


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_whole_card(name: str) -> None:
    metric = metric_class(name)
    path = CHECKOUT / "metrics" / name / "README.md"
    text = path.read_text(encoding="utf-8")
    sections = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert [title for title in sections if title in TEMPLATE] == list(TEMPLATE)
    tables = ["facts", "inputs", "options", "rows", *["published"][: len(metric.published)]]
    variants = [medium for other, medium in MEDIA_VARIANTS if other == name]
    calls = [f"{table} {name}" for table in tables]
    calls += [f"{table} {name} {medium}" for medium in variants for table in tables[:4]]
    for call in calls:
        assert f"<!-- {call} -->" in text, call
    assert describe_metric(metric).title in text and metric.key in text

    space = front_matter(path)
    assert space["title"] == metric.title
    assert {"evaluate", "metric"} <= set(space["tags"])  # type: ignore[call-overload]
    assert (space["sdk"], space["app_file"], space["license"]) == ("gradio", "app.py", "apache-2.0")
    assert re.fullmatch(r"6\.\d+\.\d+", str(space["sdk_version"]))
    assert {space["colorFrom"], space["colorTo"]} <= COLOURS  # what the Hub knows
    assert len(str(space["short_description"])) <= 60  # what the Hub takes


def test_every_shared_paragraph_is_used() -> None:
    texts = [path.read_text(encoding="utf-8") for path in documents()]
    for path in PARTS.glob("*.md"):
        assert any(f"<!-- part {path.stem} -->" in text for text in texts), path.name


def test_all_spaces_run_one_version_of_gradio() -> None:
    versions = {front_matter(path)["sdk_version"] for path in CHECKOUT.glob("metrics/*/README.md")}
    assert len(versions) == 1


def test_every_repository_of_weights_has_a_card_and_every_card_a_repository() -> None:
    tiny = {f"{metric_class(name).tiny}-tiny" for name in METRICS if metric_class(name).tiny}
    cards = {path.stem: path for path in CHECKOUT.glob("hub_cards/*.md")}
    assert cards.keys() == own_weights().keys() | tiny
    for name, entry in own_weights().items():
        text = cards[name].read_text(encoding="utf-8")
        assert f"<!-- origin {name} -->" in text
        assert re.search(rf"^<!-- convert [\w-]+ {name} -->$", text, re.MULTILINE)
        card = front_matter(cards[name])
        licence = card["license_name" if card["license"] == "other" else "license"]
        assert licence == (entry.licence or "unknown").lower().replace(" ", "-")
        assert "model-index" not in front_matter(cards[name])


@pytest.mark.parametrize(("name", "medium"), [*((name, None) for name in METRICS), *MEDIA_VARIANTS])
def test_every_option_and_column_has_its_sentence(name: str, medium: str | None) -> None:
    metric = metric_class(name, medium)
    usual = describe_options(metric_class(name).Options) if medium else []
    for option in describe_options(metric.Options):
        assert option.help and (f"| `{option.name}` |" in options_table(name, medium)) != (option in usual)
    for option in usual:
        kept = any(option.name == other.name for other in describe_options(metric.Options))
        assert kept != (f"<code>{option.name}</code>" in options_table(name, medium))
    for column in metric.ROW:
        assert column.metadata and column.metadata[b"meaning"], f"{column.name}: make it with rows.column"
        assert f"| `{column.name}` | `{column.type}` |" in rows_table(name, medium)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<!-- option pacs -->\n<!-- /option pacs -->",
            "x.md:1: there is no table 'option': did you mean 'options'?",
        ),
        ("<!-- options pac -->\n<!-- /options pac -->", "x.md:1: unknown metric 'pac': did you mean 'pacs'?"),
        (
            "<!-- options -->\n<!-- /options -->",
            "x.md:1: <!-- options -->: expected <!-- options METRIC [MEDIA] -->",
        ),
        (
            "<!-- origin pacs-clip -->\n<!-- /origin pacs-clip -->",
            f"x.md:1: no weights of {NAMESPACE} are named",
        ),
        ("<!-- part nothing -->\n<!-- /part nothing -->", "holds no part 'nothing'"),
        ("\n<!-- metrics -->\ntext", "x.md:2: <!-- metrics --> has no end"),
        (
            "<!-- metrics -->\n<!-- weights -->\n<!-- /weights -->",
            "x.md:1: <!-- metrics --> has no end before <!-- weights -->",
        ),
        ("a\n<!-- /metrics -->", "x.md:2: <!-- /metrics --> has no beginning"),
    ],
)
def test_a_wrong_marker_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        filled(text, "x.md")
    assert message in str(raised.value)


def test_all_wrong_markers_are_reported_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"(?s)x\.md:1: there is no table 'a'.*x\.md:3: there is no table 'b'"
    ):
        filled("<!-- a -->\n<!-- /a -->\n<!-- b -->\n<!-- /b -->", "x.md")


def test_markers_inside_a_line_are_text() -> None:
    text = "Write `<!-- options pacs -->` there.\n"
    assert filled(text) == text


def test_the_command_fills_the_documents_in_its_arguments(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("é\n<!-- options pacs -->\nold\n<!-- /options pacs -->\nend\n", encoding="utf-8")
    main([str(page)])
    once = page.read_text(encoding="utf-8")
    assert once == f"é\n<!-- options pacs -->\n{options_table('pacs')}\n<!-- /options pacs -->\nend\n"
    main([str(page)])
    assert page.read_text(encoding="utf-8") == once


def test_changelog_names_this_version() -> None:
    assert f"## {__version__}" in (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
