"""The known ways to compute a metric otherwise: a table of switches, and the bugs of other tools.

A switch is a line of the table: its name, a sentence, and the change. `why` combines them in its order.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from capeval_core.inputs.images import square_pixels
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.metric import prepared, with_options
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.ragged import Ragged
from capeval_core.rows import canonical, nullable
from capeval_core.scores.ngram import bleu_of_sums

CLIP, REFCLIP, CIDER = "pacs refpacs clips refclips", "refpacs refclips", "cider ciderd"
ENCODED, SCORED, NUMBER = range(3)
"""What a switch changes: what is encoded; the scores of the rows; the number of the set alone."""


@dataclass(frozen=True)
class Case:
    """A metric on samples and, once they are encoded, rows, values, scores and the number of the set (None:
    the mean of the scores); and ways to another one."""

    metric: Any
    samples: Samples
    ids: Sequence[str]
    rows: Any = None
    values: Any = None
    scores: Any = None
    number: float | None = None

    @property
    def mean(self) -> float:
        finite = self.scores[np.isfinite(self.scores)]
        return self.number if self.number is not None else float(np.mean(finite)) if len(finite) else np.nan

    def encoded(self) -> Case:
        metric = prepared(self.metric, self.samples)
        return replace(self, metric=metric, rows=canonical(metric.encode_all(self.samples))).combined()

    def combined(self) -> Case:
        values, formula = self.metric.aggregate(self.rows), self.metric.formula
        number = formula and formula.values(np.asarray(values.summands))[self.metric.key]
        return replace(self, values=values, scores=values.scores, number=number)

    def by(self, **options: Any) -> Case:
        """The metric has other options."""
        case = replace(self, metric=type(self.metric)(replace(self.metric.options, **options)))
        return case if self.rows is None else case.combined()

    def patched(self, **attributes: Any) -> Case:
        """The metric is a copy with other attributes."""
        metric = with_options(self.metric)
        vars(metric).update(attributes)
        return replace(self, metric=metric)

    def on(self, **columns: Any) -> Case:
        """Captions, images or references are others."""
        return replace(self, samples=replace(self.samples, **columns))

    def captions(self, change: Callable[[str], str]) -> Case:
        return self.on(captions=list(map(change, self.samples.captions)))

    def references(self, choose: Callable[[str, list[str]], list[str]]) -> Case:
        """A choice of each caption's references, or all where none would be left."""
        rows = zip(self.samples.captions, self.samples.references or [], strict=False)
        return self.on(references=[choose(caption, own) or own for caption, own in rows] or None)

    def texts(self, change: Callable[[str], str]) -> Case:
        return self.references(lambda caption, own: list(map(change, own))).captions(change)

    def words(self, tokens: Callable[[str], Sequence[str]]) -> Case:
        """A word of letters stands for each token, which metrics of n-grams read as it is."""

        def word(token: str) -> str:
            return "zq" + "".join(chr(97 + i % 26) for i in hashlib.blake2b(token.encode()).digest()[:12])

        return self.texts(lambda text: " ".join(map(word, tokens(text))))

    def images(self, change: Callable[[Image.Image, int], Any], name: str) -> Case:
        """Images in RGB are changed by a function that gets the encoder's size, too."""
        size = getattr(getattr(self.metric.encoder, "preprocessing", None), "image_size", 0)
        change_rgb = lambda image: change(image.convert("RGB"), size)  # noqa: E731
        return self.on(images=[i.changed(f"{name} {size}", change_rgb) for i in self.samples.images])

    def next(self, column: str) -> Case:
        """Captions meet the images, or the references, of the next one."""
        first, *others = getattr(self.samples, column)
        return self.on(**{column: [*others, first]})

    def to(self, scores: Any, number: float | None = None) -> Case:
        return replace(self, scores=np.asarray(scores), number=number)

    def made(self, function: Callable[[Case], Any]) -> Case:
        """Scores are others; a number that is not their mean stays."""
        return self.to(function(self), self.number)

    def part(self, name: str) -> Case:
        """A part of the scores stands in their place."""
        formula = self.metric.formula
        return self.to(self.values.parts[name], formula and formula.values(self.values.summands)[name])


class Switch(NamedTuple):
    """One thing that others do otherwise; switches of one group exclude each other.

    metrics: their names, or what they have: an option, `references`, `images`.
    """

    name: str
    sentence: str
    change: Callable[[Case], Case]
    step: int
    metrics: str
    group: str

    def fits(self, metric: Any) -> bool:
        pictures = "image" in metric.media and not metric.options.images_are_ids
        traits = {"references" * metric.needs_references, "images" * pictures, *metric.Options.describe()}
        traits.add(metric.name + "-video" * bool(metric.variant))
        return not self.metrics or not traits.isdisjoint(self.metrics.split())


def _square(image: Image.Image, size: int, name: str) -> Image.Image:
    return Image.fromarray(square_pixels(image, size, Image.Resampling[name.upper()]).transpose(1, 2, 0))


def _tensor(image: Image.Image, size: int, name: str, antialias: bool) -> Any:
    from torchvision.transforms import functional as f

    scaled = f.resize(f.pil_to_tensor(image), [size], f.InterpolationMode(name), antialias=antialias)
    return f.to_pil_image(f.center_crop(scaled, [size]))


def _jpeg(image: Image.Image, size: int, quality: int) -> Image.Image:
    image.save(file := io.BytesIO(), "JPEG", quality=quality)
    return Image.open(file)


def _end_lost(case: Case) -> Case:
    own = case.metric

    def text_features(texts: Sequence[str]) -> Any:
        found, start = own.text_features(texts), own.encoder.encode_tokens([""], **own.run).features[0][0]
        cut = np.array(found.truncated)[:, None] > 0
        return replace(found, features=np.where(cut, start, found.features))

    return case.patched(text_features=text_features)


def _other_activation(case: Case) -> Case:
    old, tensors = case.metric.encoder, case.metric.folder.tensors()
    config = {key: own for key, own in old.config.items() if key != "canary"}
    config["activation"] = "gelu" if config["activation"] == "quick_gelu" else "quick_gelu"
    return case.patched(encoder=type(old)(config, tensors, device=str(old.device), dtype=old.dtype))


def _half(*features: Any) -> dict[str, Any]:
    """Columns of PAC-S."""
    sides = (side.astype(np.float16) for side in features)
    x, y = (side / np.sqrt(np.sum(side**2, axis=1, keepdims=True)) for side in sides)
    return {"cosine": nullable(np.sum(x * y, axis=1).astype(np.float32))}


def _with_captions(case: Case) -> Case:
    rows = zip(case.samples.captions, case.samples.references or [], strict=True)
    return case.by(statistics=case.metric.prepare([[text, *own] for text, own in rows]))


def _both(case: Case, choose: Any = Ragged.max) -> tuple[Any, Any]:
    """The score without references and a choice of their cosines; or precision and recall."""
    parts = case.values.parts
    if "precision" in parts:
        return np.asarray(parts["precision"]), np.asarray(parts["recall"])
    return parts[case.metric.free_key], np.maximum(choose(Ragged.of(case.rows["reference_cosines"])), 0)


def _flattened(case: Case) -> Case:
    texts = case.samples.references or []
    owner = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    alone = [[text] for own in texts for text in own]
    pairs = replace(case.samples.select(owner), references=alone, indices=range(len(owner)))
    scores = case.metric.aggregate(canonical(case.metric.encode_all(pairs))).scores
    return case.to(np.bincount(owner, scores) / np.bincount(owner))


def _smoothed(case: Case, more: Any = 0, least: Any = 0) -> Case:
    """BLEU-4 of larger counts, of captions and of the set."""
    sums = np.asarray(case.values.summands)
    each, of_set = (bleu_of_sums(np.maximum(own + more, least))[..., 0] for own in (sums, sums.sum(axis=0)))
    return case.to(each, float(of_set))


def _of_images(case: Case, how: str, once: bool = False) -> Case:
    import pandas as pd

    keys = [case.rows["group"].to_pylist(), case.samples.captions][: 1 + once]
    table = pd.Series(case.scores).groupby(list(map(np.array, keys)), sort=False)
    return case.to(case.scores, float(table.agg(how).mean()))


SWITCHES: list[Switch] = []


def _block(step: int, metrics: str = "", group: str = "", lift: Any = None) -> Callable[..., None]:
    """What adds switches of one step, metrics and group; lift: the method of `Case` that takes a change."""

    def add(name: str, sentence: str, change: Any) -> None:
        more = (name,) if lift is Case.images else ()
        own = (lambda case: lift(case, change, *more)) if lift else change
        SWITCHES.append(Switch(name, sentence, own, step, metrics, group or name))

    return add


def _options(step: int, entries: list[dict[str, Any]]) -> None:
    for option, metrics, value in ((e["option"], e["metrics"], v) for e in entries for v in e["values"]):
        change = partial(Case.by, **{option: value})
        _block(step, metrics, option)(f"{option}={value!r}", f"the option {option} is {value!r}", change)


_DATA = tomllib.loads(Path(__file__).with_name("switches.toml").read_text(encoding="utf-8"))
_options(ENCODED, _DATA["encoded"])
add = _block(ENCODED, CIDER)
add("captions too", "document frequencies count captions, too", _with_captions)
add("other CIDEr", "CIDEr, or CIDEr-D instead", lambda case: case.patched(clipped=not case.metric.clipped))
add = _block(ENCODED, lift=Case.captions)
add("lower case", "captions are made lower case", str.lower)
add("stripped", "white space around captions is left out", str.strip)
add("no punctuation", "captions have no punctuation", partial(re.sub, r"[^\w\s]", ""))
add("77 characters", "captions are cut after 77 characters", lambda text: text[:77])
add = _block(ENCODED, "", "full stop", Case.captions)
add("full stop", "captions end with a full stop", lambda text: text.rstrip(" .") + ".")
add("no full stop", "captions end without a full stop", lambda text: text.rstrip(" ."))
add = _block(ENCODED, "weights", lift=Case.texts)
add("PTB", "networks read PTB's tokens, joined by spaces", lambda text: " ".join(ptb_tokens(text)))
add = _block(ENCODED, f"bleu rougel {CIDER}", "tokens", Case.words)
add("no tokenizer", "texts are split at spaces, without a tokenizer", str.split)
add("lower, no tokenizer", "lower-case texts are split at spaces", lambda text: text.lower().split())
add("a-z, 0-9", "words as in rouge_score", lambda text: re.findall("[a-z0-9]+", text.lower()))
add("punctuation", "punctuation counts as words", lambda text: re.findall(r"\w+|[^\w\s]", text.lower()))
add = _block(ENCODED, "references", "references", Case.references)
add("first reference", "the first reference alone counts", lambda caption, own: own[:1])
add("last reference", "the last reference alone counts", lambda caption, own: own[-1:])
add("not the first reference", "all references but the first count", lambda caption, own: own[1:])
add("not the rated one", "no reference is the caption", lambda text, own: [r for r in own if r != text])
for column in ("references", "images"):
    add = _block(ENCODED, column, column, Case.next)
    add(f"{column} off by one", f"captions meet the next caption's {column}", column)
add = _block(ENCODED, CLIP, "resize", Case.images)
for method in ("bilinear", "lanczos", "nearest"):
    add(method, f"images are resized by Pillow's {method} filter", partial(_square, name=method))
for method, antialias in (("bicubic", True), ("bicubic", False), ("bilinear", False)):
    how = f"{method} on tensors" + ", no antialias" * (not antialias)
    add(how, f"images are resized as tensors: {how}", partial(_tensor, name=method, antialias=antialias))
add("squashed", "images are squashed to a square", lambda image, n: image.resize((n, n), 3))
add("padded", "images are padded to a square", lambda image, n: ImageOps.pad(image, (n, n), 3))
add = _block(ENCODED, "images", "", Case.images)
add("RGB first", "images become RGB before they are resized", lambda image, n: image)
add("upright", "photographs are turned upright (EXIF)", lambda image, n: ImageOps.exif_transpose(image))
add("BGR", "red and blue are swapped", lambda image, n: Image.merge("RGB", image.split()[::-1]))
add("256 pixels", "images are 256 pixels long first", lambda image, n: ImageOps.contain(image, (256, 256)))
add = _block(ENCODED, "images", "JPEG", Case.images)
for quality in (75, 95):
    add(f"JPEG {quality}", f"JPEG again, of quality {quality}", partial(_jpeg, quality=quality))
add = _block(ENCODED, CLIP, "prompt")
add("prompt twice", "the prompt comes twice", lambda case: case.by(prompt=case.metric.options.prompt * 2))
add = _block(ENCODED, CLIP)
add("end token lost", "cut captions lose their end token, so that the start token is read", _end_lost)
add("other GELU", "GELU for QuickGELU, or the reverse", _other_activation)
add("float16 normalisation", "features are normalised in float16", lambda case: case.patched(columns=_half))
_options(SCORED, _DATA["scored"])
add = _block(SCORED, "pacs clips", lift=Case.made)
add("no max", "negative cosines stay so", lambda case: case.part("cosine").scores * case.metric.options.w)
add = _block(SCORED, REFCLIP, "formula", Case.made)
add("mean of references", "the mean cosine counts", lambda case: harmonic_mean(*_both(case, Ragged.mean)))
add("arithmetic mean", "the arithmetic mean of both", lambda case: sum(_both(case)) / 2)
add("geometric mean", "the geometric mean of both", lambda case: np.sqrt(np.prod(_both(case), axis=0)))
add = _block(SCORED, "rougel vilbertscore", "formula", Case.made)
add("equal F", "precision and recall count alike", lambda case: harmonic_mean(*_both(case)))
for entry in _DATA["parts"]:
    add = _block(SCORED, entry["metrics"], "formula", Case.part)
    for name in entry["names"]:
        add(name, f"{name} stands in place of the score", name)
add = _block(SCORED, "bleu", "formula")
more = np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 0])
add("add one", "1 is added to counts of 2 to 4 words", partial(_smoothed, more=more))
add("epsilon", "no match counts as 0.1", partial(_smoothed, least=np.repeat([0.1, 0], [4, 6])))
_block(SCORED, "references", "references")("flattened", "each reference counts alone", _flattened)
add = _block(SCORED, "", "scale", lambda case, n: case.to(case.scores * n, case.mean * n))
add("times 100", "scores are times 100", 100)
add("divided by 10", "scores are divided by 10", 0.1)
add = _block(SCORED, "", "order", Case.made)
add("sorted by id", "scores are in the order of sorted ids", lambda case: case.scores[np.argsort(case.ids)])
add("off by one", "scores stand one row too late", lambda case: np.roll(case.scores, 1))
add = _block(SCORED, lift=Case.made)
add("float16 scores", "scores are rounded to float16", lambda case: case.scores.astype(np.float16))
add("failed as 0", "captions that failed count 0", lambda case: np.nan_to_num(case.scores))
add = _block(NUMBER, "", "number")
add("mean of captions", "the mean of the captions' own scores", lambda case: case.to(case.scores))
add("median", "the median of scores", lambda case: case.to(case.scores, np.nanmedian(case.scores)))
for how in ("mean", "max", "first", "last"):
    add(f"{how} of images", f"the mean over images of the {how} score of each", partial(_of_images, how=how))
add("duplicates once", "equal captions of an image count once", partial(_of_images, how="first", once=True))

KNOWN = [(tool["name"], tool["metrics"], tool["switches"]) for tool in _DATA["tools"]]
"""Tools, the metrics that they compute so, and the switches that they combine."""
