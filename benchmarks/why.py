"""`why` and `replay` put to the test: blind variants, unknown ones, and injected faults.

    python -m benchmarks.why [--seed 0]

A case is a variant of known switches, one or two, of a metric on 300 drawn captions: `why` gets its scores,
or its mean with four digits, and has to name it. Cases of the second kind are made by changes that are not in
the table: naming a variant for sure is wrong. Faults change one thing between a bundle and its replay, which
has to name the stage. `benchmarks/why.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

CAPTIONS, IMAGES, CASES, PAIRS, UNKNOWN = 300, 60, 200, 70, 50
METRICS = ("pacs", "refpacs", "bleu", "rougel", "ciderd")
_COLOURS = ["red", "green", "blue", "yellow", "white", "black", "orange", "purple"]
_THINGS = ["circle", "square", "star", "heart", "triangle", "dog", "cat", "man", "woman", "car", "child"]
_ENDS = (".", "", "!", ". It doesn't move.", ", seen from above.", " .")


def inputs(folder: Path, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Captions as people and models write them, JPEGs (some with EXIF, two broken), 2 to 6 references."""
    paths = []
    for number in range(IMAGES):
        coarse = rng.integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((160 + 8 * (number % 5), 120), Image.Resampling.BICUBIC)
        for _ in range(3):
            x, y = rng.integers(0, 120), rng.integers(0, 80)
            ImageDraw.Draw(image).ellipse((x, y, x + 40, y + 30), fill=_COLOURS[rng.integers(8)])
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 7 == 0 else 1
        paths.append(folder / f"{rng.integers(10**6)}-{number}.jpg")
        image.save(paths[-1], quality=92, exif=exif)
        if number % 29 == 28:
            paths[-1].write_bytes(paths[-1].read_bytes()[:200])

    def text() -> str:
        words = [
            f"{rng.choice(['a', 'two', 'the'])} {rng.choice(_COLOURS)} {rng.choice(_THINGS)}"
            for _ in range(3)
        ]
        whole = f" {rng.choice(['and', 'above', 'near'])} ".join(words[: rng.integers(1, 4)])
        return str(whole.capitalize() + rng.choice(_ENDS))

    owner = [int(one) for one in rng.integers(0, IMAGES, CAPTIONS)]
    references = [[text() for _ in range(2 + number % 5)] for number in range(IMAGES)]
    captions = [f" {text()}" if row % 9 == 0 else text() for row in range(CAPTIONS)]
    for row in range(0, CAPTIONS, 11):
        captions[row] = references[owner[row]][0]
    for row in range(5, CAPTIONS, 23):
        captions[row] = " and ".join(text() for _ in range(14))
    for row in range(7, CAPTIONS - 1, 31):
        captions[row + 1], owner[row + 1] = captions[row], owner[row]
    return {
        "captions": captions,
        "images": [paths[one] for one in owner],
        "references": [references[one] for one in owner],
        "ids": [paths[one].stem for one in owner],
    }


def searches(given: dict[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """Each metric with its variants, which are computed once for all cases."""
    import capeval_core
    from capeval_core.replay.why import Search

    for name in METRICS:
        neural = name in ("pacs", "refpacs")
        options: dict[str, Any] = {"weights": "tiny"} if neural else {}
        metric = capeval_core.load(name, on_error="nan", **options)
        references = given["references"] if metric.needs_references else None
        search: Any = Search(
            metric,
            metric.check(given["captions"], given["images"] if neural else None, references),
            given["ids"],
        )
        search.scored = cache(search.scored)
        yield name, search


def digits(number: float) -> str:
    """Four digits that count, as a table prints them."""
    return np.format_float_positional(number, precision=4, fractional=False, trim="k")


def differs(search: Any, variant: Any, of_set: bool) -> bool:
    """Whether a variant changes the numbers at all, beside each variant that has fewer switches."""
    own = search.scored(variant)
    for other in [(), *([(one,) for one in variant] if len(variant) > 1 else [])]:
        with np.errstate(all="ignore"):
            beside = search.scored(other)
        if of_set and abs(own.mean - beside.mean) < 1e-9:
            return False
        if not of_set and np.allclose(own.scores, beside.scores, atol=1e-5, rtol=1e-5, equal_nan=True):
            return False
    return bool(np.isfinite(own.scores).any())


def blind(all_searches: dict[str, Any], rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """Variants to guess: single ones of every metric, then pairs."""
    singles = [
        (s, (one,))
        for s in all_searches.values()
        for one in s.switches
        if differs(s, (one,), True) or differs(s, (one,), False)
    ]
    chosen = [singles[i] for i in rng.permutation(len(singles))]
    seen: set[str] = set()
    chosen.sort(key=lambda case: case[1][0].name in seen or bool(seen.add(case[1][0].name)))
    cases = chosen[: CASES - PAIRS]
    while len(cases) < CASES:
        search = list(all_searches.values())[rng.integers(len(all_searches))]
        a, b = (search.switches[i] for i in sorted(rng.choice(len(search.switches), 2, replace=False)))
        if a.group != b.group and b.step < 7 and differs(search, (a, b), False):
            cases.append((search, (a, b)))
    return cases


def unknown(all_searches: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Scores by changes that no switch is."""
    from capeval_core.replay.variants import CAPTIONS as TEXT
    from capeval_core.replay.variants import IMAGES as PICTURE
    from capeval_core.replay.variants import SCORES, Scored, Switch

    changes: list[tuple[int, Callable[..., Any]]] = [
        *((TEXT, lambda text, n=n: " ".join(text.split()[n:]) or text) for n in (1, 2)),
        *((TEXT, lambda text, n=n: " ".join(text.split()[:n])) for n in (3, 4, 5)),
        *((TEXT, lambda text, w=w: text.replace(w, "")) for w in ("a", "e", "the", "and")),
        (TEXT, lambda text: " ".join(reversed(text.split()))),
        *(
            (PICTURE, lambda image, n, r=r: image.convert("RGB").filter(ImageFilter.GaussianBlur(r)))
            for r in (1, 2)
        ),
        *((PICTURE, lambda image, n, a=a: image.convert("RGB").rotate(a)) for a in (2, 90)),
        (PICTURE, lambda image, n: image.convert("RGB").point(lambda value: value // 2)),
        *((SCORES, lambda scored, case, p=p: Scored(np.abs(scored.scores) ** p)) for p in (0.5, 2)),
        *((SCORES, lambda scored, case, a=a: Scored(scored.scores + a)) for a in (0.01, -0.2)),
        *((SCORES, lambda scored, case, f=f: Scored(scored.scores * f)) for f in (0.97, 1.5)),
    ]
    made = 0
    for search in list(all_searches.values())[:2] * 2 + list(all_searches.values())[2:]:
        for number, (step, change) in enumerate(changes):
            variant = (Switch(f"unknown {number}", "", change, step, "", "unknown"),)
            if made < UNKNOWN and (step != PICTURE or search.metric.media) and differs(search, variant, True):
                made += 1
                yield search, variant


def faults(
    given: dict[str, list[Any]], folder: Path
) -> Iterator[tuple[str, str, str, Any, dict[str, Any], dict[str, Any]]]:
    """Name, stage, metric, a patch, other inputs and other options of 20 faults."""
    import capeval_core
    from capeval_core.encoders import preprocessing
    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.encoders.tokenizers import ClipTokenizer
    from capeval_core.inputs import images
    from capeval_core.matching.cosine import harmonic_mean

    def other(column: str, row: int, value: Any) -> dict[str, Any]:
        return {column: [value if index == row else own for index, own in enumerate(given[column])]}

    def decoded(change: Callable[[Any], Any]) -> Any:
        own = images._decode
        return mock.patch.object(images, "_decode", lambda *how: change(own(*how)))

    def square(change: Callable[..., Any]) -> Any:
        return mock.patch.object(preprocessing, "square_pixels", change)

    def tokens(change: Callable[[str], str]) -> Any:
        own = ClipTokenizer.encode
        return mock.patch.object(
            ClipTokenizer, "encode", lambda self, texts: own(self, list(map(change, texts)))
        )

    encoder: Any = copy.copy(capeval_core.load("pacs", weights="tiny").encoder)
    tensors = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    tensors["text_projection"].view(-1).view(dtype=__import__("torch").int32)[7] ^= 1 << 24
    config = {name: own for name, own in encoder.config.items() if name != "canary"}
    ClipEncoder(config, tensors, device="cpu").save_pretrained(folder / "flipped")
    first, again = given["images"][4], folder / "again.jpg"
    Image.open(first).save(again, quality=60)
    marked = Image.open(first).convert("RGB")
    ImageDraw.Draw(marked).rectangle((20, 20, 60, 60), fill="red")
    marked.save(folder / "marked.png")
    pick, cut, none = images.square_pixels, given["captions"][5][:9], nullcontext()
    swapped = [given["captions"][1], given["captions"][0], *given["captions"][2:]]
    yield "an edited caption", "caption", "refpacs", none, other("captions", 3, "A dog."), {}
    yield "a caption cut", "caption", "pacs", none, other("captions", 5, cut), {}
    yield "two captions swapped", "caption", "rougel", none, {"captions": swapped}, {}
    yield "an edited reference", "references", "refpacs", none, other("references", 3, ["A dog."]), {}
    yield (
        "a swapped reference",
        "references",
        "ciderd",
        none,
        other("references", 3, given["references"][9]),
        {},
    )
    yield (
        "a reference left out",
        "references",
        "bleu",
        none,
        other("references", 6, given["references"][6][-1:]),
        {},
    )
    yield "JPEG again", "image", "pacs", none, other("images", 4, again), {}
    yield "another image", "image", "pacs", none, other("images", 4, given["images"][9]), {}
    yield "a mark in an image", "image", "refpacs", none, other("images", 4, folder / "marked.png"), {}
    yield (
        "a blurring decoder",
        "pixels",
        "pacs",
        decoded(lambda image: image.filter(ImageFilter.BoxBlur(1))),
        {},
        {},
    )
    yield (
        "a brighter decoder",
        "pixels",
        "refpacs",
        decoded(lambda image: image.point(lambda v: min(v + 2, 255))),
        {},
        {},
    )
    yield (
        "a decoder of fewer colours",
        "pixels",
        "pacs",
        decoded(lambda image: image.quantize(32).convert("RGB")),
        {},
        {},
    )
    yield (
        "a bilinear resize",
        "resized",
        "pacs",
        square(lambda i, n, m: pick(i, n, Image.Resampling.BILINEAR)),
        {},
        {},
    )
    yield (
        "a crop off by one",
        "resized",
        "refpacs",
        square(lambda *how: np.roll(pick(*how), 1, axis=2)),
        {},
        {},
    )
    yield (
        "a resize of the height first",
        "resized",
        "pacs",
        square(lambda i, n, m: pick(i.transpose(5), n, m).transpose(0, 2, 1).copy()),
        {},
        {},
    )
    yield "other white space", "tokens", "pacs", tokens(lambda text: text.replace("d ", "d")), {}, {}
    yield "another prompt", "tokens", "refpacs", none, {}, {"prompt": "A picture of "}
    yield "a flipped bit of a weight", "features", "pacs", none, {}, {"weights": str(folder / "flipped")}
    yield "another w", "score", "pacs", none, {}, {"w": 2.5}
    formula = mock.patch(
        "capeval_core.scores.pac.ref_pac_score", lambda a, b, released: harmonic_mean(a, np.abs(b)) * 1.01
    )
    yield "another formula", "score", "refpacs", formula, {}, {}


def replayed(given: dict[str, list[Any]], folder: Path) -> list[str]:
    """A line for each fault: its stage, and the one that the replay names."""
    import capeval_core
    from capeval_core.cache import FeatureCache
    from capeval_core.replay.bundle import replay

    sound = [row for row, path in enumerate(given["images"]) if path.stat().st_size > 200][:60]
    few = {name: [values[row] for row in sound] for name, values in given.items()}
    lines = []
    for name, stage, metric, patch, inputs_, options in faults(few, folder):
        neural = metric in ("pacs", "refpacs")
        tiny: dict[str, Any] = {"weights": "tiny", "cache": FeatureCache()} if neural else {}
        opened = capeval_core.load(metric, evidence=True, **tiny)
        wants = ("captions", "images", "references")
        bundle = opened.score(*(few[one] if one != "images" or neural else None for one in wants)).bundle()
        changed = {**few, **inputs_}
        context: AbstractContextManager[Any] = patch
        with context:
            more = {**({"cache": FeatureCache()} if neural else {}), **options}
            outcome = replay(
                bundle, *(changed[one] if one != "images" or neural else None for one in wants), **more
            )
        named = next(iter(outcome.stages), "none")
        lines.append(f"| {name} | {stage} | {named} | {'yes' if named == stage else 'NO'} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    rng = np.random.default_rng(parser.parse_args().seed)
    from capeval_core.replay.why import title

    with tempfile.TemporaryDirectory() as name:
        given = inputs(Path(name), rng)
        found = dict(searches(given))
        right, top, sets, slowest = 0, 0, 0, 0.0
        cases = blind(found, rng)
        files = 0
        for search, variant in cases:
            scored = search.scored(variant)
            started = time.process_time()
            if differs(search, variant, False):
                files += 1
                outcome = search.explain(scored.scores.tolist())
                ok = (
                    any(title(variant) in names for names in outcome.remaining)
                    and len(outcome.remaining) == 1
                )
                right += ok
                print(
                    search.metric.name,
                    title(variant),
                    "ok" if ok else f"WRONG {outcome.remaining[:3]}",
                    flush=True,
                )
            slowest = max(slowest, time.process_time() - started)
            if differs(search, variant, True):
                sets += 1
                outcome = search.explain(digits(scored.mean))
                top += (
                    any(title(variant) in names for names in outcome.remaining)
                    and len(outcome.remaining) <= 3
                )
        wrong = 0
        others = list(unknown(found))
        for search, variant in others:
            scored = search.scored(variant)
            wrong += sum(
                search.explain(one).variant is not None
                for one in (scored.scores.tolist(), digits(scored.mean))
            )
        lines = replayed(given, Path(name))
    named = {one.name for _, variant in cases for one in variant}
    report = [
        f"# why and replay, {datetime.date.today()}",
        "",
        f"{CASES} blind cases ({CASES - PAIRS} single switches, {PAIRS} pairs; {len(named)} switches; "
        f"{', '.join(METRICS)}; {CAPTIONS} captions):",
        f"- from scores per caption: {right} of {files} exact ({right / files:.1%})",
        f"- from a mean of four digits: {top} of {sets} among at most three that remain ({top / sets:.1%})",
        f"- slowest search from scores, after single variants are encoded: {slowest:.1f} s of CPU",
        f"- {len(others)} cases by changes outside of the table, by scores and means: {wrong} named for sure",
        "",
        "| fault | stage | named | right |",
        "| --- | --- | --- | --- |",
        *lines,
    ]
    print("\n".join(report))
    Path(__file__).with_suffix(".md").write_text("\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
