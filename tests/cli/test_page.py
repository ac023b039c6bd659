"""`capeval page`: what it refuses; what it serves is in tests/integrations/test_page.py."""

from __future__ import annotations

import importlib.util
import socket
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


@pytest.mark.parametrize("weights", ["./nope", "tinny"])
def test_weights_that_are_not_there_are_told_before_anything_is_served(
    weights: str, capeval: Callable[..., Ran]
) -> None:
    ran = capeval("page", "pacs", "--weights", weights)
    assert (ran.status, ran.out) == (2, "")
    assert f"--weights {weights} is neither a folder, nor a Hub id" in ran.err


def test_a_port_that_is_taken(capeval: Callable[..., Ran]) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = capeval("page", "pacs", "--weights", "tiny", "--port", port)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"capeval: --port {port} is taken: pass another\n"


def test_without_gradio_the_message_says_what_to_install(
    capeval: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "capeval_core.commands.page.find_spec", lambda name: None if name == "gradio" else find(name)
    )
    ran = capeval("page", "pacs")
    assert (ran.status, ran.err) == (2, 'capeval: the page needs gradio: pip install "capeval[page]"\n')
