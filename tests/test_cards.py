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


def test_values_and_errors_are_compared_in_one_namespace() -> None:
    page = """
```python
total = 1  # prose
total / 3  # 0.333...
```
```python
total += 1
[total]
# [2]

# prose
total.real
int("x")
# ValueError: invalid literal ...
```
```sh
not python
```
"""
    assert run_snippets(page, "page") == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 + 1\n# 3", "page:2: 1 \\+ 1\n  says 3\n  is   2"),
        ("1 + 1\n# ValueError: no", "says ValueError: no\n  is   2"),
        ("int('x')\n# ValueError: something else", "is   ValueError: invalid literal"),
    ],
)
def test_a_page_that_is_wrong_fails(code: str, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        run_snippets(f"```python\n{code}\n```\n", "page")


def test_an_error_that_the_page_does_not_tell_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_snippets("```python\n1 / 0\n```\n", "page")
