"""Known other ways to compute a metric: a table of switches, and the bugs of other tools.

A switch is a line of the table: its name, a sentence, and the change. `why` combines them in its order.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import tomllib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from torch.nn import functional

from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.inputs.images import resized, square_pixels
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.metric import CaptionMetric, prepared, with_options
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.ragged import Floats, Ragged
from capeval_core.rows import canonical, nullable

CLIP = "pacs refpacs clips refclips"
REFCLIP = "refpacs refclips"
CIDER = "cider ciderd"


class Step(Enum):
    """The step of a computation that a switch changes."""

    ENCODED = auto()  # what is encoded: texts, images, the network
    SCORED = auto()  # the scores of the rows
    NUMBER = auto()  # the number of the set alone


@dataclass(frozen=True)
class Case:
    """A metric on samples and, once they are encoded, rows, values, scores and the number of the set (None:
    the mean of the scores). Its methods give another case, with one thing changed."""

    metric: Any
    samples: Samples
    ids: Sequence[str]
    rows: Any = None
    values: Any = None
    scores: Any = None
    number: float | None = None

    @property
    def mean(self) -> float:
        if self.number is not None:
            return self.number
        finite = self.scores[np.isfinite(self.scores)]  # as `Result.mean`, which leaves failures out
        return float(np.mean(finite)) if len(finite) else np.nan

    def encoded(self) -> Case:
        metric = prepared(self.metric, self.samples)
        return replace(self, metric=metric, rows=canonical(metric.encode_all(self.samples))).combined()

    def combined(self) -> Case:
        values = self.metric.aggregate(self.rows)
        formula = self.metric.formula
        number = None
        if formula is not None:
            number = formula.values(np.asarray(values.summands))[self.metric.key]
        return replace(self, values=values, scores=values.scores, number=number)

    def with_options(self, **options: Any) -> Case:
        """The metric has other options."""
        if self.rows is None:
            return replace(self, metric=type(self.metric)(replace(self.metric.options, **options)))
        # The rows are encoded already, so that the models may stay open.
        return replace(self, metric=with_options(self.metric, **options)).combined()

    def patched(self, **attributes: Any) -> Case:
        """The metric is a copy with other attributes."""
        metric = with_options(self.metric)
        vars(metric).update(attributes)
        return replace(self, metric=metric)

    def with_samples(self, **columns: Any) -> Case:
        """Captions, images or references are others."""
        return replace(self, samples=replace(self.samples, **columns))

    def captions(self, change: Callable[[str], str]) -> Case:
        return self.with_samples(captions=list(map(change, self.samples.captions)))

    def references(self, choose: Callable[[str, list[str]], list[str]]) -> Case:
        """A choice of each caption's references, or all where none would be left."""
        choices = []
        for caption, references in zip(self.samples.captions, self.samples.references or [], strict=False):
            choices.append(choose(caption, references) or references)
        return self.with_samples(references=choices or None)

    def texts(self, change: Callable[[str], str]) -> Case:
        return self.references(lambda caption, texts: list(map(change, texts))).captions(change)

    def words(self, tokens: Callable[[str], Sequence[str]]) -> Case:
        """Each token replaced by a word of letters, which metrics of n-grams read as it is."""

        def word(token: str) -> str:
            digest = hashlib.blake2b(token.encode()).digest()
            letters = "".join([chr(97 + byte % 26) for byte in digest[:12]])
            return f"zq{letters}"  # which begins no English word, so that no tokenizer splits it

        return self.texts(lambda text: " ".join(map(word, tokens(text))))

    def images(self, change: Callable[[Image.Image, int], Any], name: str) -> Case:
        """Images, in the mode of their file, are changed by a function that gets the encoder's size, too."""
        size = getattr(getattr(self.metric.encoder, "preprocessing", None), "image_size", 0)

        def changed(image: Image.Image) -> Any:
            return change(image, size)

        images = [visual.changed(f"{name} {size}", changed) for visual in self.samples.images]
        return self.with_samples(images=images)

    def float_pixels(self, change: Callable[[Image.Image, int], Any], name: str) -> Case:
        """The image tower gets pixels in [0, 1] that were never rounded to 8 bits, (3, n, n) of an image."""
        encoder = copy(self.metric.encoder)
        encoder.preprocessing = _FloatPixels(encoder.preprocessing, change)
        encoder.triton = False  # its kernel reads 8 bits
        # Under another name in the cache of features, whose key has the encoder's usual preprocessing.
        named = self.images(lambda image, n: image, f"{name}, floats")
        metric = with_options(self.metric, decoders=None)  # other processes would decode to 8 bits
        metric.encoder = encoder
        return replace(named, metric=metric)

    def with_next(self, column: str) -> Case:
        """Captions meet the images, or the references, of the next one."""
        first, *further = getattr(self.samples, column)
        return self.with_samples(**{column: [*further, first]})

    def with_scores(self, scores: ArrayLike, number: float | None = None) -> Case:
        return replace(self, scores=np.asarray(scores), number=number)

    def scored_by(self, function: Callable[[Case], Any]) -> Case:
        """Scores are others; a number that is not their mean stays."""
        return self.with_scores(function(self), self.number)

    def with_part(self, name: str) -> Case:
        """A part of the scores in place of the scores."""
        formula = self.metric.formula
        number = None
        if formula is not None:
            number = formula.values(self.values.summands)[name]
        return self.with_scores(self.values.parts[name], number)


class Switch(NamedTuple):
    """One thing that other tools do otherwise; switches of one group exclude each other.

    metrics: their names, or what they have: an option, `references`, `images`. cost: how long
    its scores take, from no network (0) over texts and images to networks opened anew and their arithmetic.
    dtype: of 16 bits, if scores go through one.
    """

    name: str
    sentence: str
    change: Callable[[Case], Case]
    step: Step
    metrics: str
    group: str
    cost: int = 0
    dtype: str | None = None

    def fits(self, metric: CaptionMetric) -> bool:
        if not self.metrics:
            return True
        traits = set(metric.Options.describe())
        traits.add(f"{metric.name}-video" if metric.variant else metric.name)
        if metric.needs_references:
            traits.add("references")
        if "image" in metric.media and not metric.options.images_are_ids:
            traits.add("images")
        return not traits.isdisjoint(self.metrics.split())


class _FloatPixels:
    """A preprocessing whose pixels are floats."""

    def __init__(self, preprocessing: Preprocessing, change: Callable[[Image.Image, int], Any]) -> None:
        self.preprocessing = preprocessing
        self.change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.preprocessing, name)

    def pixels(self, image: Image.Image) -> Any:
        """(3, image_size, image_size) float32, of the range of 8 bits."""
        return self.change(image, self.preprocessing.image_size).numpy() * 255


# Changes of an image, in the mode of its file. n: the side of the square that the encoder takes.


def _square(image: Image.Image, n: int, name: str) -> Image.Image:
    """In the image's own mode, and RGB afterwards, as the encoder does."""
    return Image.fromarray(square_pixels(image, n, Image.Resampling[name.upper()]).transpose(1, 2, 0))


def _interpolated(pixels: torch.Tensor, n: int, mode: str, antialias: bool) -> torch.Tensor:
    """(3, h, w) pixels, the shorter side resized to n; of 8 bits PyTorch rounds as any processor does."""
    height, width = pixels.shape[1:]
    short = min(height, width)
    size = (int(n * height / short), int(n * width / short))  # rounded down, as torchvision's Resize
    return functional.interpolate(pixels[None], size, mode=mode, antialias=antialias)[0]


def _bytes_of(image: Image.Image) -> torch.Tensor:
    """(3, h, w) uint8 of an image in RGB."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def _cropped(pixels: torch.Tensor, n: int, offset: Callable[[float], int] = round) -> torch.Tensor:
    """The central square; offset: how half a pixel is rounded."""
    height, width = pixels.shape[1:]
    first_row = offset((height - n) / 2)
    first_column = offset((width - n) / 2)
    return pixels[:, first_row : first_row + n, first_column : first_column + n]


def _pillow(pixels: torch.Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _rounded(image: Image.Image, n: int, mode: str, antialias: bool) -> Image.Image:
    """As `torchvision.transforms` resizes 8 bits: in floats, which are rounded."""
    scaled = _interpolated(_bytes_of(image).float(), n, mode, antialias)
    # Bicubic overshoots at edges: without the clamp 256 would become 0.
    return _pillow(_cropped(scaled.round().clamp(0, 255).to(torch.uint8), n))


def _in_bytes(image: Image.Image, n: int, mode: str) -> Image.Image:
    """As `torchvision.transforms.v2` resizes 8 bits."""
    return _pillow(_cropped(_interpolated(_bytes_of(image), n, mode, True), n))


def _in_floats(image: Image.Image, n: int, mode: str, antialias: bool) -> torch.Tensor:
    """`ToTensor` before `Resize`: never rounded, and bicubic overshoots stay."""
    return _cropped(_interpolated(_bytes_of(image).float() / 255, n, mode, antialias), n)


def _on_white(image: Image.Image, n: int = 0) -> Image.Image:
    """The image on a white background, which shows where it is transparent."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")  # also of a palette with a transparent colour
    return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")


def _of_transformers(image: Image.Image, n: int, fast: bool, white: bool) -> Image.Image:
    """CLIPImageProcessor of transformers: RGB first, and a crop whose offset is rounded down."""
    image = _on_white(image) if white else image.convert("RGB")
    if fast:  # on tensors, which torchvision resizes
        scaled = _interpolated(_bytes_of(image), n, "bicubic", True)
    else:
        short = min(image.size)
        size = (int(n * image.width / short), int(n * image.height / short))
        scaled = _bytes_of(resized(image, size, Image.Resampling.BICUBIC))
    return _pillow(_cropped(scaled, n, int))


def _swapped(image: Image.Image, n: int) -> Image.Image:
    """Red and blue swapped in what the encoder takes: a palette is resized before it is RGB."""
    if image.mode not in ("RGB", "L") and n:
        image = _square(image, n, "bicubic")
    return Image.merge("RGB", image.convert("RGB").split()[::-1])


def _jpeg(image: Image.Image, n: int, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return Image.open(file)


def _squashed(image: Image.Image, n: int) -> Image.Image:
    return resized(image, (n, n), Image.Resampling.BICUBIC)


def _padded(image: Image.Image, n: int) -> Image.Image:
    """The longer side resized to n, with zeros of the image's mode around it: open_clip's mode `longest`."""
    longest = max(image.size)
    width = round(image.width * n / longest)
    height = round(image.height * n / longest)
    scaled = resized(image, (width, height), Image.Resampling.BICUBIC)
    square = Image.new(image.mode, (n, n), 0)
    if image.mode == "P":  # 0 is a colour of the palette, and none without one
        square.putpalette(image.getpalette("RGB") or [], "RGB")
    square.paste(scaled, ((n - width) // 2, (n - height) // 2))
    return square


def _padded_first(image: Image.Image, n: int) -> Image.Image:
    """The image on a black square before it is resized."""
    longest = max(image.size)
    square = Image.new("RGB", (longest, longest))
    square.paste(image.convert("RGB"), ((longest - image.width) // 2, (longest - image.height) // 2))
    return square


def _end_lost(case: Case) -> Case:
    """Captions that are cut have the features of the start token."""
    # CLIP pools at the largest id, which is the end token's; without one it is the start token's, the next.
    metric = case.metric

    def text_features(texts: Sequence[str]) -> Any:
        encoded = metric.text_features(texts)
        start = metric.encoder.encode_tokens([""], **metric.run).features[0][0]
        is_cut = np.array(encoded.truncated)[:, None] > 0
        return replace(encoded, features=np.where(is_cut, start, encoded.features))

    return case.patched(text_features=text_features)


def _other_activation(case: Case) -> Case:
    """GELU for QuickGELU, or the reverse."""
    encoder = case.metric.encoder
    config = dict(encoder.config)
    config.pop("canary", None)  # which would refuse the other activation's outputs
    config["activation"] = "gelu" if config["activation"] == "quick_gelu" else "quick_gelu"
    tensors = case.metric.folder.tensors()
    changed = type(encoder)(config, tensors, device=str(encoder.device), dtype=encoder.dtype)
    return case.patched(encoder=changed)


def _half(images: Floats, captions: Floats) -> dict[str, Any]:
    """Columns of PAC-S, of features that are normalised in float16."""
    x = _half_unit(images)
    y = _half_unit(captions)
    return {"cosine": nullable(np.sum(x * y, axis=1).astype(np.float32))}


def _half_unit(features: Floats) -> Any:
    side = features.astype(np.float16)
    return side / np.sqrt(np.sum(side**2, axis=1, keepdims=True))


def _with_captions(case: Case) -> Case:
    """Document frequencies count captions, too."""
    documents = []
    for caption, references in zip(case.samples.captions, case.samples.references or [], strict=True):
        documents.append([caption, *references])
    return case.with_options(statistics=case.metric.prepare(documents))


def _both(case: Case, choose: Callable[[Ragged], Any] = Ragged.max) -> tuple[Any, Any]:
    """The score without references and a choice of their cosines; or precision and recall."""
    parts = case.values.parts
    if "precision" in parts:
        return np.asarray(parts["precision"]), np.asarray(parts["recall"])
    return parts[case.metric.free_key], np.maximum(choose(Ragged.of(case.rows["reference_cosines"])), 0)


def _flattened(case: Case) -> Case:
    """Each reference counts alone, and the mean over the references of a caption."""
    references = case.samples.references or []
    owner = []  # of each reference, the row of its caption
    single = []
    for row, texts in enumerate(references):
        for text in texts:
            owner.append(row)
            single.append([text])
    pairs = replace(case.samples.select(owner), references=single, indices=range(len(owner)))
    scores = case.metric.aggregate(canonical(case.metric.encode_all(pairs))).scores
    return case.with_scores(np.bincount(owner, scores) / np.bincount(owner))


def _without_caption(caption: str, references: list[str]) -> list[str]:
    return [reference for reference in references if reference != caption]


def _nltk(case: Case, method: int) -> Case:
    """BLEU-4 as `nltk.translate.bleu_score` smooths it, of captions and of the set."""
    sums = np.asarray(case.values.summands, dtype=np.float64)
    number = float(_nltk_bleu(sums.sum(axis=0), method))
    return case.with_scores(_nltk_bleu(sums, method), number)


def _nltk_bleu(sums: NDArray[np.float64], method: int) -> NDArray[np.float64]:
    """BLEU-4 of (..., 10) sums of `bleu_of_sums`; methods are those of NLTK's `SmoothingFunction`."""
    matches = sums[..., :4]
    # At least 1: a short caption has no n-gram of four words to divide by, and no match either.
    totals = np.maximum(sums[..., 4:8], 1)
    length = sums[..., 8]
    reference_length = sums[..., 9]
    absent = matches == 0
    halvings = 2.0 ** np.cumsum(absent, axis=-1)
    if method == 1:
        matches = np.where(absent, 0.1, matches)
    elif method == 2:
        more = np.array([0, 1, 1, 1])
        matches = matches + more
        totals = totals + more
    elif method == 3:
        matches = np.where(absent, 1 / halvings, matches)
    elif method == 4:
        logarithm = np.log(np.maximum(length, 1))[..., None]
        matches = np.where(absent, logarithm / (5 * halvings), matches)
        matches = np.where(matches > 0, matches, totals)  # of one word the logarithm is 0: it is left out
    brevity = np.exp(np.minimum(1 - reference_length / np.maximum(length, 1), 0))
    scores = brevity * np.prod((matches / totals) ** 0.25, axis=-1)
    return np.where(sums[..., 0] > 0, scores, 0.0)


def _objects_of(case: Case, *, named: bool) -> Case:
    """CHAIR with the objects of names alone, or of captions alone."""
    words = case.metric.words

    def of_kind(caption: str, references: list[str]) -> list[str]:
        return [text for text in references if (words.name(text) is not None) is named]

    return case.references(of_kind)


def _once(case: Case) -> Case:
    """CHAIR with each object of a caption counted once."""
    rows = case.rows
    for name in ("mentions", "hallucinated"):
        objects = [sorted(set(mentioned)) for mentioned in rows[name].to_pylist()]  # a sofa said twice is one
        rows = rows.set_column(rows.schema.names.index(name), rows.schema.field(name), [objects])
    return replace(case, rows=rows).combined()


def _of_mentioning(case: Case) -> Case:
    """The mean of CHAIR-i of the captions that mention an object."""
    has_mentions = np.array([len(objects) > 0 for objects in case.rows["mentions"].to_pylist()])
    scores = np.asarray(case.scores)[has_mentions]
    return case.with_scores(case.scores, float(np.mean(scores)) if len(scores) else 0.0)


def _cut(text: str, words: int) -> str:
    """The first words of a text."""
    # The text itself is cut, not joined again: its line breaks stay where a parser of sentences needs them.
    following = next(itertools.islice(re.finditer(r"\S+", text), words, None), None)
    return text if following is None else text[: following.start()]


def _finished(text: str) -> str:
    """A text up to its last full stop; whole without one."""
    return text[: text.rfind(".") + 1] or text


def _best_f(case: Case) -> Any:
    """ROUGE-L of the reference with the best F, in which precision and recall count alike."""
    common = Ragged.of(case.rows["common"])
    lengths = Ragged.of(case.rows["reference_lengths"])
    of_caption = np.repeat(case.rows["length"].to_numpy(), common.lengths)
    return Ragged(2 * common.values / (of_caption + lengths.values), common.lengths).max()


def _of_images(case: Case, how: str, once: bool = False) -> Case:
    import pandas as pd

    keys = [np.array(case.rows["group"].to_pylist())]  # one group per image
    if once:
        keys.append(np.array(case.samples.captions))
    table = pd.Series(case.scores).groupby(keys, sort=False)  # unsorted: `first` and `last` are of the rows
    return case.with_scores(case.scores, float(table.agg(how).mean()))


def _sorted(ids: Sequence[str], key: Callable[[str], Any]) -> list[int]:
    """Rows in the order of their ids; rows of one id keep their order."""
    return sorted(range(len(ids)), key=lambda row: key(ids[row]))


def _natural(text: str) -> list[Any]:
    """A key that sorts digits by their value."""
    key: list[Any] = []
    for part in re.split(r"(\d+)", text):
        # The flag parts numbers from texts, which Python does not compare.
        key.append((True, int(part)) if part.isdigit() else (False, part))
    return key


SWITCHES: list[Switch] = []
"""All switches, in the order in which a variant combines them."""
COST_OF_TEXTS = 1
COST_OF_IMAGES = 2
COST_OF_WEIGHTS = 3


def _block(
    step: Step,
    metrics: str = "",
    group: str = "",
    method: Callable[..., Case] | None = None,
    cost: int | None = None,
) -> Callable[..., None]:
    """A function that adds switches of one step, metrics and group. method: of `Case`, that takes a change;
    None: the change is a function of a case."""
    changes_images = method in (Case.images, Case.float_pixels)
    if cost is None:
        cost = _usual_cost(step, changes_images or metrics == "images")

    def add(name: str, sentence: str, change: Any) -> None:
        if method is None:
            changed = change
        elif changes_images:  # whose features are cached under the name of the change
            changed = lambda case: method(case, change, name)  # noqa: E731
        else:
            changed = lambda case: method(case, change)  # noqa: E731
        dtype = None
        for bits in ("float16", "bfloat16"):  # in this order, since the one name holds the other
            if bits in name:
                dtype = bits
        SWITCHES.append(Switch(name, sentence, changed, step, metrics, group or name, cost, dtype))

    return add


def _usual_cost(step: Step, changes_images: bool) -> int:
    if step != Step.ENCODED:
        return 0
    return COST_OF_IMAGES if changes_images else COST_OF_TEXTS


def _options(step: Step, entries: list[dict[str, Any]]) -> None:
    """Add switches of options."""
    for entry in entries:
        option = entry["option"]
        add = _block(step, entry["metrics"], option, cost=entry.get("cost"))
        for value in entry["values"]:
            change = partial(Case.with_options, **{option: value})
            add(f"{option}={value!r}", f"the option {option} is {value!r}", change)


# The order is that of a computation: a variant applies its switches in it, texts before tokens, images from
# file to tensor, scores at the end.
_DATA = tomllib.loads(Path(__file__).with_name("switches.toml").read_text(encoding="utf-8"))
_options(Step.ENCODED, _DATA["encoded"])
add = _block(Step.ENCODED, CIDER)
add("captions too", "document frequencies count captions, too", _with_captions)
add("other CIDEr", "CIDEr, or CIDEr-D instead", lambda case: case.patched(clipped=not case.metric.clipped))

add = _block(Step.ENCODED, method=Case.captions)
add("lower case", "captions are made lower case", str.lower)
add("stripped", "white space around captions is left out", str.strip)
add("no punctuation", "captions have no punctuation", partial(re.sub, r"[^\w\s]", ""))
add("77 characters", "captions are cut after 77 characters", lambda text: text[:77])
add = _block(Step.ENCODED, "", "full stop", Case.captions)
add("full stop", "captions end with a full stop", lambda text: text.rstrip(" .") + ".")
add("no full stop", "captions end without a full stop", lambda text: text.rstrip(" ."))
add = _block(Step.ENCODED, "weights", method=Case.texts)
add("PTB", "networks read PTB's tokens, joined by spaces", lambda text: " ".join(ptb_tokens(text)))
add = _block(Step.ENCODED, f"bleu rougel {CIDER}", "tokens", Case.words)
add("no tokenizer", "texts are split at spaces, without a tokenizer", str.split)
add("lower, no tokenizer", "lower-case texts are split at spaces", lambda text: text.lower().split())
add("a-z, 0-9", "words as in rouge_score", lambda text: re.findall("[a-z0-9]+", text.lower()))
add("punctuation", "punctuation counts as words", lambda text: re.findall(r"\w+|[^\w\s]", text.lower()))
add = _block(Step.ENCODED, "references", "references", Case.references)
add("first reference", "the first reference alone counts", lambda caption, texts: texts[:1])
add("last reference", "the last reference alone counts", lambda caption, texts: texts[-1:])
add("not the first reference", "all references but the first count", lambda caption, texts: texts[1:])
add("not the rated one", "no reference is the caption", _without_caption)
add = _block(Step.ENCODED, "chair", "references")
add("names alone", "the annotated objects alone are in the image", partial(_objects_of, named=True))
add("captions alone", "the objects of captions alone are in the image", partial(_objects_of, named=False))
add = _block(Step.ENCODED, "chair", "length", Case.captions)
for length in (64, 512):
    add(f"{length} words", f"captions are cut after {length} words", partial(_cut, words=length))
add("finished sentences", "captions are cut after their last full stop", _finished)
for column in ("references", "images"):
    add = _block(Step.ENCODED, column, column, Case.with_next)
    add(f"{column} off by one", f"captions meet the next caption's {column}", column)
# Images, in the order of a pipeline: turn, mode, reduction, JPEG, resize with crop, channels.
add = _block(Step.ENCODED, "images", "", Case.images)
add("upright", "photographs are turned upright (EXIF)", lambda image, n: ImageOps.exif_transpose(image))
add = _block(Step.ENCODED, "images", "mode", Case.images)
add("RGB first", "images become RGB before they are resized", lambda image, n: image.convert("RGB"))
add("on white", "transparent images come on white, in RGB before they are resized", _on_white)

add = _block(Step.ENCODED, "images", "", Case.images)
add("256 pixels", "images are 256 pixels long first", lambda image, n: ImageOps.contain(image, (256, 256)))
add = _block(Step.ENCODED, "images", "JPEG", Case.images)
for quality in (75, 95):
    add(f"JPEG {quality}", f"JPEG again, of quality {quality}", partial(_jpeg, quality=quality))
add = _block(Step.ENCODED, CLIP, "resize", Case.images)
for name in ("bilinear", "lanczos", "nearest"):
    add(name, f"images are resized by Pillow's {name} filter", partial(_square, name=name))
for mode, antialias in itertools.product(("bicubic", "bilinear"), (True, False)):
    how = mode if antialias else f"{mode}, no antialias"
    sentence = f"images are resized as tensors: {how}"
    change = partial(_rounded, mode=mode, antialias=antialias)
    add(how.replace(mode, f"{mode} on tensors"), sentence, change)
    change_floats = partial(_in_floats, mode=mode, antialias=antialias)
    add_floats = _block(Step.ENCODED, CLIP, "resize", Case.float_pixels)
    add_floats(how.replace(mode, f"{mode} on floats"), f"{sentence}, in [0, 1]", change_floats)
for mode in ("bicubic", "bilinear"):
    sentence = f"images are resized as tensors of 8 bits: {mode}"
    add(f"{mode} on bytes", sentence, partial(_in_bytes, mode=mode))
for fast, white in itertools.product((True, False), (True, False)):
    backend = "torchvision" if fast else "Pillow"
    name = f"transformers, {backend}" if white else f"transformers, {backend}, alpha dropped"
    sentence = f"images are prepared by CLIPImageProcessor of transformers with {backend}"
    sentence = sentence if white else f"{sentence}, without a background"
    add(name, sentence, partial(_of_transformers, fast=fast, white=white))
add("squashed", "images are squashed to a square", _squashed)
add("padded", "images are padded to a square after they are resized", _padded)
add("padded first", "images are padded to a square before they are resized", _padded_first)
add = _block(Step.ENCODED, "images", "", Case.images)
add("BGR", "red and blue are swapped", _swapped)
add = _block(Step.ENCODED, CLIP, "prompt")
add(
    "prompt twice",
    "the prompt comes twice",
    lambda case: case.with_options(prompt=case.metric.options.prompt * 2),
)
add = _block(Step.ENCODED, CLIP)
add("end token lost", "cut captions lose their end token, so that the start token is read", _end_lost)
add = _block(Step.ENCODED, CLIP, cost=COST_OF_WEIGHTS)
add("other GELU", "GELU for QuickGELU, or the reverse", _other_activation)
add = _block(Step.ENCODED, CLIP)
add("float16 normalisation", "features are normalised in float16", lambda case: case.patched(columns=_half))
_options(Step.SCORED, _DATA["scored"])
_block(Step.SCORED, "chair")("objects once", "each object of a caption counts once", _once)
add = _block(Step.SCORED, "pacs clips", method=Case.scored_by)
add(
    "no max", "negative cosines stay so", lambda case: case.with_part("cosine").scores * case.metric.options.w
)
add = _block(Step.SCORED, REFCLIP, "formula", Case.scored_by)
add("mean of references", "the mean cosine counts", lambda case: harmonic_mean(*_both(case, Ragged.mean)))
add("arithmetic mean", "the arithmetic mean of both", lambda case: sum(_both(case)) / 2)
add("geometric mean", "the geometric mean of both", lambda case: np.sqrt(np.prod(_both(case), axis=0)))
add = _block(Step.SCORED, "rougel vilbertscore", "formula", Case.scored_by)
add("equal F", "precision and recall count alike", lambda case: harmonic_mean(*_both(case)))
for entry in _DATA["parts"]:
    add = _block(Step.SCORED, entry["metrics"], "formula", Case.with_part)
    for name in entry["names"]:
        add(name, f"{name} stands in place of the score", name)
add = _block(Step.SCORED, "rougel", "formula", Case.scored_by)
add("best F", "F, with equal weights, of the best reference, as in rouge_score", _best_f)
add = _block(Step.SCORED, "bleu", "formula")
add("NLTK", "0 where nothing matches, as in NLTK", partial(_nltk, method=0))
for method, smoothing in enumerate(("0.1 for 0", "1 added for 2 to 4 words", "halves for 0", "by length"), 1):
    add(f"NLTK's method{method}", f"smoothed as in NLTK: {smoothing}", partial(_nltk, method=method))
_block(Step.SCORED, "references", "references")("flattened", "each reference counts alone", _flattened)
add = _block(Step.SCORED, "", "scale", lambda case, n: case.with_scores(case.scores * n, case.mean * n))
add("times 100", "scores are times 100", 100)
add("divided by 10", "scores are divided by 10", 0.1)
add = _block(Step.SCORED, "", "order", Case.scored_by)
add("sorted by id", "scores are in the order of sorted ids", lambda case: case.scores[_sorted(case.ids, str)])
add(
    "sorted by number",
    "scores are in the order of ids as numbers",
    lambda case: case.scores[_sorted(case.ids, _natural)],
)
add("off by one", "scores stand one row too late", lambda case: np.roll(case.scores, 1))
add = _block(Step.SCORED, method=Case.scored_by)
add("float16 scores", "scores are rounded to float16", lambda case: case.scores.astype(np.float16))
add("failed as 0", "captions that failed count 0", lambda case: np.nan_to_num(case.scores))
add = _block(Step.NUMBER, "chair", "number")
add("mean of mentioning captions", "the mean of captions that mention an object", _of_mentioning)
add = _block(Step.NUMBER, "", "number")
add("mean of captions", "the mean of the captions' own scores", lambda case: case.with_scores(case.scores))
add("median", "the median of scores", lambda case: case.with_scores(case.scores, np.nanmedian(case.scores)))
for how in ("mean", "max", "first", "last"):
    add(f"{how} of images", f"the mean over images of the {how} score of each", partial(_of_images, how=how))
add("duplicates once", "equal captions of an image count once", partial(_of_images, how="first", once=True))

KNOWN: list[tuple[str, str, list[str]]] = []
for tool in _DATA["tools"]:
    KNOWN.append((tool["name"], tool["metrics"], tool["switches"]))
"""Tools, the metrics that they compute so, and the switches that they combine."""
