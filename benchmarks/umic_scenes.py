"""UMIC on drawn scenes: how often a caption is preferred to each kind of negative.

    python -m benchmarks.umic_scenes [--weights tiny] [--scenes 3000] [--seed 1]

Scenes, captions and templates are of another seed than those of the training, and of other combinations:
every scene has an object of a shape and colour that no scene of the training combines, half of the captions
a beginning and an end that none of the training combines. Negatives are made as in the training; a random,
similar or substituted caption that is true of the scene is left out. Beside it the same model with zeros for
all regions: what the caption alone betrays. Intervals are Wilson's, at 95%. Output:
benchmarks/umic_scenes.md.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from scipy.stats import binomtest

from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.training.groups import KINDS
from tools.tiny.command import Comparison
from tools.tiny.umic import BLIND, measure


def share(comparison: Comparison) -> str:
    """A share with its interval.

    >>> share(Comparison(0.9, 100, 0.0, 0.0))
    '90.0% (82.6-94.5)'
    """
    won = round(comparison.accuracy * comparison.trials)
    interval = binomtest(won, comparison.trials).proportion_ci(method="wilson")
    return f"{comparison.accuracy:.1%} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Captions of drawn scenes against negatives of each kind.")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    encoder = UniterEncoder.from_pretrained(options.weights, device="cpu")
    comparisons = measure(encoder, options.scenes, options.seed)
    command = f"--weights {options.weights} --scenes {options.scenes} --seed {options.seed}"
    print(f"`python -m benchmarks.umic_scenes {command}`, {datetime.now(timezone.utc):%Y-%m-%d},")
    print(f"weights {encoder.fingerprint[:8]}:\n")
    print(
        "| negative | pairs | the caption is preferred | without the image | mean score | of the negative |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in KINDS:
        found, blind = comparisons[kind], comparisons[kind + BLIND]
        cells = (kind.replace("_", " "), f"{found.trials:,}", share(found), share(blind))
        print(f"| {' | '.join(cells)} | {found.right:.3f} | {found.wrong:.3f} |")


if __name__ == "__main__":
    main()
