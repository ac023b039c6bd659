"""The project's address: one constant, shown everywhere or nowhere."""

from __future__ import annotations

from configparser import ConfigParser

import pytest

from capeval_core import project
from capeval_core.registry import metric_class
from tools.documents import CHECKOUT, filled

ADDRESS = "https://example.org/captions/capeval"
CARDS = [*CHECKOUT.glob("metrics/*/README.md"), *CHECKOUT.glob("hub_cards/*.md")]


def metadata() -> dict[str, str]:
    """The metadata in the generated setup.cfg."""
    parser = ConfigParser()
    parser.read_string(filled((CHECKOUT / "setup.cfg").read_text("utf-8")))
    return dict(parser["metadata"])


def heading() -> str:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    from capeval_core.integrations.page import views

    return views.heading(metric_class("pacs"))


def test_an_address_is_on_every_card_and_in_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", ADDRESS)
    assert project.address() == ADDRESS and project.address("a/b.md") == f"{ADDRESS}/blob/main/a/b.md"
    assert len(CARDS) > 20
    for path in CARDS:
        assert f"<{ADDRESS}>" in filled(path.read_text("utf-8")), path
        if path.name == "README.md" and path.parent.name != "eco":  # it tells its own ways to go wrong
            assert f"({ADDRESS}/blob/main/docs/footguns.md)" in filled(path.read_text("utf-8")), path
    found = metadata()
    assert found["url"] == ADDRESS
    assert found["project_urls"].split("\n") == [
        "",
        f"Documentation = {ADDRESS}/blob/main/README.md",
        f"Changelog = {ADDRESS}/blob/main/CHANGELOG.md",
    ]
    assert 'href="https://example.org/captions/capeval"' in heading()


def test_without_an_address_nothing_links_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", None)
    assert project.address() is None and project.address("a.md") is None
    for path in CARDS:
        text = filled(path.read_text("utf-8"))
        assert "<!-- project -->\n\n<!-- /project -->" in text and "None" not in text.split("project -->")[1]
        assert "/blob/main/docs" not in text
    found = metadata()
    assert not {"url", "project_urls"} & found.keys()
    assert "the project" not in heading()
