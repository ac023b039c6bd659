"""Rows, scores and parts of every metric on `tiny`, to be held against those of another version.

    python -m tools.rows store FILE
    python -m tools.rows compare OLD NEW [OLD_NAME=NEW_NAME ...]

The input is drawn from a seed: images of several sizes, equal and turned ones, one that cannot be read; empty
and truncated captions; ragged references. Names are those of columns and parts that were renamed.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import capeval_core
from capeval_core.registry import metric_class
from capeval_core.reranking import Reranker
from capeval_core.result import plain
from tools.captions import describe
from tools.scenes import draw, sample_scene

TOLERANCE = 1e-7
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "pacs": {"w": 3.0, "prompt": "a drawing of ", "batch_size": 3},
    "refpacs": {"compat": "released"},
    "hices": {"max_regions": 2, "batch_size": 5},
    "eco": {"compat": "released"},
}
"""Options of a second run of a metric."""


def inputs() -> tuple[list[str], list[Any], list[list[str]]]:
    """Captions, images and references."""
    rng = np.random.default_rng(12)
    scenes = [sample_scene(rng) for _ in range(14)]
    captions = [describe(scene, rng) for scene in scenes]
    references = [[describe(scene, rng) for _ in range(1 + i % 4)] for i, scene in enumerate(scenes)]
    images: list[Any] = [draw(scene).resize((60 + 7 * i, 130 - 4 * i)) for i, scene in enumerate(scenes)]
    images += [images[0], images[3].copy(), b"broken", images[5].rotate(90, expand=True)]
    captions += ["", "a red circle " * 60, captions[2], captions[1]]
    return captions, images, [*references, ["a thing"], ["x"], references[0], references[2]]


def run(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the rows, scores and parts of a metric."""
    captions, images, references = inputs()
    metric = capeval_core.load(name, weights="tiny", on_error="nan", empty="score", **options)
    texts: list[Any] = captions
    if isinstance(metric, Reranker):
        texts = [[caption, *captions[i % 14 : i % 14 + i % 4]] for i, caption in enumerate(captions)]
    samples = metric.check(texts, images, references if metric.needs_references else None)
    rows = metric.prepared(samples).encode_all(samples)
    result = metric.combine(rows, samples=samples)
    columns = {column: rows[column].to_pylist() for column in rows.column_names}
    return {"columns": columns, "parts": result.parts, "scores": {"scores": result.scores}}


def store(file: Path) -> None:
    """Run every metric and write what came out as JSON."""
    runs = {name: run(name, {}) for name in capeval_core.list_metrics() if metric_class(name).tiny}
    runs |= {f"{name} {json.dumps(options)}": run(name, options) for name, options in VARIANTS.items()}
    file.write_text(json.dumps(plain(runs)), encoding="utf-8")


def compare(old: Mapping[str, Any], new: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    """What differs between two stored runs."""
    for metric, kinds in old.items():
        for kind, values in kinds.items():
            for name, value in values.items():
                other = new.get(metric, {}).get(kind, {}).get(names.get(name, name))
                if (difference := _difference(value, other)) > TOLERANCE:
                    yield f"{metric}: {kind} {name}: {difference:.2g}"


def _difference(old: Any, new: Any) -> float:
    """The largest difference of numbers; infinite where anything else differs."""
    if isinstance(old, float) and isinstance(new, float):
        return abs(old - new)
    if isinstance(old, Sequence) and not isinstance(old, str):
        if not isinstance(new, Sequence) or len(old) != len(new):
            return np.inf
        return max(map(_difference, old, new), default=0.0)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _difference([list(old), *old.values()], [list(new), *new.values()])
    return 0.0 if old == new else np.inf


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    if arguments[:1] == ["store"] and len(arguments) == 2:
        store(Path(arguments[1]))
        return 0
    if arguments[:1] != ["compare"] or len(arguments) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    old, new = (json.loads(Path(file).read_text(encoding="utf-8")) for file in arguments[1:3])
    differences = list(compare(old, new, dict(name.split("=", 1) for name in arguments[3:])))
    print("\n".join(differences) or f"equal to {TOLERANCE:g}: {', '.join(old)}")
    return bool(differences)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
