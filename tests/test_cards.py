"""Cards and pages: what they show is run."""

from __future__ import annotations

from pathlib import Path

import evaluate
import pytest

from capeval_core.documents import CHECKOUT
from tests.snippets import run_snippets

RUN = sorted(
    [*CHECKOUT.glob("metrics/*/README.md"), *CHECKOUT.glob("hub_cards/*.md"), *CHECKOUT.glob("docs/*.md")]
)


@pytest.mark.parametrize("path", RUN, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_the_code_does_what_the_page_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)
    run_snippets(path.read_text(encoding="utf-8"), str(path))
