"""The way of an item from `score` to the network is short."""

from __future__ import annotations

import re

import pytest

from tools import hops


def test_items_pass_few_functions(capsys: pytest.CaptureFixture[str]) -> None:
    hops.main()
    counts = dict(re.findall(r"^(.*): (\d+) functions", capsys.readouterr().out, re.MULTILINE))
    limits = {"a caption of PAC-S": 9, "an image of PAC-S": 10, "a region of HICE-S": 11, "a pool of ECO": 12}
    assert counts.keys() == limits.keys()
    assert all(2 < int(counts[item]) <= limit for item, limit in limits.items()), counts
