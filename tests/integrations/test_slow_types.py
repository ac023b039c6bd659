"""The warning of a type of numbers that a CPU only imitates, at doors that open metrics themselves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.cli import main
from capeval_core.integrations import CaptionMetrics
from tests.integrations.captioner import Scenes
from tests.integrations.shard_inputs import write_shards

SLOW: dict[str, Any] = {"weights": "tiny", "device": "cpu", "dtype": "float16"}


@pytest.mark.parametrize("door", ["evaluate", "trainer", "python"])
def test_a_slow_type_is_warned_of_once(door: str) -> None:
    grey = np.full((48, 48, 3), 128, dtype=np.uint8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        if door == "evaluate":
            pacs = capeval_core.module("pacs", **SLOW)
            for _ in range(2):
                pacs.add_batch(predictions=["a grey wall"], images=[grey])
            pacs.compute()
        elif door == "trainer":
            scenes = Scenes(2)
            CaptionMetrics(scenes.tokenizer, images=scenes.images, references=scenes.references, **SLOW)
        else:
            metric = capeval_core.load("pacs", **SLOW)
            metric.score(["a grey wall"], [grey])
            metric.score(["a red circle"], [grey])
    messages = [str(warning.message) for warning in caught if "float16" in str(warning.message)]
    assert len(messages) == 1 and "dtype='float32'" in messages[0]


def test_a_slow_type_is_warned_of_once_in_a_run_over_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(tmp_path / "in", shards=2, rows=2)
    arguments = [
        "shards",
        "score",
        "pacs",
        "--input",
        f"{tmp_path}/in/*.parquet",
        "--output",
        f"{tmp_path}/out",
    ]
    options = [part for name, value in SLOW.items() for part in (f"--{name}", value)]
    assert main([*arguments, *options]) == 0
    err = capsys.readouterr().err
    assert err.count("float16 takes several times as long") == 1 and "--dtype float32" in err
