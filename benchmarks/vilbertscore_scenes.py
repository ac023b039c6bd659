"""ViLBERTScore on drawn scenes: how often F prefers a right caption to a one-word foil, references equal.

    python -m benchmarks.vilbertscore_scenes [--weights tiny] [--scenes 2500] [--seed 1]

Scenes, captions and templates are of another seed than those of the training, and of other combinations:
every scene has an object of a shape and colour that no scene of the training combines, half of the right
captions a beginning and an end that none of the training combines. Every scene has two references, a right
caption in other words, and two foils, false of the scene: one differs from the right caption in one word, the
other, which is much harder to tell by words, from the first reference. Only words are matched, after the last
co-attention block. Beside it the same model with zeros for all regions. Intervals are Wilson's, at 95%.
Output: benchmarks/vilbertscore_scenes.md.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from benchmarks.umic_scenes import share
from capeval_core.encoders.vilbert import VilbertEncoder
from tools.tiny.region_training import BLIND
from tools.tiny.vilbert import measure


def main() -> None:
    parser = argparse.ArgumentParser(description="Right captions of drawn scenes against one-word foils.")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--scenes", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    encoder = VilbertEncoder.from_pretrained(options.weights, device="cpu")
    comparisons = measure(encoder, options.scenes, options.seed)
    command = f"--weights {options.weights} --scenes {options.scenes} --seed {options.seed}"
    print(f"`python -m benchmarks.vilbertscore_scenes {command}`, {datetime.now(UTC):%Y-%m-%d},")
    print(f"weights {encoder.fingerprint[:8]}:\n")
    print("| foil | pairs | the right caption is preferred | without the image | mean F | of the foil |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, found in comparisons.items():
        if kind.endswith(BLIND):
            continue
        cells = (kind, f"{found.trials:,}", share(found), share(comparisons[kind + BLIND]))
        print(f"| {' | '.join(cells)} | {found.right:.3f} | {found.wrong:.3f} |")


if __name__ == "__main__":
    main()
