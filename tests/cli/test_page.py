"""`capeval page`: what it refuses; what it serves is in tests/integrations/test_page.py."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

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


def served(tmp_path: Path, *arguments: str) -> tuple[str, str, dict[str, object]]:
    """The title that `capeval page` prints, what it opened in a browser, and Gradio's configuration."""
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "capeval_core", "page", "pacs", "--weights", "tiny", *arguments],
        env={**os.environ, "BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    title, _, url = process.stdout.readline().removesuffix(" (Ctrl-C ends it)\n").partition(" is served at ")
    with urlopen(f"{url}config") as answer:
        config = json.load(answer)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert not opened.exists() or opened.read_text() == f"{url}\n"
    return title, "opened" if opened.exists() else "", config


def test_it_opens_a_browser(tmp_path: Path) -> None:
    assert served(tmp_path)[:2] == ("PAC-S", "opened")


def test_it_opens_none_and_is_about_videos_if_asked(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV: pip install capeval[video]")
    title, opened, config = served(tmp_path, "--no-browser", "--media", "video", "--host", "0.0.0.0")
    assert (title, opened) == ("PAC-S for videos", "")
    components = [component["props"] for component in config["components"]]  # type: ignore[attr-defined]
    assert next(one["value"] for one in components if one.get("elem_id") == "about") == "video"


@pytest.mark.parametrize(
    ("metric", "flag", "value"),
    [
        ("bleu", "--weights", "tiny"),
        ("bleu", "--media", "image"),
        ("umic", "--media", "boxes"),
        ("pacs", "--host", "nope.invalid"),
    ],
)
def test_what_it_cannot_serve_is_refused_by_its_flag(
    metric: str, flag: str, value: str, capeval: Callable[..., Ran]
) -> None:
    ran = capeval("page", metric, flag, value)
    assert ran.status == 2 and ran.err.startswith(f"capeval: {flag} {value}")


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


def test_without_its_published_weights_it_starts_with_the_small_ones(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    process = subprocess.Popen(
        [sys.executable, "-m", "capeval_core", "page", "pacs", "--no-browser"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stderr is not None
    assert "is served at" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0 and "capeval convert pacs" in process.stderr.read()
