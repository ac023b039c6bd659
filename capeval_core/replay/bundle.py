"""Bundles: a score with digests of every stage that it went through, and its replay."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
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

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

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


def bundle_of(result: Result, ids: Sequence[str] | None = None, *, texts: bool = False) -> dict[str, Any]:
    """A bundle for `capeval replay`, in JSON's types: settings, versions, and a line of stages per caption.

    A stage is six bytes of a digest, or a number. No image, and no text unless `texts`. ValueError if the
    result was made without `evidence=True`, or by a metric that chooses among captions.
    """
    if result.source is None:
        raise ValueError(f"a bundle needs the evidence: load({result.metric!r}, ..., evidence=True)")
    metric, samples, rows = result.source
    if isinstance(metric, Reranker):
        raise ValueError(f"bundle: {metric.name} chooses among captions, and a bundle has a score for each")
    if ids is None:
        ids = [str(index) for index in range(len(samples))]
    stages = _stages(metric, samples, rows)
    stages["parts"] = list(map(_digest_of_numbers, _parts(result)))
    stages["score"] = [f"{score:.9g}" for score in result.scores]  # nine digits hold a float32 exactly
    versions = {"libjpeg": features.version("jpg"), "Python": platform.python_version()}
    for package in ("numpy", "pillow", "torch", "tokenizers"):
        versions[package] = version(package)
    models = {}
    for name, model in metric.models.items():
        models[name] = model.fingerprint
    lines = []  # of each caption: its id and its stages, with blanks between them
    for image_id, *stages_of_row in zip(ids, *stages.values(), strict=True):
        lines.append(" ".join((_digest(image_id), *stages_of_row)))
    bundle = {
        "format": _FORMAT,
        "metric": metric.name,
        "media": metric.variant,
        "options": _options(metric),
        "signature": result.signature,
        "models": models,
        "versions": versions,
        "mean": result.mean,
        "columns": ["id", *stages],
        "rows": lines,
    }
    if texts:
        bundle |= {"ids": ids, "captions": samples.captions, "references": samples.references}
    return bundle


def _options(metric: CaptionMetric) -> dict[str, str | int | float]:
    """The options of a metric that move its scores, as far as JSON can hold them."""
    names = {"weights", "regions", "phrases"}
    for name, description in metric.Options.describe().items():
        if description.sign or description.encodes:
            names.add(name)
    values = {}
    for name, value in vars(metric.options).items():
        # Objects are left out, such as statistics: a replay makes its own, and names the difference.
        if name in names and isinstance(value, (str, int, float)):
            values[name] = value
    return values


def _stages(metric: CaptionMetric, samples: Samples, rows: pa.Table) -> dict[str, list[str]]:
    """The lines of the stages before the score: a digest of each caption's texts, image and token ids."""
    references = samples.references or [[]] * len(samples)
    stages: dict[str, list[str]] = {"caption": [], "references": []}
    texts = []
    for caption, row_references in zip(samples.captions, references, strict=True):
        stages["caption"].append(_digest(caption))
        stages["references"].append(_digest(*row_references))
        texts.append([caption, *row_references])
    if not metric.media:
        stages["tokens"] = list(map(_digest_of_words, texts))
    else:
        digests: dict[object, list[str]] = {}
        digests_of_rows = []  # (captions, up to 3): file, pixels, pixels as the encoder reads them
        for image in samples.images:
            if image.source not in digests:  # rows of one image share a source
                digests[image.source] = list(map(_digest, _contents(metric, image)))
            digests_of_rows.append(digests[image.source])
        # Box features and videos have no pixels of one image: their columns end after the first.
        columns = zip(*digests_of_rows, strict=False)
        for name, column in zip(("image", "pixels", "resized"), columns, strict=False):
            stages[name] = list(column)
        if hasattr(metric.encoder, "tokenizer"):
            prompt = getattr(metric.options, "prompt", "")
            stages["tokens"] = []
            for texts_of_row in texts:
                tokens = metric.encoder.tokenizer.encode([f"{prompt}{text}" for text in texts_of_row])
                stages["tokens"].append(_digest(str(tokens.ids)))
    stages["features"] = list(map(_digest_of_numbers, _features(rows)))
    return stages


def _digest_of_words(texts: list[str]) -> str:
    words: list[str] = []
    for text in texts:
        words += shared_words(text)
    return _digest(*words)


def _features(rows: pa.Table) -> list[list[float]]:
    """All numbers of each row."""
    # The group is a key of the image's content, which has a stage of its own.
    table = rows.drop_columns(["index", "group"])
    return [list(_numbers(list(row.values()))) for row in table.to_pylist()]


def _parts(result: Result) -> list[list[float]]:
    """All numbers of the parts of each score."""
    rows = []
    for values in zip(*result.parts.values(), strict=True):
        rows.append(list(_numbers(list(values))))
    return rows or [[]] * len(result)  # a metric may have no parts


def _digest_of_numbers(numbers: list[float]) -> str:
    """A sum in which each place has another weight, so that exchanged numbers show."""
    # A number and not a hash: a replay on another processor differs by rounding, which has to show as such.
    # Cosines of whole numbers never repeat, and stay below 1 for rows of any length.
    total = float(np.cos(np.arange(len(numbers))) @ numbers) if numbers else 0.0
    return f"{total:.9g}"


def _contents(metric: CaptionMetric, image: Visual[Any]) -> Iterator[str | bytes]:
    """The file of an image, its pixels, and those that the encoder reads."""
    # One after the other: each digest is made before the next content is in memory.
    try:
        yield image.key
        if image.medium == "image":
            picture = image.load()
            yield picture.convert("RGB").tobytes()
            if hasattr(metric.encoder, "preprocessing"):
                yield metric.encoder.preprocessing.pixels(picture).tobytes()
    except ImageError as error:
        # A broken file has all three stages, since a column needs a value in every row.
        yield from [str(error)] * 3


def _numbers(value: object) -> Iterator[float]:
    """All numbers in lists of lists."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)):
        yield float(value)


def _digest(*parts: str | bytes) -> str:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    content = repr(encoded).encode()  # with quotes, so that ("ab", "c") is not ("a", "bc")
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


def check_bundle(bundle: object) -> None:
    """Refuse a value that is not a complete bundle of this version."""
    if not _is_complete(bundle):
        fix = "pass one of `bundle_of(result)` or `capeval score --bundle`"
        raise InputError(Problem(at("bundle"), "is no bundle of this version, or damaged", fix))


def _is_complete(bundle: object) -> bool:
    """A check of the keys, the version, and the number of stages in each line."""
    keys = {"format", "metric", "media", "options", "signature", "models", "versions", "columns", "rows"}
    if not isinstance(bundle, Mapping) or not keys <= {*bundle} or bundle["format"] != _FORMAT:
        return False
    blanks = len(bundle["columns"]) - 1
    return all(line.count(" ") == blanks for line in bundle["rows"])


def replay(
    bundle: Mapping[str, Any],
    captions: object,
    images: object = None,
    references: object = None,
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
    if ids is None:
        ids = [str(row) for row in range(len(samples))]
    result = replace(metric.combine(rows), source=(metric, samples, rows))
    replayed = bundle_of(result, ids)
    ours = _table(replayed)
    ours["row"] = range(len(ours))
    theirs = _table(bundle)
    both = ours.merge(theirs, left_index=True, right_index=True, suffixes=("", " there"))
    rounded = OF_FORMULAS * rounding(_network(metric), _shared_dtype(metric, bundle))
    lengths = {"features": _lengths(_features(rows)), "parts": _lengths(_parts(result))}
    lengths["score"] = np.abs(np.asarray(result.scores))
    equal = _equal_stages(both, lengths, rounded)
    stages = _first_differences(both, equal)
    equal_scores = bool(equal["score"].all())
    unequal_count = int((~equal["score"]).sum())
    lines = [_summary(len(both), unequal_count, sum(map(len, stages.values())), rounded)]
    lost = len(ours) + len(theirs) - 2 * len(both)
    if lost:
        lines.append(f"{lost:,} captions are in one of both alone")
    for name, differing in stages.items():
        listed = ", ".join([ids[row] for row in differing[:3]])
        if len(differing) > 3:
            listed += ", ..."
        lines.append(f"{name} of {len(differing):,} ({listed}): {_reason(name, bundle, replayed)}")
    equal_scores = equal_scores and not lost
    return Replay(equal_scores and not stages, equal_scores, stages, "\n  ".join(lines))


def _network(metric: CaptionMetric) -> nn.Module | None:
    """The network of a metric; None for one of texts alone."""
    return getattr(getattr(metric, "encoder", None), "model", None)


def _shared_dtype(metric: CaptionMetric, bundle: Mapping[str, Any]) -> str:
    """The dtype of both sides; float32 where they differ, which is a difference that is to be named."""
    dtype = bundle["options"].get("dtype")
    if vars(metric.options).get("dtype") != dtype:
        return "float32"
    return str(bundle["options"].get("dtype", "float32"))


def _equal_stages(
    both: pd.DataFrame, lengths: Mapping[str, NDArray[np.float64]], rounded: float
) -> dict[str, pd.Series]:
    """By stage, in their order, which captions are equal there; numbers up to rounding."""
    equal: dict[str, pd.Series] = {}
    difference: dict[str, pd.Series] = {}
    for name in _STAGES:
        if f"{name} there" not in both:
            continue
        column = both[name]
        column_of_bundle = both[f"{name} there"]
        equal[name] = column == column_of_bundle
        if name in _NUMBERS:
            # Rounding grows with the size of what is summed; below 1 it is that of the terms.
            difference[name] = (column.astype(float) - column_of_bundle.astype(float)).abs()
            equal[name] |= difference[name] <= rounded * np.fmax(lengths[name][both["row"]], 1)
    # Features whose difference hardly moves the score are not where to look for its reason.
    equal["features"] |= difference["features"] <= _SHARE * difference["score"]
    if "pixels" in equal:
        equal["image"] |= equal["pixels"]  # the same picture in another file does no harm
    return equal


def _first_differences(both: pd.DataFrame, equal: Mapping[str, pd.Series]) -> dict[str, list[int]]:
    """The rows that differ first at each stage: those that are equal at all stages before it."""
    stages: dict[str, list[int]] = {}
    equal_so_far = both["row"] >= 0
    for name, is_equal in equal.items():
        # A stage depends on the ones before it: a later difference of the same row says nothing new.
        first = equal_so_far & ~is_equal
        if first.any():
            stages[name] = sorted(both["row"][first].tolist())
        equal_so_far &= is_equal
    return stages


def _lengths(rows: list[list[float]]) -> NDArray[np.float64]:
    """(rows,) the length of each row as a vector, which bounds its sum's rounding."""
    return np.array([np.linalg.norm(numbers) for numbers in rows])


def _summary(count: int, other_scores: int, differing: int, tolerance: float) -> str:
    if other_scores:
        return f"{other_scores:,} of {count:,} scores differ; what differs first:"
    if differing:
        return f"{count:,} scores are equal, what {differing:,} are computed from is not; what differs first:"
    return f"{count:,} scores, and all that they are computed from, are equal to {tolerance:.0e}"


def _table(bundle: Mapping[str, Any]) -> pd.DataFrame:
    """The stages of captions by the id of the image, and which of its captions each is."""
    import pandas as pd

    cells = [line.split(" ") for line in bundle["rows"]]
    table = pd.DataFrame(cells, columns=bundle["columns"])
    # Captions of one image are told apart by their order, since an id is all that names them.
    return table.set_index(["id", table.groupby("id").cumcount().rename("number")])


def _reason(stage: str, bundle: Mapping[str, Any], replayed: Mapping[str, Any]) -> str:
    """The likely reason of a first difference, with the settings and versions that differ."""
    if stage in ("caption", "references", "image"):
        return _STAGES[stage]
    old = _settings(bundle)
    new = _settings(replayed)
    changed = []
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            changed.append(name)
    # Settings may be equal while the files of the weights are not.
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
    # Bundles of earlier versions have every option in their signature, also those at their defaults.
    for part in current_signature(bundle["signature"]).split("|"):
        name, _, value = part.partition(":")
        settings[name] = value
    return {**settings, **bundle["versions"]}
