"""UMIC on drawn scenes: how often a caption is preferred to each kind of negative.

    python -m benchmarks.umic_scenes [--weights tiny] [--blind FOLDER] [--scenes 3000] [--seed 1]

Scenes, captions and templates are of another seed than those of the training, and of other combinations:
every scene has an object of a shape and colour that no scene of the training combines, half of the captions
a beginning and an end that none of the training combines. Negatives are made as in the training; a random,
similar or substituted caption that is true of the scene is left out. Beside it the same model with zeros for
all regions, and with `--blind` a model that was trained so (in that folder, in about 5 minutes, unless it is
there): what the caption alone betrays. Intervals are Wilson's, at 95%. Output: benchmarks/umic_scenes.md.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from capeval_core.cli import main as capeval
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.training.groups import KINDS
from tools.tiny.command import Comparison
from tools.tiny.region_training import blinded, write_scenes
from tools.tiny.umic import UmicRecipe, compare, make_trials, write_start


def share(comparison: Comparison) -> str:
    """A share with its interval.

    >>> share(Comparison(0.9, 100, 0.0, 0.0))
    '90.0% (82.6-94.5)'
    """
    won = round(comparison.accuracy * comparison.trials)
    interval = binomtest(won, comparison.trials).proportion_ci(method="wilson")
    return f"{comparison.accuracy:.1%} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def train_blind(folder: Path) -> UniterEncoder:
    """A model like `tiny` that was trained with zeros for all regions; made unless `folder` holds it."""
    recipe = UmicRecipe(scenes=4_000, word_steps=0, matching_steps=700, steps=400)
    if not (folder / "run" / "weights").exists():
        write_scenes(folder, recipe.scenes, seed=0)
        write_start(folder / "start", seed=0)
        features = folder / "zeros"
        features.mkdir()
        zeros = np.zeros((10, 64), dtype=np.float32)
        for image in (folder / "images").iterdir():
            arrays = {"boxes": zeros[:, :4], "features": zeros, "size": np.array([9, 9])}
            np.savez(features / f"{image.stem}.npz", **arrays)  # type: ignore[arg-type]
        # Later flags win. Such features cannot tell which images are alike, so captions do.
        capeval([*recipe.command(folder, seed=0), "--regions", str(features), "--hard", "captions"])
    return UniterEncoder.from_pretrained(folder / "run" / "weights", device="cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description="Captions of drawn scenes against negatives of each kind.")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--blind", type=Path, metavar="FOLDER")
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    encoder = UniterEncoder.from_pretrained(options.weights, device="cpu")
    trials = make_trials(options.scenes, options.seed)
    preferred = "the caption is preferred"
    columns = {
        preferred: compare(encoder, trials, trials.boxes),
        "with zeros for the regions": compare(encoder, trials, blinded(trials.boxes)),
    }
    if options.blind is not None:
        columns["trained with zeros"] = compare(train_blind(options.blind), trials, blinded(trials.boxes))
    command = f"--weights {options.weights} --scenes {options.scenes} --seed {options.seed}"
    print(f"`python -m benchmarks.umic_scenes {command}`, {datetime.now(UTC):%Y-%m-%d},")
    print(f"weights {encoder.fingerprint[:8]}:\n")
    print(f"| negative | pairs | {' | '.join(columns)} |")
    print("| --- | --- |" + " --- |" * len(columns))
    for kind in KINDS:
        cells = [share(comparisons[kind]) for comparisons in columns.values()]
        pairs = f"{columns[preferred][kind].trials:,}"
        print(f"| {kind.replace('_', ' ')} | {pairs} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
