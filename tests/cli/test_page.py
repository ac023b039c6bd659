"""`capeval page`: what it refuses; what it serves is in tests/integrations/test_page.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran


def test_a_misspelt_metric_is_told_before_anything_is_served(capeval: Callable[..., Ran]) -> None:
    ran = capeval("page", "pasc")
    assert ran.status == 2
    assert "did you mean 'pacs'" in ran.err


def test_a_port_that_is_none(capeval: Callable[..., Ran]) -> None:
    ran = capeval("page", "pacs", "--port", "70000")
    assert ran.status == 2
    assert "--port 70000: expected a number from 1 to 65535" in ran.err


def test_without_gradio_the_message_says_what_to_install(
    capeval: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "capeval_core.commands.page.find_spec", lambda name: None if name == "gradio" else find(name)
    )
    ran = capeval("page", "pacs")
    assert (ran.status, ran.err) == (2, 'capeval: the page needs gradio: pip install "capeval[page]"\n')
