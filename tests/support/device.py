"""The device of golden cases and the contract test: the CPU, unless `CAPEVAL_TEST_DEVICE` names another."""

from __future__ import annotations

import os

VARIABLE = "CAPEVAL_TEST_DEVICE"


def device() -> str:
    """Where tests open their networks."""
    return os.environ.get(VARIABLE, "cpu")
