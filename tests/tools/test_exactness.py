"""The table "How exact it is" says what was measured, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.exactness import CASES, ORIGINALS
from capeval_core.registry import METRICS, metric_class, variant_classes
from tests.golden.__main__ import comparisons
from tools.documents import CHECKOUT, exactness_table
from tools.exactness import NOT_YET, ON_CPU, ON_GPU, exactness_rows, of_subject, read_lines

LINES = read_lines(ON_CPU)
SUBJECTS = [*METRICS, *(f"{name} {medium}" for name, medium in variant_classes())]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_card_has_the_table_and_every_metric_is_measured(subject: str) -> None:
    name, _, medium = subject.partition(" ")
    card = (CHECKOUT / "metrics" / name / "README.md").read_text(encoding="utf-8")
    assert exactness_table(name, medium or None) in card
    compared = {line["comparison"] for line in of_subject(LINES, subject)}
    network = metric_class(name).default_weights is not None
    assert compared - {"original"} == (
        {"order", "batches", "repeats", "bfloat16", "float16"} if network else {"order"}
    )
    assert "original" in compared or name in ("bleu", "rougel", "refclips")


def test_what_is_measured_on_the_cpu_stays_near() -> None:
    for line in LINES[1:]:
        assert line.get("met") is not False, line
        if line["comparison"] == "original":
            assert line["largest"] <= line["tolerance"], line


@pytest.mark.parametrize("case", ["pacs-vit-tiny", "umic-tiny"])
def test_a_run_of_a_golden_case_is_what_the_file_says(case: str) -> None:
    found = list(comparisons(CASES / case))
    for metric, pattern in ORIGINALS[case].items():
        [line] = [line for line in of_subject(LINES, metric) if line.get("case") == case]
        own = [one for one in found if re.match(pattern, one.quantity)]
        assert (line["quantities"], line["scores"]) == (len(found), pattern)
        assert line["tolerance"] == max(one.tolerance for one in own)
        assert all(one.error <= one.tolerance for one in own)  # the file has another machine's errors


def test_the_gpu_has_numbers_only_once_it_was_measured() -> None:
    line: dict[str, Any] = {
        "metrics": ["pacs"], "weights": "ViT-B/32, seeded", "comparison": "devices", "output": "scores",
        "largest": 2e-6, "tau": 1.0, "device": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip
    rehearsal = {**line, "device": "CPU (rehearsal)"}
    for given in ([], [rehearsal], [{**line, "metrics": ["umic"]}], [{"part": "towers", "finished": True}]):
        *_, last = exactness_rows("pacs", LINES, given)
        assert last[2] == NOT_YET and not any("H100" in cell for row in given for cell in row)
    *_, last = exactness_rows("pacs", LINES, [rehearsal, line])
    assert last == ["float32 on NVIDIA H100 80GB HBM3, with the CPU", "ViT-B/32, seeded", "2.0e-06", ""]
    sixteen = {**line, "comparison": "bfloat16", "tau": 0.991}
    *_, last = exactness_rows("pacs", LINES, [sixteen])
    assert last == ["bfloat16, with float32 on NVIDIA H100 80GB HBM3", "ViT-B/32, seeded", "2.0e-06", "0.991"]
    assert ON_GPU.is_file() or all(NOT_YET in exactness_table(name) for name in ("pacs", "umic", "eco"))
