"""Cards and pages: the code that they show is run, and gives what they say."""

from __future__ import annotations

from pathlib import Path

import evaluate
import pytest

from tests.snippets import run_snippets
from tools.documents import CHECKOUT, documents

PAGES = [
    path
    for path in documents()
    if path.parents[1].name in ("metrics",) or path.parent.name == "hub_cards"
    if "```python" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_the_code_does_what_the_page_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)
    assert run_snippets(path.read_text(encoding="utf-8"), str(path)) > 0
