"""Bundles: a score with digests of every stage that it went through, and its replay."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import features

from capeval_core.errors import InputError, Problem, at
from capeval_core.inputs.images import ImageError, Visual
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, Reranker, prepared
from capeval_core.models.rounding import OF_FORMULAS, rounding
from capeval_core.phrases.ptb import shared_words
from capeval_core.registry import current_signature, load
from capeval_core.result import Result
from capeval_core.rows import canonical

_FORMAT = 1
_STAGES = {
    "caption": "another caption",
    "references": "other references",
    "image": "another image",
    "pixels": "another decoder of image files",
    "resized": "another way of resizing",
    "tokens": "another tokenizer or prompt",
    "features": "other arithmetic",
    "parts": "another formula",
    "score": "another formula",
}
"""The stages in order, and the likely reason of a first difference there."""
_NUMBERS = ("features", "parts", "score")
_SHARE = 1e-3  # of a score's difference, which a difference of features explains


def bundle_of(result: Result, ids: Any = None, *, texts: bool = False) -> dict[str, Any]:
    """A bundle for `capeval replay`, in JSON's types: settings, versions, and a line of stages per caption.

    A stage is six bytes of a digest, or a number. No image, and no text unless `texts`. ValueError if the
    result was made without `evidence=True`, or by a metric that chooses among captions.
    """
    if result.source is None:
        raise ValueError(f"a bundle needs the evidence: load({result.metric!r}, ..., evidence=True)")
    metric, samples, rows = result.source
    if isinstance(metric, Reranker):
        raise ValueError(f"bundle: {metric.name} chooses among captions, and a bundle has a score for each")
    ids = [str(index) for index in range(len(samples))] if ids is None else ids
    stages = _stages(metric, samples, rows)
    stages["parts"] = [f"{_sum_of(numbers):.9g}" for numbers in _parts(result)]
    stages["score"] = [f"{score:.9g}" for score in result.scores]
    versions = {name: version(name) for name in ("numpy", "pillow", "torch", "tokenizers")}
    return {
        "format": _FORMAT,
        "metric": metric.name,
        "media": metric.variant,
        "options": _options(metric),
        "signature": result.signature,
        "models": {name: model.fingerprint for name, model in metric.models.items()},
        "versions": {**versions, "libjpeg": features.version("jpg"), "Python": platform.python_version()},
        "mean": result.mean,
        "columns": ["id", *stages],
        "rows": list(map(" ".join, zip(map(_digest, ids), *stages.values(), strict=True))),
        **({"ids": ids, "captions": samples.captions, "references": samples.references} if texts else {}),
    }


def _options(metric: CaptionMetric) -> dict[str, str | int | float]:
    """The options of a metric that move its scores, as far as JSON can hold them."""
    names = {"weights", "regions", "phrases"}
    for name, description in metric.Options.describe().items():
        if description.sign or description.encodes:
            names.add(name)
    values = {name: value for name, value in vars(metric.options).items() if name in names}
    return {name: value for name, value in values.items() if isinstance(value, (str, int, float))}


def _stages(metric: CaptionMetric, samples: Samples, rows: pa.Table) -> dict[str, list[str]]:
    """The lines of the stages before the score: a digest of each caption's texts, image and token ids."""
    references = samples.references or [[]] * len(samples)
    stages = {"caption": list(map(_digest, samples.captions))}
    stages["references"] = [_digest(*row_references) for row_references in references]
    texts = []
    for caption, row_references in zip(samples.captions, references, strict=True):
        texts.append([caption, *row_references])
    if not metric.media:
        stages["tokens"] = list(map(_digest_of_words, texts))
    else:
        digests: dict[Any, list[str]] = {}
        for image in samples.images:  # rows of one image share a source
            if image.source not in digests:
                digests[image.source] = list(map(_digest, _contents(metric, image)))
        columns = zip(*(digests[image.source] for image in samples.images), strict=False)
        stages |= zip(("image", "pixels", "resized"), map(list, columns), strict=False)
        if hasattr(metric.encoder, "tokenizer"):
            prompt = getattr(metric.options, "prompt", "")
            stages["tokens"] = []
            for texts_of_row in texts:
                tokens = metric.encoder.tokenizer.encode([f"{prompt}{text}" for text in texts_of_row])
                stages["tokens"].append(_digest(str(tokens.ids)))
    stages["features"] = [f"{_sum_of(numbers):.9g}" for numbers in _features(rows)]
    return stages


def _digest_of_words(texts: list[str]) -> str:
    words: list[str] = []
    for text in texts:
        words += shared_words(text)
    return _digest(*words)


def _features(rows: pa.Table) -> list[list[float]]:
    """All numbers of each row."""
    table = rows.drop_columns(["index", "group"])
    return [list(_numbers(list(row.values()))) for row in table.to_pylist()]


def _parts(result: Result) -> list[list[float]]:
    """All numbers of the parts of each score."""
    rows = []
    for row in range(len(result)):
        values = [part[row] for part in result.parts.values()]
        rows.append(list(_numbers(values)))
    return rows


def _sum_of(numbers: list[float]) -> float:
    """A sum in which each place has another weight, so that exchanged numbers show."""
    return float(np.cos(np.arange(len(numbers))) @ numbers) if numbers else 0.0


def _contents(metric: CaptionMetric, image: Visual[Any]) -> Iterator[str | bytes]:
    """The file of an image, its pixels, and those that the encoder reads."""
    try:
        yield image.key
        if image.medium == "image":
            picture = image.load()
            yield picture.convert("RGB").tobytes()
            if hasattr(metric.encoder, "preprocessing"):
                yield metric.encoder.preprocessing.pixels(picture).tobytes()
    except ImageError as error:
        yield from [str(error)] * 3


def _numbers(value: object) -> Iterator[float]:
    """All numbers in lists of lists."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)):
        yield float(value)


def _digest(*parts: str | bytes) -> str:
    content = repr([part.encode() if isinstance(part, str) else part for part in parts]).encode()
    return base64.b64encode(hashlib.blake2b(content, digest_size=6).digest()).decode()


class Replay(NamedTuple):
    """The outcome of a replay.

    equal: whether the inputs, the parts and the scores of all captions are equal, numbers to the rounding of
    their arithmetic. equal_scores: whether at least all scores are, as they may be of other inputs. stages:
    per stage the captions that differ there first. sentence: all that in words, with the likely reasons.
    """

    equal: bool
    equal_scores: bool
    stages: dict[str, list[int]]
    sentence: str


def check_bundle(bundle: Any) -> None:
    """Refuse a value that is not a complete bundle of this version."""
    keys = {"format", "metric", "media", "options", "signature", "models", "versions", "columns", "rows"}
    is_bundle = isinstance(bundle, Mapping) and keys <= {*bundle} and bundle["format"] == _FORMAT
    if not is_bundle or {line.count(" ") for line in bundle["rows"]} - {len(bundle["columns"]) - 1}:
        fix = "pass one of `bundle_of(result)` or `capeval score --bundle`"
        raise InputError(Problem(at("bundle"), "is no bundle of this version, or damaged", fix))


def replay(
    bundle: Any, captions: Any, images: Any = None, references: Any = None, *, ids: Any = None, **options: Any
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
    ids = [str(row) for row in range(len(samples))] if ids is None else ids
    result = replace(metric.combine(rows), source=(metric, samples, rows))
    replayed = bundle_of(result, ids)
    ours = _table(replayed)
    ours["row"] = range(len(ours))
    theirs = _table(bundle)
    both = ours.merge(theirs, left_index=True, right_index=True, suffixes=("", " there"))
    rounded = OF_FORMULAS * rounding(_network(metric), _shared_dtype(metric, bundle))
    names = [name for name in _STAGES if f"{name} there" in both]
    equal = {name: both[name] == both[f"{name} there"] for name in names}
    lengths = {"features": _lengths(_features(rows)), "parts": _lengths(_parts(result))}
    lengths["score"] = np.abs(np.asarray(result.scores))
    difference: dict[str, Any] = {}
    for name in names:
        if name in _NUMBERS:
            difference[name] = (both[name].astype(float) - both[f"{name} there"].astype(float)).abs()
            equal[name] |= difference[name] <= rounded * np.fmax(lengths[name][both["row"]], 1)
    equal["features"] |= difference["features"] <= _SHARE * difference["score"]
    if "pixels" in equal:
        equal["image"] |= equal["pixels"]  # the same picture in another file does no harm
    stages = _first_differences(both, equal)
    equal_scores = bool(equal["score"].all())
    unequal_count = int((~equal["score"]).sum())
    lines = [_summary(len(both), unequal_count, sum(map(len, stages.values())), rounded)]
    lost = len(ours) + len(theirs) - 2 * len(both)
    if lost:
        lines.append(f"{lost:,} captions are in one of both alone")
    for name, differing in stages.items():
        listed = ", ".join(ids[row] for row in differing[:3])
        if len(differing) > 3:
            listed += ", ..."
        lines.append(f"{name} of {len(differing):,} ({listed}): {_reason(name, bundle, replayed)}")
    equal_scores = equal_scores and not lost
    return Replay(equal_scores and not stages, equal_scores, stages, "\n  ".join(lines))


def _network(metric: CaptionMetric) -> Any:
    """The network of a metric; None for one of texts alone."""
    return getattr(getattr(metric, "encoder", None), "model", None)


def _shared_dtype(metric: CaptionMetric, bundle: Mapping[str, Any]) -> str:
    """The dtype of both sides; float32 where they differ, which is a difference that is to be named."""
    dtype = bundle["options"].get("dtype")
    if vars(metric.options).get("dtype") != dtype:
        return "float32"
    return str(bundle["options"].get("dtype", "float32"))


def _first_differences(both: Any, equal: Mapping[str, Any]) -> dict[str, list[int]]:
    """The rows that differ first at each stage: those that are equal at all stages before it."""
    stages: dict[str, list[int]] = {}
    equal_so_far = both["row"] >= 0
    for name, is_equal in equal.items():
        first = equal_so_far & ~is_equal
        if first.any():
            stages[name] = sorted(both["row"][first].tolist())
        equal_so_far &= is_equal
    return stages


def _lengths(rows: list[list[float]]) -> Any:
    """(rows,) the length of each row as a vector, which bounds its sum's rounding."""
    return np.array([np.linalg.norm(numbers) for numbers in rows])


def _summary(count: int, other_scores: int, differing: int, tolerance: float) -> str:
    if other_scores:
        return f"{other_scores:,} of {count:,} scores differ; what differs first:"
    if differing:
        return f"{count:,} scores are equal, what {differing:,} are computed from is not; what differs first:"
    return f"{count:,} scores, and all that they are computed from, are equal to {tolerance:.0e}"


def _table(bundle: Mapping[str, Any]) -> Any:
    """The stages of captions by the id of the image, and which of its captions each is."""
    import pandas as pd

    table = pd.DataFrame([line.split(" ") for line in bundle["rows"]], columns=bundle["columns"])
    return table.set_index(["id", table.groupby("id").cumcount().rename("number")])


def _reason(stage: str, bundle: Mapping[str, Any], replayed: Mapping[str, Any]) -> str:
    """The likely reason of a first difference, with the settings and versions that differ."""
    if stage in ("caption", "references", "image"):
        return _STAGES[stage]
    old = _settings(bundle)
    new = _settings(replayed)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if stage == "features" and bundle["models"] != replayed["models"]:
        reason = "other weights"
    elif changed == ["statistics"]:
        reason = "statistics of other texts"
    else:
        reason = _STAGES[stage]
    if not changed:
        return reason
    differences = []
    for name in changed:  # a signature leaves options at their defaults out
        old_value = old.get(name, "by default")
        new_value = new.get(name, "by default")
        differences.append(f"{name} {old_value} there, {new_value} here")
    return f"{reason} ({'; '.join(differences)})"


def _settings(bundle: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a bundle's signature, and its versions."""
    settings = {}
    for part in current_signature(bundle["signature"]).split("|"):
        name, _, value = part.partition(":")
        settings[name] = value
    return {**settings, **bundle["versions"]}
