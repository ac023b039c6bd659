"""Ctrl-C within one process: when it raises again, and whose handlers it leaves alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
