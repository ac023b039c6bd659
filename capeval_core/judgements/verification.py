"""Checks that weights are the published ones, by checksum, canary, and the numbers that papers print."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from capeval_core.errors import FileError
from capeval_core.inputs.files import load_json
from capeval_core.judgements.hub_sets import IMAGES, fetched_set
from capeval_core.judgements.scoring import SetScorer
from capeval_core.judgements.sets import find_visuals, load_set, set_entry
from capeval_core.judgements.tables import PUBLISHED, Judged, published
from capeval_core.metric import CaptionMetric
from capeval_core.store import cache_home

_SET = "flickr8k_expert"
_SET_TOLERANCE = 0.15  # of tau times 100: decoders of JPEG differ in the last bits


class Check(NamedTuple):
    """One thing that was verified: what, the verdict (`ok`, `FAIL`, `not checked`), and its reason in words;
    where it is a number, the number and the published one."""

    what: str
    verdict: str
    found: str
    value: float | None = None
    published: float | None = None


def verify(
    metric: CaptionMetric, data: Path | None, images: Path | None, *, published_weights: bool
) -> Iterator[Check]:
    """Check an open metric, whose weights were checked as they were opened.

    data: folder with `example_dogs` (or `pacscore` and `clipscore`) and sets; None: what was fetched.
    images: of Flickr8k. published_weights: whether the published numbers are of these weights.
    """
    if metric.default_weights is None:
        yield Check("weights", "not checked", f"{metric.name} has none")
    else:
        folder = metric.folder
        config = folder.config
        checksum = f"sha256 {folder.checksum[:16]}... of {folder.tensor_file.name}"
        if folder.tensor_file.name in config.get("checksum", {}):
            # Opening refused any other: what is open has the recorded one.
            yield Check("checksum", "ok", checksum)
        else:
            yield Check("checksum", "not checked", f"{checksum}; the config records none")
        if config.get("canary"):
            yield Check("canary", "ok", "the outputs that are stored with the weights came out again")
        else:
            yield Check("canary", "not checked", "the config stores none")
    # Of other weights a distance from published numbers is no fault, and must not read as one.
    if published_weights:
        yield from _examples(metric, data)
        yield from _flickr(metric, data, images)
    else:
        reason = "they are for the published weights, and these are others"
        yield Check("published values", "not checked", reason)


def _examples(metric: CaptionMetric, data: Path | None) -> Iterator[Check]:
    name = example_of(type(metric))
    if name is None:
        yield Check("two photographs", "not checked", f"no values are published for {metric.title}")
        return
    example = PUBLISHED["example_dogs"][name]
    places = [example_place(name)]
    if data is not None:  # what a user names comes in place of what was fetched, never mixed with it
        places = [data / "example_dogs" / name, data / name]
    folder = None
    for place in places:
        if folder is None and place.is_dir():
            folder = place
    if folder is None:
        files = "image1.jpg, image2.jpg, refs.json, good_captions, bad_captions"
        reason = f"fetch them by --accept, or name a folder with {name}/ by --data ({files})"
        yield Check("two photographs", "not checked", reason)
        return
    for kind, expected in zip(("good", "bad"), example["means"][metric.name], strict=True):
        captions = load_json(folder / f"{kind}_captions.json")
        references = load_json(folder / "refs.json")
        texts = None
        if metric.needs_references:
            texts = [references[image] for image in captions]
        visuals = None
        if metric.media:
            paths = find_visuals(folder, list(captions))
            visuals = [paths[image] for image in captions]
        mean = metric.score(list(captions.values()), visuals, texts).mean
        verdict = "ok" if abs(mean - expected) <= example["tolerance"] else "FAIL"
        distance = f"{mean - expected:+.4f}; README of {example['source']} repository"
        numbers = f"{mean:.4f}, published {expected:.4f} ({distance})"
        yield Check(f"two photographs, {kind} captions", verdict, numbers, mean, expected)


def example_of(metric: type[CaptionMetric]) -> str | None:
    """The two photographs for which a metric has published values, by the name of their folder."""
    for name, example in PUBLISHED["example_dogs"].items():
        if metric.name in example["means"]:
            folder: str = name
            return folder
    return None


def example_place(name: str) -> Path:
    """The folder of two photographs once they were fetched."""
    return cache_home() / "examples" / name


def _flickr(metric: CaptionMetric, data: Path | None, images: Path | None) -> Iterator[Check]:
    title = set_entry(_SET).title
    fetched = fetched_set(set_entry(_SET))
    if data is None and fetched is not None:
        data = fetched
        images = images or fetched / IMAGES
    # Asked before the set: without a published value there is nothing that hours of scoring could check.
    if not published(_SET, metric.title, "tau_b") and not published(_SET, metric.title, "tau_c"):
        yield Check(title, "not checked", f"no values are published for {metric.title}")
        return
    if data is None or (metric.media and images is None):
        needed = "--data" if not metric.media else "--data and --images, the photographs of Flickr8k,"
        reason = f"run `capeval fetch {_SET}`, or name {needed} to compute its table"
        yield Check(title, "not checked", reason)
        return
    try:
        judged = load_set(_SET, data)
    except FileError as error:
        # `--data` may be a folder of the photographs' example alone, which has been checked by now.
        yield Check(title, "not checked", str(error))
        return
    visuals = {} if images is None else find_visuals(images, judged.image_ids)
    scores = SetScorer(judged, visuals, progress=True).score(metric)
    for entry in Judged(judged, scores, draws=0).entries:
        if math.isfinite(entry.distance):
            numbers = (
                f"{entry.value:.3f}, published {entry.published} ({entry.distance:+.3f}); {entry.source}"
            )
            verdict = "ok" if abs(entry.distance) <= _SET_TOLERANCE else "FAIL"
            what = f"{title}, {entry.metric} {entry.column}"
            yield Check(what, verdict, numbers, entry.value, entry.value - entry.distance)
