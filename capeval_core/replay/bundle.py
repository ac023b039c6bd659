"""Bundles: a score with digests of every stage that it went through, and its replay."""

from __future__ import annotations

import base64
import hashlib
import math
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import features

from capeval_core.errors import InputError, Problem, at
from capeval_core.inputs.images import ImageError
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import unit
from capeval_core.metric import CaptionMetric, Reranker, prepared
from capeval_core.phrases.ptb import shared_words
from capeval_core.registry import load
from capeval_core.result import Result
from capeval_core.rows import canonical

_FORMAT, _TOLERANCE = 1, 1e-6
_LIBRARIES = ("numpy", "pillow", "torch", "tokenizers")
_STAGES = {
    "caption": "another caption",
    "references": "other references",
    "image": "another image",
    "pixels": "another decoder of image files",
    "resized": "another way of resizing",
    "tokens": "another tokenizer or prompt",
    "features": "other arithmetic",
    "values": "other arithmetic",
    "score": "another formula",
}
"""The stages in order, and what a first difference there most likely means."""
_NUMBERS = ("features", "values", "score")


def bundle_of(
    metric: CaptionMetric,
    samples: Samples,
    rows: pa.Table,
    result: Result,
    ids: Sequence[str] | None = None,
    *,
    texts: bool = False,
) -> dict[str, Any]:
    """Settings, versions, and per caption a line of its stages: six bytes of a digest each, or a number."""
    if isinstance(metric, Reranker):
        raise ValueError(f"bundle: {metric.name} chooses among captions, and a bundle has a score for each")
    ids = [str(index) for index in range(len(samples))] if ids is None else ids
    stages = _stages(metric, samples, rows) | {"score": [f"{score:.9g}" for score in result.scores]}
    recorded = [name for name, one in metric.Options.describe().items() if one.sign or one.encodes]
    options = {
        name: getattr(metric.options, name, None) for name in (*recorded, "weights", "regions", "phrases")
    }
    libraries = {name: version(name) for name in _LIBRARIES}
    return {
        "format": _FORMAT,
        "metric": metric.name,
        "media": metric.variant,
        "options": {name: own for name, own in options.items() if isinstance(own, (str, int, float))},
        "signature": result.signature,
        "models": {name: model.fingerprint for name, model in metric.models.items()},
        "versions": {**libraries, "libjpeg": features.version("jpg"), "Python": platform.python_version()},
        "mean": result.mean,
        "columns": ["id", *stages],
        "rows": list(map(" ".join, zip(map(_digest, ids), *stages.values(), strict=True))),
        **({"ids": ids, "captions": samples.captions, "references": samples.references} if texts else {}),
    }


class Replay(NamedTuple):
    """How a replay went.

    equal: whether all scores are, to 1e-6. stages: per stage the captions that differ there first. sentence:
    all that in words, with the likely reasons.
    """

    equal: bool
    stages: dict[str, list[int]]
    sentence: str


def check_bundle(bundle: Any) -> None:
    """Refuse what is no bundle of this format, and a damaged one."""
    fix, keys = "pass one of `result.bundle()` or `capeval score --bundle`", ("metric", "media", "options")
    if not isinstance(bundle, Mapping) or bundle.get("format") != _FORMAT:
        raise InputError(Problem(at("bundle"), "is no bundle of this version", fix))
    widths = {len(line.split(" ")) for line in bundle.get("rows", [])}
    if not {*keys, "signature", "models", "versions"} <= bundle.keys() or widths - {len(bundle["columns"])}:
        raise InputError(Problem(at("bundle"), "is damaged", fix))


def replay(
    bundle: Mapping[str, Any],
    captions: Sequence[str],
    images: Sequence[Any] | None = None,
    references: Sequence[Sequence[str] | str] | None = None,
    *,
    ids: Sequence[str] | None = None,
    **options: Any,
) -> Replay:
    """Compute the scores of a bundle again, and find the first stage that differs.

    captions, images, references: as for `metric.score`; `images` may be videos. ids: of images, by which
    captions are found in the bundle. options: in place of those of the bundle, such as `weights`.
    """
    check_bundle(bundle)
    metric = load(bundle["metric"], media=bundle["media"], **{**bundle["options"], **options})
    samples = metric.check(captions, images, references if metric.needs_references else None)
    metric = prepared(metric, samples)
    rows = canonical(metric.encode_all(samples))
    names = [str(row) for row in range(len(samples))] if ids is None else ids
    here = bundle_of(metric, samples, rows, metric.combine(rows), names)
    there, stages, lost, count = _by_caption(bundle), dict[str, list[int]](), 0, 0
    for row, (key, own) in enumerate(_by_caption(here).items()):
        other = there.pop(key, None)
        lost += other is None
        if other is not None and not _equal("score", own["score"], other["score"]):
            if own.get("pixels") == other.get("pixels"):
                other["image"] = own.get("image")  # the same picture in another file does no harm
            names_of_both = [name for name in _STAGES if name in own and name in other]
            first = next(name for name in names_of_both if not _equal(name, own[name], other[name]))
            stages.setdefault(first, []).append(row)
    stages = {name: stages[name] for name in _STAGES if name in stages}
    lines = [f"{lost + len(there):,} captions are in one of both alone"] if lost or there else []
    for name in stages:
        count += len(stages[name])
        shown = ", ".join(names[row] for row in stages[name][:3]) + ", ..." * (len(stages[name]) > 3)
        lines.append(f"{name} of {len(stages[name]):,} ({shown}): {_reason(name, bundle, here)}")
    outcome = f"{count:,} of {len(names):,} scores differ; what differs first:"
    outcome = outcome if count else f"{len(names) - lost:,} scores are equal to {_TOLERANCE:g}"
    return Replay(not lines, stages, "\n  ".join([outcome, *lines]))


def _by_caption(bundle: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """The stages of captions by the id of the image, and which of its captions each is."""
    counts, found = Counter[str](), {}
    for line in bundle["rows"]:
        row = dict(zip(bundle["columns"], line.split(" "), strict=True))
        counts[row["id"]] += 1
        found[row["id"], counts[row["id"]]] = row
    return found


def _equal(name: str, one: str, other: str) -> bool:
    """Whether a stage is equal, numbers nearly: those of features and values have fewer digits."""
    tolerance = _TOLERANCE if name == "score" else 1e-4
    if name not in _NUMBERS or one == other:
        return one == other
    pairs = zip(one.split(","), other.split(","), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=tolerance) for a, b in pairs)


def _reason(stage: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The likely reason of a first difference, with the settings and versions that differ."""
    if stage in ("caption", "references", "image"):
        return _STAGES[stage]
    parts = ([part.partition(":")[::2] for part in side["signature"].split("|")] for side in (there, here))
    sides = [{**dict(own), **side["versions"]} for own, side in zip(parts, (there, here), strict=True)]
    changes = [name for name in sides[0] if sides[0][name] != sides[1].get(name)]
    reason = "statistics of other texts" if changes == ["statistics"] else _STAGES[stage]
    reason = "other weights" if stage in _NUMBERS[:2] and there["models"] != here["models"] else reason
    listed = "; ".join(f"{name} {sides[0][name]} there, {sides[1].get(name)} here" for name in changes)
    return reason + f" ({listed})" * bool(listed)


def _stages(metric: Any, samples: Samples, rows: pa.Table) -> dict[str, list[str]]:
    references = samples.references or [[]] * len(samples)
    texts = [[caption, *own] for caption, own in zip(samples.captions, references, strict=True)]
    found = {
        "caption": [_digest(own[0]) for own in texts],
        "references": [_digest(*own[1:]) for own in texts],
    }
    if metric.media:
        images = {id(image.source): [*map(_digest, _contents(metric, image))] for image in samples.images}
        columns = zip(*(images[id(image.source)] for image in samples.images), strict=False)
        found |= zip(("image", "pixels", "resized"), map(list, columns), strict=False)
    if not metric.media:
        found["tokens"] = [_digest(*(word for text in own for word in shared_words(text))) for own in texts]
    elif hasattr(metric.encoder, "tokenizer"):
        prompt, encode = getattr(metric.options, "prompt", ""), metric.encoder.tokenizer.encode
        found["tokens"] = [_digest(str(encode([f"{prompt}{text}" for text in own]).ids)) for own in texts]
    if hasattr(metric, "text_features"):
        there = [part.features for part in metric.image_features(samples.images)]
        sides = unit(metric.text_features(samples.captions).features), unit(np.concatenate(there))
        waves = np.cos(np.arange(sides[0].shape[1]))
        found["features"] = [
            f"{a:.6g},{b:.6g}" for a, b in zip(*(side @ waves for side in sides), strict=True)
        ]
    raw = (
        np.array([*_numbers([*row.values()])]) for row in rows.drop_columns(["index", "group"]).to_pylist()
    )
    found["values"] = [f"{own @ np.cos(np.arange(len(own))):.6g}" for own in raw]
    return found


def _contents(metric: Any, image: Any) -> Iterator[str | bytes]:
    """An image's file, its pixels, and what the encoder takes of them."""
    try:
        yield image.key
        if image.medium == "image":
            picture = image.load()
            yield picture.convert("RGB").tobytes()
            if hasattr(metric.encoder, "preprocessing"):
                yield metric.encoder.preprocessing.pixels(picture).tobytes()
    except ImageError as error:
        yield from [str(error)] * 3


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in lists of lists."""
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, (int, float)):
        yield float(value)


def _digest(*parts: str | bytes) -> str:
    content = repr([part.encode() if isinstance(part, str) else part for part in parts]).encode()
    return base64.b64encode(hashlib.blake2b(content, digest_size=6).digest()).decode()
