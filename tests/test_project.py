"""The project's address: one constant, shown everywhere or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools.config.setupcfg import read_configuration

from capeval_core import project
from capeval_core.registry import metric_class
from tools.documents import CHECKOUT, filled

ADDRESS = "https://example.org/captions/capeval"
CARDS = [*CHECKOUT.glob("metrics/*/README.md"), *CHECKOUT.glob("hub_cards/*.md")]


def metadata(folder: Path) -> dict[str, object]:
    """What setuptools reads of the generated setup.cfg."""
    for name in ("README.md", "LICENSE"):
        (folder / name).touch()
    package = folder / "capeval_core"
    package.mkdir()
    (package / "_version.py").write_text('__version__ = "1"')
    (folder / "setup.cfg").write_text(filled((CHECKOUT / "setup.cfg").read_text("utf-8")), "utf-8")
    found: dict[str, object] = read_configuration(folder / "setup.cfg")["metadata"]
    return found


def heading() -> str:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    from capeval_core.integrations.page import views

    return views.heading(metric_class("pacs"))


@pytest.mark.filterwarnings("ignore::setuptools.warnings.SetuptoolsDeprecationWarning")
def test_an_address_is_on_every_card_and_in_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "ADDRESS", ADDRESS)
    assert project.address() == ADDRESS and project.address("a/b.md") == f"{ADDRESS}/blob/main/a/b.md"
    assert len(CARDS) > 20
    for path in CARDS:
        assert f"<{ADDRESS}>" in filled(path.read_text("utf-8")), path
        if path.name == "README.md" and path.parent.name != "eco":  # it tells its own ways to go wrong
            assert f"({ADDRESS}/blob/main/docs/footguns.md)" in filled(path.read_text("utf-8")), path
    found = metadata(tmp_path)
    assert found["url"] == ADDRESS
    assert found["project_urls"] == {
        "Documentation": f"{ADDRESS}/blob/main/README.md",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
    }
    assert 'href="https://example.org/captions/capeval"' in heading()


@pytest.mark.filterwarnings("ignore::setuptools.warnings.SetuptoolsDeprecationWarning")
def test_without_an_address_nothing_links_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", None)
    assert project.address() is None and project.address("a.md") is None
    for path in CARDS:
        text = filled(path.read_text("utf-8"))
        assert "<!-- project -->\n\n<!-- /project -->" in text and "None" not in text.split("project -->")[1]
        assert "/blob/main/docs" not in text
    found = metadata(tmp_path)
    assert not {"url", "project_urls"} & found.keys()
    assert "the project" not in heading()
