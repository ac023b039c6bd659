"""The table "How exact it is" of a metric's card, of committed measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
"""The one place of measurements."""
ON_CPU = RESULTS / "exactness.jsonl"
ON_GPU = RESULTS / "cuda.jsonl"
COMPARED = {
    "order": "captions in reverse order, with the usual order",
    "batches": "batches of one, with automatic batches",
    "repeats": "a second run, with the first",
    "devices": "float32 on a GPU, with the CPU",
    "bfloat16": "bfloat16, with float32",
    "float16": "float16, with float32",
}
"""The two sides of each comparison of `benchmarks/cuda/agreement.py`."""
NOT_YET = "not yet measured"
Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """The lines of a file of measurements, none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def exactness_rows(subject: str, on_cpu: list[Line], on_gpu: list[Line]) -> list[list[str]]:
    """Rows of the table: what is compared, with which weights, the largest difference, Kendall's tau-b.

    Args:
        subject: a metric's name, or `NAME video`.
        on_cpu: lines of `ON_CPU`.
        on_gpu: lines of `ON_GPU`, of which those of a rehearsal do not count.

    >>> line = {"metrics": ["pacs"], "comparison": "bfloat16", "weights": "tiny", "output": "scores"}
    >>> exactness_rows("pacs", [{**line, "largest": 0.0044, "tau": 0.99823}], [])[0]
    ['bfloat16, with float32', 'tiny', '4.4e-03', '0.998']
    >>> line |= {"largest": 0.0044, "tau": 0.99823, "rows": 48, "moved": 1, "widest": 0.0003}
    >>> exactness_rows("pacs", [line], [])[0][3]
    '0.998; 1 of 1,128 pairs move, at most 3.0e-04 apart'
    """
    rows = []
    for line in of_subject(on_cpu, subject):
        if line["comparison"] == "original":
            name = f"`{line['scores']}`" if line["scores"].isidentifier() else "scores"
            allowed = f"{line['largest']:.1e} (at most {line['tolerance']:g} passes)"
            rows.append([f"{name}, with the original code", f"golden case `{line['case']}`", allowed, ""])
        else:
            rows.append(_row(line, COMPARED[line["comparison"]]))
    measured = [line for line in of_subject(on_gpu, subject) if not line["device"].startswith("CPU")]
    for line in measured:
        where = "" if line["comparison"] == "devices" else f" on {line['device']}"
        rows.append(_row(line, COMPARED[line["comparison"]].replace("a GPU", line["device"]) + where))
    if not measured and has_networks(subject, on_cpu):
        rows.append(["on a GPU: float32 with the CPU, 16 bits with float32, a second run", "", NOT_YET, ""])
    return rows


def legend(subject: str, on_cpu: list[Line], scale: str) -> str:
    """Help for reading the table: only what is in it. scale: the range of the metric's score."""
    lines = of_subject(on_cpu, subject)
    sentences = [f"Each difference is the largest of any single caption's score (its range: {scale})"]
    if any(line["comparison"] == "original" for line in lines):
        sentences[0] += (
            ", or of the part of it that is named. A golden case is the output of the original code for "
            "fixed weights and inputs, kept in `tests/golden/cases`"
        )
    if has_networks(subject, on_cpu):
        sentences += [
            "Kendall's tau-b compares the rankings of the captions: 1 where they are the same. A pair "
            "moves if float32 ranks its captions the other way round",
            "`tiny` is the small model of the package; seeded weights are random, of full size. The "
            "published weights were not measured",
        ]
    return ". ".join(sentences) + "."


def has_networks(subject: str, on_cpu: list[Line]) -> bool:
    """True if a metric was measured with weights."""
    return any(line.get("weights") not in (None, "none") for line in of_subject(on_cpu, subject))


def of_subject(lines: list[Line], subject: str) -> list[Line]:
    """The lines about a metric."""
    return [line for line in lines if subject in line.get("metrics", ())]


def _row(line: Line, compared: str) -> list[str]:
    if line["output"] != "scores":
        compared = f"{compared}: {line['output']}"
    largest = "0" if line["largest"] == 0 else f"{line['largest']:.1e}"
    tau = "" if line.get("tau") is None or line["comparison"] not in ("bfloat16", "float16") else line["tau"]
    ranking = f"{tau:.3f}" if tau else ""
    if ranking and line.get("moved"):
        pairs = line["rows"] * (line["rows"] - 1) // 2
        ranking += f"; {line['moved']:,} of {pairs:,} pairs move, at most {line['widest']:.1e} apart"
    return [compared, line["weights"].replace("none", ""), largest, ranking]
