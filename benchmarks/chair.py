"""`why` of CHAIR put to the test: from a CHAIR-i of four digits it has to name the variant that made it.

    python -m benchmarks.chair ../shared/data [--cases 100] [--seed 0]

A case is 300 captions of M² Transformer or BLIP-2, the first two references of each image and up to three
random categories, and one of the known variants that move CHAIR-i. It needs the extra `chair` with NLTK's
data, and the list of synonyms in `chair/synonyms.txt` of the folder. `benchmarks/results/chair.md` is its
output.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core.replay.variants import SWITCHES, Switch
from capeval_core.replay.why import Search

IMAGES = 600
CAPTIONS = 300
SYSTEMS = ("m2_transformer.json", "blip2_results_xe.json")
LEFT_OUT = ("chair_s", "recall", "times 100", "divided by 10")
"""Switches that give another number than CHAIR-i, or another scale of it, which its digits show."""


def moving(search: Search) -> list[Switch]:
    """The switches that move the number by its four digits."""
    mean = search.scored(()).mean
    switches = []
    for switch in search.switches:
        if switch.name not in LEFT_OUT and abs(search.scored((switch,)).mean - mean) >= 1e-4:
            switches.append(switch)
    return switches


def case(data: dict[str, Any], synonyms: Path, rng: random.Random) -> tuple[str, list[list[str]]]:
    """The variant that was drawn, and the groups of variants that remain."""
    captions = data[rng.choice(SYSTEMS)]
    references = data["reference_captions.json"]
    image_ids = rng.sample(list(captions)[:IMAGES], CAPTIONS)
    objects = [
        [*references[image_id][:2], *rng.sample(data["names"], rng.randrange(4))] for image_id in image_ids
    ]
    metric = capeval_core.load("chair", synonyms=synonyms)
    samples = metric.check([captions[image_id] for image_id in image_ids], None, objects)
    search = Search(metric, samples, image_ids)
    switch = rng.choice(moving(search))
    outcome = search.explain(f"{search.scored((switch,)).mean:.4f}")
    return switch.name, outcome.remaining


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    synonyms = flags.folder / "chair" / "synonyms.txt"
    files = [flags.folder / "coco_systems" / name for name in (*SYSTEMS, "reference_captions.json")]
    data: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in files}
    data["names"] = [line.strip().split(", ")[0] for line in synonyms.read_text().splitlines()]
    rng = random.Random(flags.seed)
    begun = time.process_time()
    drawn = Counter[str]()
    among = alone = 0
    for _ in range(flags.cases):
        name, remaining = case(data, synonyms, rng)
        drawn[name] += 1
        is_among = any(name in group for group in remaining)
        among += is_among
        alone += is_among and len(remaining) == 1
    chair_count = sum(switch.metrics == "chair" for switch in SWITCHES)
    print("# `why` of CHAIR\n")
    print(f"{datetime.date.today()}; see `benchmarks/chair.py`.\n")
    print(f"{flags.cases} cases of {CAPTIONS} captions, CHAIR-i in four digits;")
    print(f"{chair_count} switches are CHAIR's own:\n")
    print(f"- the variant is the only one that remains, but for those that make the same: {alone}")
    print(f"- it is among those that remain: {among}")
    print(f"- CPU: {time.process_time() - begun:.0f} s\n")
    print("| variant | cases |\n| --- | --- |")
    for name, count in sorted(drawn.items()):
        print(f"| {name} | {count} |")


if __name__ == "__main__":
    main()
