"""`why` and `replay` put to the test: blind variants, unknown ones, and injected faults.

    python -m benchmarks.why [--seed 0]

A case is a known variant, of one or two switches, of a metric on 300 captions of drawn scenes: `why` gets its
scores, or its mean in four digits, and has to name it. Unknown cases are made by changes that are not in the
table: naming a variant for sure is wrong. Faults change one thing between a bundle and its replay, which has
to name the stage. `benchmarks/results/why.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image, ImageFilter

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.encoders import preprocessing
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.inputs import images
from capeval_core.replay.bundle import bundle_of, replay
from capeval_core.replay.variants import Step, Switch
from capeval_core.replay.why import Search
from capeval_core.scores import pac
from tools.captions import describe
from tools.exactness import RESULTS
from tools.scenes import draw, sample_scene

CAPTIONS = 300
IMAGES = 40
CASES = 200
PAIRS = 70
UNKNOWN = 50
COLUMNS = ("captions", "images", "references")
METRICS = ("refpacs", "bleu", "rougel", "ciderd")
ENDS = (".", "", "!", ". It doesn't move.", ", seen from above.", " .")
Inputs = dict[str, list[Any]]


def inputs(folder: Path, rng: np.random.Generator) -> Inputs:
    """Captions as people and models write them, JPEGs (some with EXIF, one broken), 2 to 6 references."""
    scenes = [sample_scene(rng) for _ in range(IMAGES)]
    paths = [folder / f"{rng.integers(10**6)}-{number}.jpg" for number in range(IMAGES)]
    for number, (scene, path) in enumerate(zip(scenes, paths, strict=True)):
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 7 == 0 else 1
        draw(scene, 160).crop((0, 0, 160, 112 + 8 * (number % 5))).save(path, quality=92, exif=exif)
        if number % 29 == 28:
            path.write_bytes(path.read_bytes()[:200])

    def text(scene: Any) -> str:
        return describe(scene, rng).capitalize() + str(rng.choice(ENDS))

    owner = rng.integers(0, IMAGES, CAPTIONS).tolist()
    owner[8::31] = owner[7::31][: len(owner[8::31])]

    def texts(scene: Any, count: int) -> list[str]:
        return [text(scene) for _ in range(count)]

    references = [texts(scene, 2 + number % 5) for number, scene in enumerate(scenes)]
    captions = []
    for row, image in enumerate(owner):
        blank = " " if row % 9 == 0 else ""
        captions.append(blank + text(scenes[image]))
    captions[::11] = [references[image][0] for image in owner[::11]]
    captions[5::23] = [" and ".join(texts(scenes[image], 14)) for image in owner[5::23]]
    captions[8::31] = captions[7::31][: len(captions[8::31])]
    columns: Inputs = {"images": paths, "references": references, "ids": [path.stem for path in paths]}
    data: Inputs = {"captions": captions}
    for name, values in columns.items():
        data[name] = [values[image] for image in owner]
    return data


def arguments(metric: Any, data: Inputs) -> list[Any]:
    is_needed = (True, bool(metric.media), metric.needs_references)
    return [data[name] if needed else None for name, needed in zip(COLUMNS, is_needed, strict=True)]


def opened(name: str, **options: Any) -> Any:
    tiny: Any = {"weights": "tiny", "cache": FeatureCache()} if "pacs" in name else {}
    return capeval_core.load(name, **tiny, **options)


def searches(data: Inputs) -> list[Any]:
    """A search for each metric, whose variants are computed once for all cases."""
    all_searches = list[Any]()
    for metric in (opened(name, on_error="nan") for name in METRICS):
        all_searches.append(Search(metric, metric.check(*arguments(metric, data)), data["ids"]))
        all_searches[-1].scored = cache(all_searches[-1].scored)
    return all_searches


def differs(search: Any, variant: Any, of_set: bool) -> bool:
    """True if a variant changes the numbers at all, next to each variant that has fewer switches."""
    case = search.scored(variant)
    fewer = [()]
    if len(variant) > 1:
        fewer += [(switch,) for switch in variant]
    simpler_cases = [search.scored(simpler) for simpler in fewer]
    if of_set:
        return all(abs(case.mean - simpler.mean) > 1e-9 for simpler in simpler_cases)
    return not any(
        np.allclose(case.scores, simpler.scores, 1e-5, 1e-5, equal_nan=True) for simpler in simpler_cases
    )


def blind(all_searches: list[Any], rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """Variants to guess: single ones, each switch once before any comes again, then pairs."""
    singles: list[tuple[Any, Any]] = []
    for search in all_searches:
        for switch in search.switches:
            if differs(search, (switch,), True) or differs(search, (switch,), False):
                singles.append((search, (switch,)))
    shuffled = [singles[i] for i in rng.permutation(len(singles))]
    names = set[str]()
    is_repeated = list[bool]()
    for _, (switch,) in shuffled:
        is_repeated.append(switch.name in names)
        names.add(switch.name)
    cases = [shuffled[i] for i in np.argsort(is_repeated, kind="stable")][: CASES - PAIRS]
    while len(cases) < CASES:
        search = all_searches[rng.integers(len(all_searches))]
        places = sorted(rng.choice(len(search.switches), 2, replace=False))
        pair = first, second = tuple(search.switches[i] for i in places)
        if first.group != second.group and second.step != Step.NUMBER and differs(search, pair, False):
            cases.append((search, pair))
    return cases


def unknown(all_searches: list[Any]) -> list[tuple[Any, Any]]:
    """Variants by changes that no switch makes."""
    texts: list[Callable[[str], str]] = [
        *(lambda text, n=n: " ".join(text.split()[n:]) or text for n in (1, 2)),
        *(lambda text, n=n: " ".join(text.split()[:n]) for n in (3, 4)),
        *(lambda text, w=w: text.replace(w, "") for w in ("a", "e", "the")),
        lambda text: " ".join(reversed(text.split())),
    ]
    pictures: list[Callable[..., Any]] = [
        *(lambda image, n, r=r: image.filter(ImageFilter.GaussianBlur(r)) for r in (1, 2)),
        *(lambda image, n, a=a: image.rotate(a) for a in (2, 90)),
    ]
    scores: list[Callable[[Any], Any]] = [
        *(lambda scores, p=p: np.abs(scores) ** p for p in (0.5, 2)),
        *(lambda scores, a=a: scores + a for a in (0.01, -0.2)),
        *(lambda scores, f=f: scores * f for f in (0.97, 1.5)),
    ]
    cases = []
    for search in all_searches:
        changes: list[Any] = [(Step.ENCODED, lambda case, c=c: case.captions(c)) for c in texts]
        if search.case.metric.media:
            changes += [(Step.ENCODED, lambda case, c=c: case.images(c, f"{id(c)}")) for c in pictures]
        changes += [(Step.SCORED, lambda case, c=c: case.with_scores(c(case.scores))) for c in scores]
        variants = [(Switch("", "", change, step, "", ""),) for step, change in changes]
        cases.append([(search, variant) for variant in variants if differs(search, variant, True)])
    mixed = itertools.chain.from_iterable(itertools.zip_longest(*cases))
    return list(filter(None, mixed))[:UNKNOWN]


def faults(data: Inputs, folder: Path) -> Iterator[tuple[Any, ...]]:
    """Name, stage, metric, a patch, replaced inputs and replaced options of 20 faults."""

    def replaced(column: str, row: int, value: Any) -> tuple[Any, Inputs]:
        return nullcontext(), {column: [*data[column][:row], value, *data[column][row + 1 :]]}

    def patch(owner: Any, name: str, change: Callable[..., Any]) -> Any:
        original = getattr(owner, name)
        return mock.patch.object(owner, name, lambda *how, **options: change(original, *how, **options))

    def decoded(change: Callable[[Any], Any]) -> Any:
        return patch(images, "_decode", lambda decode, *how: change(decode(*how)))

    captions, paths, references, none = *(data[name] for name in COLUMNS), nullcontext()
    scores = opened("pacs").score(captions, paths).scores
    row = next(row for row in range(4, len(scores)) if scores[row] > 0.5)  # not 0, whatever it shows
    encoder: Any = capeval_core.load("pacs", weights="tiny").encoder
    tensors = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    tensors["text_projection"].view(-1).view(dtype=torch.int32)[7] ^= 1 << 24
    config = {name: value for name, value in encoder.config.items() if name != "canary"}
    ClipEncoder(config, tensors, device="cpu").save_pretrained(folder / "flipped")
    Image.open(paths[row]).save(folder / "again.jpg", quality=60)
    Image.open(paths[row]).convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(
        folder / "mirrored.png"
    )
    square = partial(patch, preprocessing, "square_pixels")
    swapped = [captions[1], captions[0], *captions[2:]]
    brighter = decoded(lambda image: image.point(lambda value: min(value + 2, 255)))
    bilinear = square(lambda original, image, n, method: original(image, n, Image.Resampling.BILINEAR))
    turned = square(
        lambda original, image, *how: (
            original(image.transpose(Image.Transpose.TRANSPOSE), *how).transpose(0, 2, 1).copy()
        )
    )

    def encode_with_stops(encode: Any, self: Any, texts: Sequence[str]) -> Any:
        return encode(self, [f"{text}." for text in texts])

    split = patch(ClipTokenizer, "encode", encode_with_stops)
    formula = patch(pac, "ref_pac_score", lambda original, *parts, released: original(*parts) * 1.01)
    yield "an edited caption", "caption", "refpacs", *replaced("captions", 3, "A dog.")
    yield "a caption cut", "caption", "pacs", *replaced("captions", 5, captions[5][:9])
    yield "two captions swapped", "caption", "rougel", none, {"captions": swapped}
    yield "an edited reference", "references", "refpacs", *replaced("references", 3, ["A dog."])
    yield "a swapped reference", "references", "ciderd", *replaced("references", 3, references[9])
    yield "a reference left out", "references", "bleu", *replaced("references", 6, references[6][-1:])
    yield "JPEG again", "image", "pacs", *replaced("images", row, folder / "again.jpg")
    yield "another image", "image", "pacs", *replaced("images", row, paths[row + 9])
    yield "an image mirrored", "image", "refpacs", *replaced("images", row, folder / "mirrored.png")
    yield "a blurring decoder", "pixels", "pacs", decoded(lambda image: image.filter(ImageFilter.BoxBlur(1)))
    yield "a brighter decoder", "pixels", "refpacs", brighter
    yield (
        "a decoder of fewer colours",
        "pixels",
        "pacs",
        decoded(lambda image: image.quantize(32).convert("RGB")),
    )
    yield "a bilinear resize", "resized", "pacs", bilinear
    shifted = square(lambda original, *how: np.roll(original(*how), 1, axis=2))
    yield "a crop off by one", "resized", "refpacs", shifted
    yield "a resize of the height first", "resized", "pacs", turned
    yield "another tokenizer", "tokens", "pacs", split
    yield "another prompt", "tokens", "refpacs", none, {}, {"prompt": "A picture of "}
    yield "a flipped bit of a weight", "features", "pacs", none, {}, {"weights": str(folder / "flipped")}
    yield "another w", "score", "pacs", none, {}, {"w": 2.5}
    yield "another formula", "score", "refpacs", formula


def replayed(data: Inputs, folder: Path) -> list[str]:
    """A line for each fault: its stage, and the one that the replay names."""
    sound = [row for row, path in enumerate(data["images"]) if path.stat().st_size > 200][:60]
    readable = {}
    for name, values in data.items():
        readable[name] = [values[row] for row in sound]
    lines = []
    for name, stage, metric, patch, *changes in faults(readable, folder):
        other_inputs, options = [*changes, {}, {}][:2]
        first = opened(metric, evidence=True)
        other_options = dict[str, Any](options)
        other_options |= {"cache": FeatureCache()} if "pacs" in metric else {}
        bundle = bundle_of(first.score(*arguments(first, readable)))
        with patch:
            stages = replay(bundle, *arguments(first, {**readable, **other_inputs}), **other_options).stages
        named = next(iter(stages), "none")
        lines.append(f"| {name} | {stage} | {named} | {'yes' if named == stage else 'NO'} |")
    return lines


def remaining(search: Any, variant: Any, theirs: Any) -> float:
    """The number of variants that remain; infinite if the true one does not."""
    groups = search.explain(theirs).remaining
    name = " + ".join(switch.name for switch in variant)
    return len(groups) if any(name in names for names in groups) else np.inf


def share(values: Sequence[float], most: int) -> str:
    count = sum(value <= most for value in values)
    return f"{count} of {len(values)} ({count / len(values):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    rng = np.random.default_rng(parser.parse_args().seed)
    started = time.process_time()
    tried = 0
    with tempfile.TemporaryDirectory() as name:
        data = inputs(Path(name), rng)
        all_searches = searches(data)
        for search in all_searches:  # every variant is encoded
            search.explain([12345.0] * CAPTIONS)
            tried += search.explain("12345").tried
        cases = blind(all_searches, rng)
        unknown_cases = unknown(all_searches)
        encoding = time.process_time() - started
        started = time.process_time()
        scores = [case for case in cases if differs(*case, False)]
        exact = [remaining(*case, case[0].scored(case[1]).scores.tolist()) for case in scores]
        means = [case for case in cases if differs(*case, True)]
        few = [remaining(*case, f"{case[0].scored(case[1]).mean:#.4g}") for case in means]
        changed_cases = [(search, search.scored(variant)) for search, variant in unknown_cases]
        sure = [search.explain(case.scores.tolist()).variant for search, case in changed_cases]
        sure += [search.explain(f"{case.mean:#.4g}").variant for search, case in changed_cases]
        seconds = time.process_time() - started
        lines = replayed(data, Path(name))
    switches = {switch.name for _, variant in cases for switch in variant}
    named = len(sure) - sure.count(None)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    report = f"""# `why` and `replay`

{datetime.date.today()}, {versions}; see `benchmarks/why.py`.

{CASES} blind cases: {CASES - PAIRS} single switches and {PAIRS} pairs, {len(switches)} switches in all, of
{", ".join(METRICS)} on {CAPTIONS} captions, {tried:,} variants:

- from a score for each caption the exact variant: {share(exact, 1)}
- from a mean of four digits at most three remain: {share(few, 3)}
- of {len(unknown_cases)} changes outside of the table, by scores and by means, named for sure: {named}
- all searches: {seconds:.0f} s of CPU, after {encoding:.0f} s in which all variants were encoded

| fault | stage | named | right |
| --- | --- | --- | --- |
"""
    (RESULTS / "why.md").write_text(report + "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
