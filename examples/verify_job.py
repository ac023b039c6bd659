# /// script
# requires-python = ">=3.11"
# dependencies = ["capeval"]
#
# [tool.uv.sources]
# capeval = { path = ".." }
# ///
"""Fetch real weights and judged sets, and compare what they give with what papers print.

    uv run examples/verify_job.py --accept                 all that has published values
    uv run examples/verify_job.py --accept --metrics pacs,clips --sets none
    hf jobs uv run --flavor a10g-small examples/verify_job.py --accept

A job on the Hub gets this file alone: for it, name the repository in the place of the path above,
`capeval = { git = "ADDRESS" }`.

It writes verified.json and verified.md into --out. `benchmarks/results/verified.json` is one of these: the
site makes the table of docs/verification.md of it. --accept accepts the terms of all that has no open
licence, which `capeval fetch NAME --dry-run` shows.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core.cli import main as capeval

METRICS = ("pacs", "refpacs", "clips", "refclips", "specs", "hices", "refhices", "umic", "vilbertscore")
SETS = ("flickr8k_expert", "flickr8k_cf", "composite", "nebula", "polaris", "longcap_arena")
COLUMNS = ("metric", "what", "published", "found", "distance", "verdict", "sha256")


def verified(name: str, accept: list[str], out: Path) -> list[dict[str, Any]]:
    """The checks of a metric that have a published number, and whether it could be opened at all."""
    file = out / f"{name}.json"
    status = capeval(["verify", name, *accept, "--json", str(file)])
    if not file.is_file():
        return [{"metric": name, "what": "weights", "verdict": f"could not be opened (status {status})"}]
    content = json.loads(file.read_text())
    about = {"metric": content["title"], "sha256": content["sha256"], "signature": content["signature"]}
    rows = []
    for check in content["checks"]:
        row = {**about, "what": check["what"], "verdict": check["verdict"]}
        if check["published"] is not None:
            row |= {"published": check["published"], "found": check["value"]}
            row["distance"] = check["value"] - check["published"]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    for row in rows:
        cells = []
        for name in COLUMNS:
            value = row.get(name)
            text = f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)
            cells.append(text[:12] if name == "sha256" else text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def device() -> str:
    """What it ran on."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--metrics", default=",".join(METRICS))
    parser.add_argument("--sets", default=",".join(SETS), help="judged sets, or none")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("verified"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    accept = ["--accept"] if arguments.accept else []
    names = arguments.metrics.split(",")
    sets = [] if arguments.sets == "none" else arguments.sets.split(",")

    fetched = [name for name in sets if capeval(["fetch", name, *accept]) == 0]
    rows = [row for name in names for row in verified(name, accept, arguments.out)]
    for name in fetched:
        folder = str(arguments.out / "judged")
        capeval(["judge", name, "--metrics", arguments.metrics, "--out", folder, "--resamples", "0"])

    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "device": device()}
    content = {**about, "capeval": capeval_core.__version__, "rows": rows}
    (arguments.out / "verified.json").write_text(json.dumps(content, indent=1) + "\n")
    (arguments.out / "verified.md").write_text(table(rows))
    print(table(rows))
    failed = [row for row in rows if row["verdict"] not in ("ok", "not checked")]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
