"""Ctrl-C within one process: when it raises again, and whose handlers it leaves alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capeval_core.commands.interrupts import Interruption, leave, leave_at_once


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def raises(pressed: Interruption) -> bool:
    try:
        pressed.again(signal.SIGALRM, None)
    except KeyboardInterrupt:
        return True
    return False


def test_it_raises_again_unless_the_exception_is_on_its_way() -> None:
    pressed = Interruption()
    assert not raises(pressed)  # nobody asked
    pressed.pressed = True
    assert raises(pressed)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert not raises(pressed)  # rows are being written
        try:
            raise OSError("a full disk")
        except OSError:
            assert not raises(pressed)  # and fail at that
    try:
        raise OSError("of something else")
    except OSError:
        assert raises(pressed)


@pytest.mark.parametrize("found", [signal.SIG_IGN, signal.SIG_DFL, lambda number, frame: None])
def test_a_job_in_the_background_goes_on(found: Any) -> None:
    signal.signal(signal.SIGINT, found)
    leave_at_once()
    assert signal.getsignal(signal.SIGINT) is found
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leave_at_once()
    assert signal.getsignal(signal.SIGINT) is leave


def test_an_interrupt_while_torch_is_imported_ends_the_process_at_once(tmp_path: Path) -> None:
    """In it an exception would end in `terminate called`, from C++."""
    (tmp_path / "torch.py").write_text("import os; os.kill(os.getpid(), 2); print('imported')")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from capeval_core.commands.interrupts import watched\n"
        "with watched(): import torch"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "capeval: interrupted\n")
