"""BLEU, ROUGE-L, CIDEr and CIDEr-D beside pycocoevalcap on the same captions in one run: how fast, how equal.

    python -m benchmarks.ngram [REFERENCES.json CANDIDATES.json ...] [--repeats 3] [--out FILE.md]

REFERENCES is {image id: [references]}, each CANDIDATES {image id: caption} of one system; without them, drawn
scenes are described. Needs Java (`apt install default-jre-headless`) and pycocoevalcap (`pip install
'capeval[ngram]'`). Ours: texts are tokenised once, and BLEU, ROUGE-L, CIDEr and CIDEr-D computed with their
`Result`s. The baseline: pycocoevalcap's tokeniser (Java) and its Bleu, Rouge and Cider. Times are seconds on
the clock, the least of the repeats, each repeat one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.inputs.samples import check_samples
from capeval_core.integrations import CocoScores
from capeval_core.integrations.coco import check_java
from capeval_core.phrases import ptb
from capeval_core.registry import load
from capeval_core.scores.ngram import score_together
from tools.captions import describe
from tools.scenes import sample_scene

Texts = Mapping[str, Sequence[str]]
METRICS = ("bleu", "rougel", "ciderd", "cider")
PARTS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of some work, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def described_scenes(images: int, seed: int = 0) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Five references and a caption of each of so many drawn scenes."""
    rng = np.random.default_rng(seed)
    scenes = [sample_scene(rng) for _ in range(images)]
    references = {}
    captions = {}
    for i, scene in enumerate(scenes):
        caption, *texts = [describe(scene, rng) for _ in range(6)]
        references[str(i)] = texts
        captions[str(i)] = caption
    return references, captions


def theirs(gts: Texts, res: Texts) -> dict[str, Any]:
    """Tokens, values and scores by pycocoevalcap."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenizer = PTBTokenizer()

    def tokenized(texts: Texts) -> dict[str, list[str]]:
        annotations = {}
        for image_id, row in texts.items():
            annotations[image_id] = [{"caption": text} for text in row]
        tokens: dict[str, list[str]] = tokenizer.tokenize(annotations)
        return tokens

    references = tokenized(gts)
    captions = tokenized(res)
    values, scores = Bleu(4).compute_score(references, captions, verbose=0)
    numbers = {name: (values[n], np.array(scores[n])) for n, name in enumerate(PARTS[:4])}
    numbers["ROUGE_L"] = Rouge().compute_score(references, captions)
    numbers["CIDEr"] = Cider().compute_score(references, captions)
    return {"references": references, "captions": captions, "numbers": numbers}


def ours(gts: Texts, res: Texts) -> None:
    """All four metrics, from texts to results."""
    ptb._kept.cache_clear()  # of earlier repeats
    samples = check_samples(
        [row[0] for row in res.values()], None, list(gts.values()), needs_references=True, media=()
    )
    for result in score_together([load(name) for name in METRICS], samples):
        _ = result.mean


def report(system: str, gts: Texts, res: Texts, repeats: int) -> list[str]:
    """Lines of Markdown about one system."""
    times: list[tuple[float, float]] = []
    outputs: dict[str, Any] = {}
    for _ in range(repeats):  # in turn, since other programs may run beside
        with Path(os.devnull).open("w") as nowhere, silent(nowhere.fileno()):
            seconds, outputs = timed(lambda: theirs(gts, res))
        times.append((seconds, timed(lambda: ours(gts, res))[0]))
    seconds, our_seconds = (min(column) for column in zip(*times, strict=True))
    scores = CocoScores(gts, res)
    numbers: dict[str, tuple[float, Any]] = outputs["numbers"]
    lines = [
        f"## {system}: {len(res):,} captions, {sum(map(len, gts.values())):,} references",
        "",
        f"pycocoevalcap {seconds:.2f} s, ours {our_seconds:.2f} s: **{seconds / our_seconds:.1f} times**",
        "",
        "| | pycocoevalcap | ours | difference of the value | largest of one caption |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in PARTS:
        value, each = numbers[name]
        apart = float(np.abs(scores.arrays[name] - each).max())
        mine = scores.eval[name]
        lines.append(f"| {name} | {value:.5f} | {mine:.5f} | {abs(mine - value):.1e} | {apart:.1e} |")
    interval = scores.results["BLEU"].interval()
    lines += ["", f"BLEU-4 with its interval: {interval.low:.4f} to {interval.high:.4f} (95%).", ""]
    return lines


@contextlib.contextmanager
def silent(nowhere: int) -> Any:
    """Without what programs in Java write to the terminal."""
    stderr = os.dup(2)
    os.dup2(nowhere, 2)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ngram", description=__doc__.splitlines()[0])
    parser.add_argument("references", nargs="?", type=Path)
    parser.add_argument("candidates", nargs="*", type=Path)
    parser.add_argument("--images", type=int, default=5000, help="drawn scenes, where no files are given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    check_java(["METEOR"])
    read: Callable[[Path], Any] = lambda path: json.loads(path.read_text(encoding="utf-8"))  # noqa: E731
    if flags.references is None:
        gts, captions = described_scenes(flags.images)
        systems = {"drawn scenes": captions}
    else:
        gts = read(flags.references)
        systems = {path.stem: read(path) for path in flags.candidates}
    lines = [
        "# BLEU, ROUGE-L and CIDEr beside pycocoevalcap",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, numpy {np.__version__}; "
        "see `benchmarks/ngram.py` for what is timed.",
        "",
    ]
    for system, captions in systems.items():
        lines += report(system, gts, {key: [captions[key]] for key in gts}, flags.repeats)
    text = "\n".join(lines).rstrip() + "\n"
    print(text, end="")
    if flags.out:
        flags.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
