"""Whether weights are the published ones: their checksum, their canary, and the numbers that papers print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capeval_core.errors import FileError
from capeval_core.inputs.text_files import load_json
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.published import published
from capeval_core.judgements.scoring import SetScorer
from capeval_core.judgements.sets import find_visuals, load_set, set_entry
from capeval_core.metric import CaptionMetric

_Verdict = Literal["ok", "FAIL", "not checked"]
_MEANS = {
    ("pacscore", "PAC-S"): {
        "pacs": (0.8264, 0.5772),
        "refpacs": (0.8393, 0.6357),
        "bleu": (0.3503, 0.0),
        "rougel": (0.5012, 0.3268),
        "ciderd": (1.4918, 0.4259),
    },
    ("clipscore", "CLIPScore"): {"clips": (0.8584, 0.7153), "refclips": (0.8450, 0.7253)},
}
_EXAMPLES: Mapping[str, tuple[str, Mapping[str, float], str]] = {
    metric: (folder, {"good_captions": good, "bad_captions": bad}, f"README of {title}'s repository")
    for (folder, title), means in _MEANS.items()
    for metric, (good, bad) in means.items()
}
"""Published means over two photographs: folder of the set, the mean of each file of captions, the source."""
_TOLERANCE = {"pacscore": 5e-4, "clipscore": 1e-3}  # CLIPScore's were computed in half precision
_SET = "flickr8k_expert"
_SET_TOLERANCE = 0.15  # of tau times 100: decoders of JPEG differ in the last bits


@dataclass(frozen=True)
class Check:
    """One thing that was verified: what, the verdict, and what was found."""

    what: str
    verdict: _Verdict
    found: str


def verify(
    metric: CaptionMetric, data: Path | None, images: Path | None, *, published_weights: bool
) -> Iterator[Check]:
    """Check an open metric, whose weights were checked as they were opened.

    Args:
        data: folder with `example_dogs` (or `pacscore` and `clipscore`) and sets; None: there is none.
        images: of Flickr8k. published_weights: whether the published numbers are of these weights.
    """
    yield from _weights(metric)
    if not published_weights:
        yield Check(
            "published values", "not checked", "they are for the published weights, and these are others"
        )
        return
    yield from _examples(metric, data)
    yield from _flickr(metric, data, images)


def _weights(metric: CaptionMetric) -> Iterator[Check]:
    if metric.default_weights is None:
        yield Check("weights", "not checked", f"{metric.name} has none")
        return
    folder = metric.weights_folder()
    found = f"sha256 {folder.checksum[:16]}... of {folder.tensor_file.name}"
    if folder.tensor_file.name in folder.config.get("checksum", {}):
        yield Check("checksum", "ok", found)
    else:
        yield Check("checksum", "not checked", f"{found}; the config records none")
    if folder.config.get("canary"):
        yield Check("canary", "ok", "the outputs that are stored with the weights came out again")
    else:
        yield Check("canary", "not checked", "the config stores none")


def _examples(metric: CaptionMetric, data: Path | None) -> Iterator[Check]:
    if metric.name not in _EXAMPLES:
        yield Check("two photographs", "not checked", f"no values are published for {metric.title}")
        return
    name, means, source = _EXAMPLES[metric.name]
    places = [] if data is None else [data / "example_dogs" / name, data / name]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        files = ", ".join(["image1.jpg", "image2.jpg", "refs.json", *means])
        yield Check("two photographs", "not checked", f"name a folder with {name}/ by --data ({files})")
        return
    for captions_name, expected in means.items():
        captions, references = (load_json(folder / f"{file}.json") for file in (captions_name, "refs"))
        paths = find_visuals(folder, list(captions)) if metric.media else {}
        chosen = [references[image] for image in captions] if metric.needs_references else None
        visuals = [paths[image] for image in captions] if metric.media else None
        mean = metric.score(list(captions.values()), visuals, chosen).mean
        agrees = abs(mean - expected) <= _TOLERANCE[name]
        found = f"{mean:.4f}, published {expected:.4f} ({mean - expected:+.4f}; {source})"
        yield Check(f"two photographs, {captions_name.replace('_', ' ')}", "ok" if agrees else "FAIL", found)


def _flickr(metric: CaptionMetric, data: Path | None, images: Path | None) -> Iterator[Check]:
    title = set_entry(_SET).title
    cells = {column: published(_SET, metric.title, column) for column in ("tau_b", "tau_c")}
    if not any(cells.values()):
        yield Check(title, "not checked", f"no values are published for {metric.title}")
        return
    if data is None or (metric.media and images is None):
        needed = "--data" if not metric.media else "--data and --images, the photographs of Flickr8k,"
        yield Check(title, "not checked", f"name {needed} to compute its table")
        return
    try:
        judged = load_set(_SET, data)
    except FileError as error:
        yield Check(title, "not checked", str(error))
        return
    visuals = None if images is None else find_visuals(images, judged.image_ids)
    scores = SetScorer(judged, visuals, progress=True).score(metric)
    for entry in Judged(judged, scores, draws=0).entries:
        if entry.published is None or entry.distance is None:
            continue
        allowed = max(_SET_TOLERANCE, 0.5 * 10.0**-entry.published.digits)
        found = f"{entry.value:.3f}, published {entry.published.value} ({entry.distance:+.3f})"
        verdict: _Verdict = "ok" if abs(entry.distance) <= allowed else "FAIL"
        yield Check(f"{title}, {entry.label} {entry.column}", verdict, f"{found}; {entry.published.source}")
