"""Cards: the code that they show is run, and gives what they say."""

from __future__ import annotations

from pathlib import Path

import evaluate
import pytest

from capeval_core.registry import METRICS
from tests.snippets import run_snippets
from tools.documents import cards, metric_card, weights_card

CODE = {name: card for name in cards() if "```python" in (card := weights_card(name))}


@pytest.mark.parametrize("name", [*METRICS, *CODE])
def test_the_code_does_what_the_card_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nobody reads a page in the root of a checkout
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)
    assert run_snippets(CODE.get(name) or metric_card(name), name) > 0
