"""The known ways to compute a metric otherwise: a table of switches, and the bugs of other tools.

A switch is a line at the end of this file: its name, a sentence, and the change. `why` combines them.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps

from capeval_core.inputs.images import square_pixels
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.metric import with_statistics
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.ragged import Ragged
from capeval_core.registry import load
from capeval_core.result import Values
from capeval_core.rows import nullable
from capeval_core.scores.ngram import bleu_of_sums

Doubles = NDArray[np.float64]
CAPTIONS, TEXTS, SAMPLES, IMAGES, OPENED, METRIC, FORMULA, SCORES, NUMBER = range(9)
"""The steps, in order. What is changed up to METRIC is encoded anew, the others take the same rows."""
CLIP, REFCLIP, CIDER = "pacs refpacs clips refclips", "refpacs refclips", "cider ciderd"
VIDEO, HICE, NGRAMS = "pacs-video refpacs-video", "hices refhices", "bleu rougel cider ciderd"
_ONES, _LEAST = (
    np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 0]),
    np.where(np.arange(10) < 4, 0.1, 0),
)  # of sums of BLEU


class Scored(NamedTuple):
    """Scores of captions, and the number of the set; None: their mean."""

    scores: Doubles
    number: float | None = None

    @property
    def mean(self) -> float:
        finite = self.scores[np.isfinite(self.scores)]
        return self.number if self.number is not None else float(np.mean(finite)) if len(finite) else np.nan


class Case(NamedTuple):
    """What the steps behind the rows see."""

    metric: Any
    samples: Samples
    rows: pa.Table
    values: Values
    ids: Sequence[str]

    def part(self, name: str) -> Doubles:
        return np.asarray(self.values.parts[name], dtype=np.float64)


class Switch(NamedTuple):
    """One thing that others do otherwise; switches of one group exclude each other.

    change: of CAPTIONS and TEXTS, text -> text; of IMAGES, (picture, encoder's size) -> picture; of SAMPLES,
    samples -> samples; of OPENED and METRIC, (metric, samples) -> metric; else (`Scored`, `Case`) ->
    `Scored`.
    metrics: their names, or what they have: an option, `references`, `images`.
    """

    name: str
    sentence: str
    change: Callable[..., Any]
    step: int
    metrics: str
    group: str

    def fits(self, metric: Any) -> bool:
        traits = {*metric.Options.describe(), metric.name + "-video" * bool(metric.variant)}
        traits |= {"references"} if metric.needs_references else set()
        traits |= {"images"} if "image" in metric.media and not metric.options.images_are_ids else set()
        return not self.metrics or bool(traits & {*self.metrics.split()})


SWITCHES: list[Switch] = []


def _block(step: int, metrics: str = "", group: str = "") -> Callable[..., None]:
    """What adds switches of one step, metrics and group."""
    return lambda name, sentence, change: SWITCHES.append(
        Switch(name, sentence, change, step, metrics, group or name)
    )


def _choice(choose: Callable[[str, list[str]], list[str]]) -> Callable[[Samples], Samples]:
    """Samples with a choice of each caption's references, or all where none would be left."""

    def change(samples: Samples) -> Samples:
        rows = zip(samples.captions, samples.references or [], strict=True)
        return replace(samples, references=[choose(caption, own) or own for caption, own in rows])

    return change


def _next(column: str) -> Callable[[Samples], Samples]:
    """Samples whose captions meet the image, or the references, of the next one."""
    return lambda samples: replace(
        samples, **{column: [*getattr(samples, column)[1:], getattr(samples, column)[0]]}
    )


def _words(tokens: Callable[[str], Sequence[str]]) -> Callable[[str], str]:
    """Text -> a text with a word of letters for each token, which metrics of n-grams read as it is."""
    letters = str.maketrans("0123456789abcdef", "abcdefghijklmnop")

    def word(token: str) -> str:
        return "zq" + hashlib.blake2b(token.encode(), digest_size=6).hexdigest().translate(letters)

    return lambda text: " ".join(map(word, tokens(text)))


def _square(image: Image.Image, size: int, name: str) -> Image.Image:
    """The central square as encoders see it, by another filter of Pillow's."""
    return Image.fromarray(square_pixels(image, size, Image.Resampling[name.upper()]).transpose(1, 2, 0))


def _tensor(image: Image.Image, size: int, name: str, antialias: bool) -> Any:
    """The central square, resized by torchvision as a tensor of bytes."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as f

    pixels = f.pil_to_tensor(image.convert("RGB"))
    scaled = f.resize(pixels, [size], InterpolationMode(name), antialias=antialias)
    return f.to_pil_image(f.center_crop(scaled, [size]))


def _jpeg(image: Image.Image, size: int, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return Image.open(file)


def _changed(metric: Any, options: dict[str, Any], **attributes: Any) -> Any:
    """A copy of an open metric with other options and attributes."""
    other = object.__new__(type(metric))  # a copy of Python's would open it again
    vars(other).update({**vars(metric), **attributes, "options": replace(metric.options, **options)})
    return other


def _set(**options: Any) -> Callable[..., Any]:
    return lambda metric, samples: _changed(metric, options)


def reopened(**options: Any) -> Callable[..., Any]:
    """The metric opened again, for options that its models depend on."""
    return lambda metric, samples: type(metric)(replace(metric.options, **options))


def _end_lost(metric: Any, samples: Samples) -> Any:
    """Texts that are too long lose their end token: the start token's feature is read."""

    def encode_texts(texts: Sequence[str], **run: Any) -> Any:
        found = metric.encoder.encode_texts(texts, **run)
        start = metric.encoder.encode_tokens([""], **run).features[0][0]
        return replace(
            found, features=np.where(np.array(found.truncated)[:, None] > 0, start, found.features)
        )

    encoder = copy(metric.encoder)
    encoder.encode_texts = encode_texts
    return _changed(metric, {}, encoder=encoder)


def _other_activation(metric: Any, samples: Samples) -> Any:
    old = metric.encoder
    config = {key: own for key, own in old.config.items() if key != "canary"}
    config["activation"] = "gelu" if config["activation"] == "quick_gelu" else "quick_gelu"
    encoder = type(old)(config, metric.folder.tensors(), device=str(old.device), dtype=old.dtype)
    return _changed(metric, {}, encoder=encoder)


def _half(metric: Any, samples: Samples) -> Any:
    def columns(*features: Any) -> dict[str, Any]:
        sides = (side.astype(np.float16) for side in features)
        x, y = (side / np.sqrt(np.sum(side**2, axis=1, keepdims=True)) for side in sides)
        return {"cosine": nullable(np.sum(x * y, axis=1).astype(np.float32))}

    return _changed(metric, {}, columns=columns)


def _documents(metric: Any, samples: Samples, only: bool) -> Any:
    """Document frequencies of each reference, or of captions with their references."""
    rows = zip(samples.captions, samples.references or [], strict=True)
    documents = [[text] for _, own in rows for text in own] if only else [[text, *own] for text, own in rows]
    return with_statistics(metric, metric.prepare(documents))


def _by(function: Callable[[Case], Any]) -> Callable[..., Scored]:
    """Scores by another formula."""
    return lambda scored, case: Scored(np.asarray(function(case), dtype=np.float64))


def _part(name: str) -> Callable[..., Scored]:
    return _by(lambda case: case.part(name))


def _mean_of(mean: Callable[[Doubles, Doubles], Any], choose: Any = Ragged.max) -> Callable[..., Scored]:
    """Another mean of the score without references and a choice of the references' cosines."""

    def function(case: Case) -> Any:
        cosine = choose(Ragged.of(case.rows["reference_cosines"]))
        return mean(case.part(case.metric.free_key), np.maximum(cosine, 0))

    return _by(function)


def _flattened(case: Case) -> Doubles:
    """The mean of the scores with one reference each."""
    texts = case.samples.references or []
    owner = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    alone = [[text] for own in texts for text in own]
    pairs = replace(case.samples.select(owner), references=alone, indices=range(len(owner)))
    scores = case.metric.aggregate(case.metric.encode_all(pairs).sort_by("index")).scores
    return np.bincount(owner, scores) / np.bincount(owner)


def _bleu(sums: Doubles, n: int = 0) -> Doubles:
    """BLEU-n of sums (..., 10), BLEU-4 for 0."""
    return bleu_of_sums(sums)[..., n]


def _sums(function: Callable[[Doubles], Doubles]) -> Callable[..., Scored]:
    """BLEU by another function of its sums (..., 10), for captions and the set."""

    def change(scored: Scored, case: Case) -> Scored:
        sums = np.asarray(case.values.summands)
        return Scored(function(sums), float(function(sums.sum(axis=0))))

    return change


def _moved(function: Callable[[Doubles, Case], Doubles]) -> Callable[..., Scored]:
    return lambda scored, case: Scored(function(scored.scores, case), scored.number)


def _of_images(how: str, *also: str) -> Callable[..., Scored]:
    """The mean over images of the mean, best, first or last score of each; `also` of equal captions."""

    def change(scored: Scored, case: Case) -> Scored:
        import pandas as pd

        keys = [case.rows["group"].to_pylist(), case.samples.captions][: 1 + len(also)]
        table = pd.Series(scored.scores).groupby(list(map(np.array, keys)), sort=False)
        return Scored(scored.scores, float(table.agg(how).mean()))

    return change


add = _block(CAPTIONS)
add("lower case", "captions are made lower case", str.lower)
add("stripped", "white space around captions is left out", str.strip)
add("no punctuation", "captions have no punctuation", lambda text: re.sub(r"[^\w\s]", "", text))
add("one sentence", "captions end with their first sentence", lambda text: text.split(". ")[0])
add("77 characters", "captions are cut after 77 characters", lambda text: text[:77])
add = _block(CAPTIONS, "", "full stop")
add("full stop", "captions end with a full stop", lambda text: text.rstrip(" .") + ".")
add("no full stop", "captions end without a full stop", lambda text: text.rstrip(" ."))
add = _block(TEXTS, "weights")
add("PTB", "networks read PTB's tokens, joined by spaces", lambda text: " ".join(ptb_tokens(text)))
add("all lower case", "captions and references are made lower case", str.lower)
add = _block(TEXTS, NGRAMS, "tokens")
add("no tokenizer", "texts are split at spaces, without a tokenizer", _words(str.split))
add("lower, no tokenizer", "lower-case texts are split at spaces", _words(lambda text: text.lower().split()))
add("a-z, 0-9", "words as in rouge_score", _words(lambda text: re.findall("[a-z0-9]+", text.lower())))
add("punctuation", "punctuation counts as words", _words(lambda t: re.findall(r"\w+|[^\w\s]", t.lower())))
add = _block(SAMPLES, "references", "references")
add("first reference", "the first reference alone counts", _choice(lambda caption, own: own[:1]))
add("last reference", "the last reference alone counts", _choice(lambda caption, own: own[-1:]))
add("not the first reference", "all references but the first count", _choice(lambda caption, own: own[1:]))
add(
    "not the rated one",
    "no reference is the caption",
    _choice(lambda text, own: [r for r in own if r != text]),
)
add("references off by one", "captions meet the next caption's references", _next("references"))
_block(SAMPLES, "images")("images off by one", "captions meet the next caption's image", _next("images"))
add = _block(IMAGES, CLIP, "resize")
for name in ("bilinear", "lanczos", "nearest"):
    add(name, f"images are resized by Pillow's {name} filter", partial(_square, name=name))
for name, antialias in (("bicubic", True), ("bicubic", False), ("bilinear", False)):
    change = partial(_tensor, name=name, antialias=antialias)
    how = f"{name} on tensors" + ", no antialias" * (not antialias)
    add(how, f"images are resized as tensors: {how}", change)
add("squashed", "images are squashed to a square", lambda image, n: image.convert("RGB").resize((n, n), 3))
add("padded", "images are padded to a square", lambda image, n: ImageOps.pad(image.convert("RGB"), (n, n), 3))
add = _block(IMAGES, "images")
add("RGB first", "images become RGB before they are resized", lambda image, n: image.convert("RGB"))
add(
    "upright", "photographs are turned upright by their EXIF", lambda image, n: ImageOps.exif_transpose(image)
)
add("BGR", "red and blue are swapped", lambda i, n: Image.merge("RGB", i.convert("RGB").split()[::-1]))
add("grey", "images are made grey", lambda image, n: image.convert("L").convert("RGB"))
add("256 pixels", "images are made 256 pixels long first", lambda i, n: ImageOps.contain(i, (256, 256)))
add = _block(IMAGES, "images", "JPEG")
for quality in (75, 95):
    change = partial(_jpeg, quality=quality)
    add(f"JPEG {quality}", f"images are written as JPEG again, quality {quality}", change)
add = _block(METRIC, CLIP, "prompt")
add("no prompt", "captions have no prompt", _set(prompt=""))
add("prompt twice", "the prompt comes twice", lambda m, s: _changed(m, {"prompt": m.options.prompt * 2}))
for prompt in ("A photo of ", "a picture of ", "A photo depicting ", "A photo depicts"):
    add(f"prompt {prompt!r}", f"the prompt is {prompt!r}", _set(prompt=prompt))
add = _block(METRIC, CLIP)
add(
    "end token lost", "captions that are cut lose their end token, so that the start token is read", _end_lost
)
add("other GELU", "GELU for QuickGELU, or the reverse", _other_activation)
add("float16 normalisation", "features are normalised and multiplied in float16", _half)
add = _block(OPENED, "weights", "dtype")
add("float16", "networks compute in float16", reopened(dtype="float16"))
add("bfloat16", "networks compute in bfloat16", reopened(dtype="bfloat16"))
add = _block(METRIC, "w", "w")
for w in (1.0, 2.0, 2.5, 100.0):
    add(f"w {w:g}", f"w is {w:g}", _set(w=w))
_block(METRIC, "compat")("released", "as the script that the authors released", _set(compat="released"))
add = _block(OPENED, CIDER)
add("other CIDEr", "CIDEr for CIDEr-D, or the reverse", lambda m, s: load("cider" if m.clipped else "ciderd"))
add = _block(METRIC, CIDER, "documents")
for name, only in (("captions too", False), ("each reference", True)):
    what = "each reference is a document" if only else "document frequencies count captions, too"
    add(name, what, partial(_documents, only=only))
_block(OPENED, "umic")("36 boxes", "images have LXMERT's 36 boxes", reopened(selection="lxmert36"))
_block(METRIC, "vilbertscore")("idf", "words are weighted by their idf", _set(idf="corpus"))
add = _block(METRIC, "vilbertscore", "layer")
for layer in range(6):
    add(f"layer {layer}", f"words are compared after block {layer}", _set(layer=layer))
add = _block(METRIC, VIDEO, "frames")
for count in (1, 4, 8, 16):
    add(f"{count} frames", f"{count} frames of a video, evenly spread", _set(max_frames=count))
for fps in (1.0, 2.0):
    add(f"{fps:g} fps", f"{fps:g} frames a second", _set(fps=fps))
_block(METRIC, VIDEO)("no idf", "all words count alike", _set(idf=False))
add = _block(METRIC, "refhices", "reduction")
for how in ("best", "mean", "pooled"):
    add(f"references {how}", f"reference_reduction is {how}", _set(reference_reduction=how))
_block(METRIC, HICE)("whole image", "the whole image is a region", _set(include_whole_image=True))
_block(METRIC, HICE)("released masks", "masks are squashed to a square", _set(mask_transform="released"))
add = _block(FORMULA, "pacs clips")
add("no max", "negative cosines stay negative", _by(lambda case: case.metric.options.w * case.part("cosine")))
add = _block(FORMULA, REFCLIP, "formula")
add("mean of references", "the mean cosine of references counts", _mean_of(harmonic_mean, Ragged.mean))
add("arithmetic mean", "the arithmetic mean of both", _mean_of(lambda score, cosine: (score + cosine) / 2))
add("geometric mean", "the geometric mean of both", _mean_of(lambda score, cosine: np.sqrt(score * cosine)))
add("without references", "the score without references", _mean_of(lambda score, cosine: score))
add("references alone", "the best cosine of a reference", _mean_of(lambda score, cosine: cosine))
_block(FORMULA, "umic")("logit", "the logit, without the sigmoid", _part("logit"))
add = _block(FORMULA, "rougel vilbertscore", "formula")
add("precision", "precision in place of F", _part("precision"))
add("recall", "recall in place of F", _part("recall"))
add(
    "equal F", "F of both parts", _by(lambda case: harmonic_mean(case.part("precision"), case.part("recall")))
)
_block(FORMULA, VIDEO, "formula")("coarse", "the cosine of text and video alone", _part("coarse"))
_block(FORMULA, VIDEO, "formula")("fine", "words and frames alone", _part("fine"))
add = _block(FORMULA, "bleu", "formula")
for n in (1, 2, 3):
    add(f"BLEU-{n}", f"BLEU-{n} in place of BLEU-4", _sums(partial(_bleu, n=n)))
add("add one", "1 is added to counts of 2 to 4 words", _sums(lambda sums: _bleu(sums + _ONES)))
add("epsilon", "no match counts as 0.1 matches", _sums(lambda sums: _bleu(np.maximum(sums, _LEAST))))
_block(FORMULA, "references", "references")("flattened", "each reference counts alone", _by(_flattened))
add = _block(SCORES, "", "scale")
add("times 100", "scores are times 100", lambda scored, case: Scored(scored.scores * 100, scored.mean * 100))
add(
    "divided by 10",
    "scores are divided by 10",
    lambda scored, case: Scored(scored.scores / 10, scored.mean / 10),
)
add = _block(SCORES, "", "order")
add(
    "sorted by id",
    "scores are in the order of sorted ids",
    _moved(lambda scores, case: scores[np.argsort(case.ids)]),
)
add("off by one", "scores stand one row too late", _moved(lambda scores, case: np.roll(scores, 1)))
add = _block(SCORES)
add("float16 scores", "scores are rounded to float16", _moved(lambda scores, case: scores.astype(np.float16)))
add("failed as 0", "captions that failed count 0", _moved(lambda scores, case: np.nan_to_num(scores)))
add = _block(NUMBER, "", "number")
add("mean of captions", "the mean of the captions' own scores", lambda scored, case: Scored(scored.scores))
add("median", "the median of scores", lambda scored, case: Scored(scored.scores, np.nanmedian(scored.scores)))
for how in ("mean", "max", "first", "last"):
    add(f"{how} of images", f"the mean over images of the {how} score of each", _of_images(how))
add("duplicates once", "equal captions of an image count once", _of_images("first", "captions"))

KNOWN = (
    ("torchmetrics' CLIPScore", "clips pacs", ("no prompt", "end token lost", "w 100", "no max")),
    ("VLMEvalKit's captions", "bleu rougel ciderd", ("no tokenizer", "times 100")),
    ("clipscore on a GPU", "clips pacs", ("float16", "float16 normalisation", "float16 scores")),
)
"""Tools, the metrics that they compute so, and the switches that they combine.

https://github.com/Lightning-AI/torchmetrics/issues/2883
https://github.com/open-compass/VLMEvalKit/issues/1308: pycocoevalcap's scorers without its tokenizer
https://github.com/scikit-learn/scikit-learn/issues/21559: of clipscore.py since NumPy 1.21
"""
