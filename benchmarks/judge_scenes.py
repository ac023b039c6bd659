"""`capeval judge` on drawn scenes: captions with 0 to 4 errors, and every metric with its tiny weights.

    python -m benchmarks.judge_scenes [--scenes 150] [--seed 5] [--out benchmarks]

Three reports. Graded captions: of each scene a right caption, and the same with 1 to 4 words made false;
people's rating is 4 less the errors. Scenes, captions and templates are of another seed than those of the
trainings, and of combinations that no training shows. Completeness and correctness (table 3 of HICE-S in the
small): of scenes with four objects, captions that name 1 to 4 of them, and captions of all four with 1 to 4
objects that are not there. Layers: ViLBERTScore of the graded captions after each co-attention block, as
figure 3 of its paper.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image

import capeval_core
from capeval_core.cli import main as capeval
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.scoring import SetScorer
from capeval_core.judgements.sets import load_set
from capeval_core.judgements.visuals import find_visuals
from capeval_core.reports.curves import Curve, draw_curves
from tools.captions import KINDS, foil
from tools.scenes import COLOURS, SHAPES, Scene, SceneObject, draw
from tools.sets import split_caption, split_scene

METRICS = (
    "pacs", "refpacs", "clips", "refclips", "hices", "refhices", "umic", "vilbertscore",
    "bleu", "rougel", "cider", "ciderd",
)  # fmt: skip
ERRORS = 5
_CENTRES = ((0.27, 0.27), (0.73, 0.27), (0.27, 0.73), (0.73, 0.73))


def graded(scene: Scene, rng: np.random.Generator) -> list[str] | None:
    """A right caption and the same with 1, 2, 3 and 4 wrong words; None where it has too few words to
    change."""
    right = split_caption(scene, rng, held_out=True)
    captions = [right]
    for errors in range(1, ERRORS):
        for _ in range(60):
            try:
                wrong = foil(scene, captions[-1], KINDS[int(rng.integers(len(KINDS)))], rng)
            except ValueError:  # no word of this kind can be changed
                continue
            if sum(a != b for a, b in zip(right.split(), wrong.split(), strict=True)) == errors:
                captions.append(wrong)
                break
        else:
            return None
    return captions


def write_graded(folder: Path, scenes: int, seed: int) -> None:
    """A judged set: images, judgements.jsonl, references.json, and pools.json for rerankers."""
    rng = np.random.default_rng([seed, 33])
    (folder / "images").mkdir(parents=True)
    references: dict[str, list[str]] = {}
    pools: dict[str, list[str]] = {}
    with (folder / "judgements.jsonl").open("w", encoding="utf-8") as file:
        while len(references) < scenes:
            scene = split_scene(rng, held_out=True)
            captions = graded(scene, rng)
            if captions is None:
                continue
            name = f"{len(references)}.png"
            draw(scene, 96).save(folder / "images" / name, compress_level=1)
            references[name] = [split_caption(scene, rng, held_out=False) for _ in range(3)]
            order = rng.permutation(len(captions))
            pools[name] = [captions[int(index)] for index in order]
            for errors, caption in enumerate(captions):
                row = {"image": name, "candidate": caption, "ratings": [ERRORS - 1 - errors]}
                file.write(json.dumps(row) + "\n")
    (folder / "references.json").write_text(json.dumps(references))
    (folder / "pools.json").write_text(json.dumps(pools))


def four_objects(rng: np.random.Generator) -> tuple[Scene, list[str], list[str]]:
    """A scene of four objects, a phrase for each, and phrases of four objects that are not there."""
    kinds = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    chosen = [kinds[int(index)] for index in rng.permutation(len(kinds))[:8]]
    objects = tuple(
        SceneObject(shape, colour, "large", centre, 0.3)
        for (shape, colour), centre in zip(chosen, _CENTRES, strict=False)
    )
    phrases = [f"a {colour} {shape}" for shape, colour in chosen]
    return Scene(objects, "white"), phrases[:4], phrases[4:]


def listed(phrases: list[str]) -> str:
    """Phrases as a caption."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def completeness(scenes: int, seed: int) -> tuple[dict[str, list[tuple[float, float, float]]], Image.Image]:
    """Mean precision, recall and HICE-S: as right objects are added, then as wrong ones are; and the
    chart."""
    rng = np.random.default_rng([seed, 34])
    drawn = [four_objects(rng) for _ in range(scenes)]
    images = [draw(scene, 96) for scene, _, _ in drawn]
    metric = capeval_core.load("hices", weights="tiny")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name in ("right objects named", "wrong objects added to all four"):
        for count in range(1, 5):
            captions = [
                listed(right[:count] if name.startswith("right") else right + wrong[:count])
                for _, right, wrong in drawn
            ]
            result = metric.score(captions, images)
            means = (np.mean(result.parts["precision"]), np.mean(result.parts["recall"]), result.mean)
            found.setdefault(name, []).append(tuple(float(mean) for mean in means))  # type: ignore[arg-type]
    panels = {
        f"{name}: mean over {scenes} scenes": [
            Curve(part, [(count, values[index]) for count, values in enumerate(rows, start=1)])
            for index, part in enumerate(("precision", "recall", "HICE-S"))
        ]
        for name, rows in found.items()
    }
    return found, draw_curves(panels)


def layers(folder: Path) -> tuple[dict[int, tuple[float, float]], Image.Image]:
    """Kendall's tau-b and tau-c of ViLBERTScore after each co-attention block; and the chart."""
    judged = load_set("own", folder)
    visuals = find_visuals(folder / "images", judged.image_ids)
    architecture = capeval_core.load("vilbertscore", weights="tiny").weights_folder().config["architecture"]
    found = {}
    for layer in range(1, len(architecture["text_layers_before"]) + 1):
        metric = capeval_core.load("vilbertscore", weights="tiny", layer=layer - 1)
        cells = Judged(judged, SetScorer(judged, visuals).score(metric), draws=0).cells
        of_metric = cells["ViLBERTScore"]
        found[layer] = 100 * of_metric["tau_b"].value, 100 * of_metric["tau_c"].value
    curves = [
        Curve(name, [(layer, values[index]) for layer, values in found.items()])
        for index, name in enumerate(("tau-b", "tau-c"))
    ]
    return found, draw_curves({"ViLBERTScore by co-attention block, times 100": curves})


def main() -> None:
    parser = argparse.ArgumentParser(description="capeval judge on drawn scenes.")
    parser.add_argument("--scenes", type=int, default=150)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_graded(folder / "own", options.scenes, options.seed)
        images = str(folder / "own" / "images")
        common = ["--weights", "tiny", "--images", images]
        run = ["judge", "own", "--data", str(folder / "own"), "--out", str(folder / "out"), *common]
        assert capeval([*run, "--metrics", ",".join(METRICS)]) == 0
        pools = [
            "judge",
            "nice_pools",
            "--data",
            str(folder / "own"),
            "--out",
            str(folder / "pools"),
            *common,
        ]
        assert capeval([*pools, "--metrics", "pacs,hices,umic,eco", "--resamples", "0"]) == 0
        tables = {name: folder / name for name in ("out/own.md", "pools/nice_pools.md")}
        by_layer, layer_chart = layers(folder / "own")
        of_objects, chart = completeness(options.scenes, options.seed)
        command = f"python -m benchmarks.judge_scenes --scenes {options.scenes} --seed {options.seed}"
        sections = [
            f"`{command}`, {datetime.now(UTC):%Y-%m-%d}: all weights tiny. Charts beside it.",
            "# Captions with 0 to 4 errors",
            tables["out/own.md"].read_text(encoding="utf-8").split("## Differences")[0],
            "# The captions that metrics choose of pools with 0 to 4 errors",
            tables["pools/nice_pools.md"].read_text(encoding="utf-8").split("Signatures")[0],
            "# HICE-S as objects are added",
            "| captions | objects | precision | recall | HICE-S |\n| --- | --- | --- | --- | --- |",
        ]
        rows = [
            f"| {name} | {count} | {' | '.join(f'{value:.3f}' for value in values)} |"
            for name, of_name in of_objects.items()
            for count, values in enumerate(of_name, start=1)
        ]
        rows += [
            "\n# ViLBERTScore by co-attention block\n",
            "| block | tau-b | tau-c |",
            "| --- | --- | --- |",
        ]
        rows += [f"| {layer} | {b:.2f} | {c:.2f} |" for layer, (b, c) in by_layer.items()]
        text = "\n\n".join(sections) + "\n" + "\n".join(rows) + "\n"
        (options.out / "judge_scenes.md").write_text(text, encoding="utf-8")
        (options.out / "judge_scenes.png").write_bytes((folder / "out" / "own.png").read_bytes())
        (options.out / "judge_scenes_scores.png").write_bytes(
            (folder / "out" / "own-scores.png").read_bytes()
        )
        chart.save(options.out / "judge_scenes_objects.png", optimize=True)
        layer_chart.save(options.out / "judge_scenes_layers.png", optimize=True)


if __name__ == "__main__":
    main()
