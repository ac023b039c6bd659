"""`why` put to the test with numbers that other people's code made.

    python -m benchmarks.why_others [--seed 0]

Images, captions and references are drawn; sides are odd, some files are turned by EXIF, transparent, grey, or
have a palette. Scores come from transformers, open_clip, torchvision, OpenCV and torchmetrics on the packaged
tiny CLIP (`benchmarks.other_tools`), and from pycocoevalcap, NLTK and rouge_score. A change that moves
nothing here is no case. A known one is good if the true variant is the only one, or one of three; changes
in nobody's list are made by the same code. `benchmarks/results/why_others.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import re
import string
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import InterpolationMode, functional, v2

import capeval_core
from benchmarks.other_tools import image_features, of_torchmetrics, pixels_of, text_features, unit
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.replay.why import Search
from tools.captions import describe
from tools.exactness import RESULTS
from tools.scenes import draw, sample_scene

CAPTIONS = 32
IMAGES = 16
SIZE = 48  # of the tiny CLIP
PAIRS = 30
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
ENDS = (".", "", "!", ". It doesn't move.", ", seen from above.", " .")
BICUBIC = InterpolationMode.BICUBIC
BILINEAR = InterpolationMode.BILINEAR
Case = tuple[str, str, Callable[[], Any]]
"""Metric, the switches of the true variant (empty: nobody's), and what makes the scores."""


class Inputs(NamedTuple):
    captions: list[str]
    images: list[Path]
    references: list[list[str]]
    ids: list[str]


def inputs(folder: Path, rng: np.random.Generator) -> Inputs:
    scenes = [sample_scene(rng) for _ in range(IMAGES)]
    paths = []
    for number, scene in enumerate(scenes):
        width, height = (int(side) for side in rng.integers(90, 400, 2))
        image = draw(scene, 400).crop((0, 0, width, height))
        kind = ("jpg", "jpg", "jpg", "RGBA", "P", "L", "jpg", "jpg")[number % 8]
        path = folder / f"{rng.integers(10**6)}.{'png' if kind in ('RGBA', 'P', 'L') else 'jpg'}"
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 4 == 1 else 1
        if kind == "RGBA":
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        elif kind != "jpg":
            image = image.convert(kind)
        image.save(path, **({"exif": exif, "quality": 92} if path.suffix == ".jpg" else {}))
        paths.append(path)

    def text(scene: Any) -> str:
        return describe(scene, rng).capitalize() + str(rng.choice(ENDS))

    owner = rng.integers(0, IMAGES, CAPTIONS).tolist()

    def texts(scene: Any, count: int) -> list[str]:
        return [text(scene) for _ in range(count)]

    references = [texts(scene, 2 + number % 4) for number, scene in enumerate(scenes)]
    captions = []
    for row, image in enumerate(owner):
        blank = " " if row % 9 == 0 else ""
        captions.append(blank + text(scenes[image]))
    captions[::11] = [references[image][0] for image in owner[::11]]
    captions[5::13] = [" and ".join(texts(scenes[image], 14)) for image in owner[5::13]]
    return Inputs(
        captions,
        [paths[image] for image in owner],
        [references[image] for image in owner],
        [paths[image].stem for image in owner],
    )


# ---- images, by other code


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return functional.normalize(pixels, MEAN, STD)


def open_clip_pixels(image: Image.Image, **options: Any) -> torch.Tensor:
    from open_clip.transform import image_transform

    pixels: torch.Tensor = image_transform(SIZE, is_train=False, mean=MEAN, std=STD, **options)(image)
    return pixels


def tensor_pixels(image: Image.Image, mode: InterpolationMode, antialias: bool, how: str) -> torch.Tensor:
    """torchvision on tensors of 8 bits (v1, v2) or on floats."""
    pixels = functional.pil_to_tensor(image.convert("RGB"))
    if how == "floats":
        pixels = pixels.float() / 255
    resize: Any = v2.functional.resize if how == "v2" else functional.resize
    cropped = functional.center_crop(resize(pixels, [SIZE], mode, antialias=antialias), [SIZE])
    return normalised(cropped if how == "floats" else cropped.float() / 255)


def cv2_image(path: Path, *, swapped: bool) -> Image.Image:
    pixels = cv2.imread(str(path))
    return Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if swapped else pixels)


def cv2_pixels(path: Path, method: int) -> torch.Tensor:
    pixels = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
    resized = cv2.resize(pixels, (SIZE, SIZE), interpolation=method)
    return normalised(torch.from_numpy(resized).permute(2, 0, 1).float() / 255)


def again(image: Image.Image, folder: Path, quality: int) -> Image.Image:
    path = folder / "again.jpg"
    image.convert("RGB").save(path, quality=quality)
    return Image.open(path).copy()


def thumbnail(image: Image.Image) -> Image.Image:
    return ImageOps.contain(image, (256, 256))


def padded_first(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    longest = max(image.size)
    square = Image.new("RGB", (longest, longest))
    square.paste(image, ((longest - image.width) // 2, (longest - image.height) // 2))
    return square


def image_ways(folder: Path) -> dict[str, Callable[[Path], torch.Tensor]]:
    """Ways to the pixels of a file, by the switches of the variant."""
    opened = Image.open
    plain = open_clip_pixels
    ways: dict[str, Callable[[Path], torch.Tensor]] = {
        "": lambda path: plain(opened(path)),
        "bilinear": lambda path: plain(opened(path), interpolation="bilinear"),
        "squashed": lambda path: plain(opened(path), resize_mode="squash"),
        "padded": lambda path: plain(opened(path), resize_mode="longest"),
        "padded first": lambda path: plain(padded_first(opened(path))),
        "upright": lambda path: plain(ImageOps.exif_transpose(opened(path))),
        "RGB first": lambda path: plain(opened(path).convert("RGB")),
        "256 pixels": lambda path: plain(thumbnail(opened(path))),
        "BGR": lambda path: normalised(
            (plain(opened(path)) * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]).flip(
                0
            )
        ),
        "upright + RGB first + BGR": lambda path: plain(cv2_image(path, swapped=False)),
        "upright + RGB first": lambda path: plain(cv2_image(path, swapped=True)),
        "transformers, torchvision": lambda path: pixels_of([opened(path)], True)[0],
        "transformers, Pillow": lambda path: pixels_of([opened(path)], False)[0],
        "transformers, torchvision, alpha dropped": lambda path: pixels_of(
            [opened(path).convert("RGB")], True
        )[0],
        "transformers, Pillow, alpha dropped": lambda path: pixels_of([opened(path).convert("RGB")], False)[
            0
        ],
        "upright + bilinear": lambda path: plain(
            ImageOps.exif_transpose(opened(path)), interpolation="bilinear"
        ),
        "JPEG 75 + bilinear": lambda path: plain(again(opened(path), folder, 75), interpolation="bilinear"),
        "256 pixels + JPEG 75": lambda path: plain(again(thumbnail(opened(path)), folder, 75)),
        "upright + transformers, torchvision": lambda path: pixels_of(
            [ImageOps.exif_transpose(opened(path))], True
        )[0],
        "JPEG 95 + transformers, Pillow": lambda path: pixels_of([again(opened(path), folder, 95)], False)[0],
    }
    for quality in (75, 95):
        ways[f"JPEG {quality}"] = lambda path, q=quality: plain(again(opened(path), folder, q))
    for mode, antialias in itertools.product((BICUBIC, BILINEAR), (True, False)):
        end = "" if antialias else ", no antialias"
        for how, name in (("v1", "tensors"), ("floats", "floats")):
            ways[f"{mode.value} on {name}{end}"] = lambda path, m=mode, a=antialias, h=how: tensor_pixels(
                opened(path), m, a, h
            )
        if antialias:
            ways[f"{mode.value} on bytes"] = lambda path, m=mode: tensor_pixels(opened(path), m, True, "v2")
    for name in ("lanczos", "nearest"):
        method = InterpolationMode[name.upper()]

        def of_pillow(path: Path, method: InterpolationMode = method) -> torch.Tensor:
            image = functional.center_crop(functional.resize(opened(path), [SIZE], method), [SIZE])
            return normalised(functional.to_tensor(image.convert("RGB")))

        ways[name] = of_pillow
    return ways


def nobodys_images() -> list[Callable[[Path], torch.Tensor]]:
    opened = Image.open
    plain = open_clip_pixels

    def cropped(path: Path) -> torch.Tensor:
        image = opened(path)
        return plain(image.crop((1, 1, image.width, image.height)))

    def jpeg(path: Path, quality: int) -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:
            return plain(again(opened(path), Path(folder), quality))

    def gamma(path: Path, power: float) -> torch.Tensor:
        image = opened(path).convert("RGB")
        return plain(image.point([round(255 * (value / 255) ** power) for value in range(256)] * 3))

    return [
        *(
            partial(cv2_pixels, method=method)
            for method in (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_CUBIC)
        ),
        *(partial(jpeg, quality=quality) for quality in (40, 85, 98)),
        *(partial(gamma, power=power) for power in (1.02, 1.3)),
        cropped,
        lambda path: plain(opened(path).convert("RGB").filter(ImageFilter.GaussianBlur(1))),
        lambda path: plain(opened(path).convert("RGB").rotate(2)),
        lambda path: plain(opened(path).convert("L")),
        lambda path: plain(ImageOps.mirror(opened(path))),
        lambda path: plain(ImageOps.autocontrast(opened(path).convert("RGB"))),
        lambda path: plain(opened(path).convert("RGB").reduce(2)),
    ]


# ---- scores of CLIP


class Clip:
    """CLIP-S and RefCLIP-S by transformers' model."""

    def __init__(self, data: Inputs, folder: Path) -> None:
        self.data = data
        self.ways = image_ways(folder)
        self.prompt = capeval_core.load("clips", weights="tiny").options.prompt

    @cache  # noqa: B019
    def images(self, way: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        make = self.ways[way] if isinstance(way, str) else way
        files = {path: make(path) for path in dict.fromkeys(self.data.images)}
        return image_features(torch.stack([files[path] for path in self.data.images]), dtype).float()

    def texts(
        self,
        prompt: str | None = None,
        change: Callable[[str], str] = str,
        *,
        cut: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        put_before = self.prompt if prompt is None else prompt
        texts = [f"{put_before}{change(caption)}" for caption in self.data.captions]
        return torch.cat([text_features([text], dtype, cut=cut) for text in texts]).float()

    def cosines(self, way: Any = "", texts: torch.Tensor | None = None, dtype: Any = torch.float32) -> Any:
        features = self.texts(dtype=dtype) if texts is None else texts
        return (unit(self.images(way, dtype)) * unit(features)).sum(1).double().numpy()

    def clips(self, way: Any = "", texts: torch.Tensor | None = None, w: float = 2.5, **options: Any) -> Any:
        return w * np.maximum(self.cosines(way, texts, **options), 0)

    def refclips(self, choose: str = "all", mean: str = "harmonic", way: str = "") -> Any:
        texts = unit(self.texts())
        pac = self.clips(way)
        scores = []
        for row, references in enumerate(self.data.references):
            of_references = unit(torch.cat([text_features([f"{self.prompt}{text}"]) for text in references]))
            cosines = (of_references @ texts[row]).double().numpy()
            cosines = {"first": cosines[:1], "last": cosines[-1:], "others": cosines[1:]}.get(choose, cosines)
            nearest = max(cosines.mean() if choose == "mean" else cosines.max(), 0)
            if mean == "harmonic":
                scores.append(2 * pac[row] * nearest / (pac[row] + nearest) if pac[row] + nearest else 0.0)
            else:
                scores.append(
                    (pac[row] + nearest) / 2 if mean == "arithmetic" else (pac[row] * nearest) ** 0.5
                )
        return np.array(scores)


def half_normalised(clip: Clip) -> Any:
    """As clipscore.py on a GPU, with NumPy since 1.21."""
    sides = [clip.images("", torch.float16).numpy().astype(np.float16)]
    sides.append(clip.texts(dtype=torch.float16).numpy().astype(np.float16))
    x, y = (side / np.sqrt(np.sum(side**2, axis=1, keepdims=True)) for side in sides)
    return 2.5 * np.clip(np.sum(x * y, axis=1), 0, None)


TEXT_CHANGES: dict[str, Callable[[str], str]] = {
    "no punctuation": lambda text: text.translate(str.maketrans("", "", string.punctuation)),
    "77 characters": lambda text: text[:77],
    "full stop": lambda text: text.rstrip(" .") + ".",
    "no full stop": lambda text: text.rstrip(" ."),
    "PTB": lambda text: " ".join(ptb_tokens(text)),
}
PROMPTS = ("", "A photo of ", "a picture of ", "A photo depicting ")


def clip_cases(clip: Clip, rng: np.random.Generator) -> Iterator[Case]:
    rows = range(len(clip.given.ids))
    ordered = sorted(rows, key=clip.given.ids.__getitem__)
    for way in filter(None, clip.ways):
        yield "clips", way, partial(clip.clips, way)
    for prompt in PROMPTS:
        yield "clips", f"prompt={prompt!r}", lambda p=prompt: clip.clips("", clip.texts(p))
    for name, change in TEXT_CHANGES.items():
        yield "clips", name, lambda c=change: clip.clips("", clip.texts(None, c))
    for w in (1.0, 2.0, 100.0):
        yield "clips", f"w={w}", lambda w=w: clip.clips(w=w)
    yield "clips", "end token lost", lambda: clip.clips("", clip.texts(cut=False))
    yield "clips", "no max", lambda: 2.5 * clip.cosines()
    yield "clips", "sorted by id", lambda: clip.clips()[ordered]
    yield "clips", "off by one", lambda: np.roll(clip.clips(), 1)
    yield "clips", "times 100", lambda: clip.clips() * 100
    yield "clips", "float16 scores", lambda: clip.clips().astype(np.float16).astype(float)
    yield "clips", "dtype='float16'", lambda: clip.clips("", dtype=torch.float16)
    yield "clips", "dtype='bfloat16'", lambda: clip.clips("", dtype=torch.bfloat16)
    half = "dtype='float16' + float16 normalisation + float16 scores"
    yield "clips", half, lambda: half_normalised(clip).astype(np.float16).astype(float)
    for names, way, w in (
        ("prompt='' + w=1.0 + no max", "", 1.0),
        ("prompt='' + w=100.0 + no max", "", 100.0),
        ("transformers, torchvision + prompt='' + w=100.0 + no max", "transformers, torchvision", 100.0),
        ("transformers, torchvision + prompt='' + w=1.0 + no max", "transformers, torchvision", 1.0),
    ):
        yield "clips", names, lambda way=way, w=w: w * clip.cosines(way, clip.texts(""))
    for fast in (True, False):
        tensors = [functional.pil_to_tensor(Image.open(path).convert("RGB")) for path in clip.given.images]
        backend = "torchvision" if fast else "Pillow"
        names = f"transformers, {backend}, alpha dropped + prompt='' + end token lost + w=100.0 + no max"
        yield "clips", names, partial(of_torchmetrics, tensors, clip.given.captions, fast)
    for choose, name in (("first", "first reference"), ("last", "last reference")):
        yield "refclips", name, partial(clip.refclips, choose)
    yield "refclips", "not the first reference", partial(clip.refclips, "others")
    yield "refclips", "mean of references", partial(clip.refclips, "mean")
    yield "refclips", "arithmetic mean", partial(clip.refclips, "all", "arithmetic")
    yield "refclips", "geometric mean", partial(clip.refclips, "all", "geometric")
    for way in ("transformers, torchvision", "transformers, Pillow", "bilinear", "upright"):
        yield "refclips", way, partial(clip.refclips, "all", "harmonic", way)
    ways = [way for way in clip.ways if way and "+" not in way]
    for number in range(PAIRS):
        way = ways[rng.integers(len(ways))]
        if number % 3 == 0:
            prompt = PROMPTS[rng.integers(len(PROMPTS))]
            yield (
                "clips",
                f"{way} + prompt={prompt!r}",
                lambda way=way, p=prompt: clip.clips(way, clip.texts(p)),
            )
        elif number % 3 == 1:
            name = list(TEXT_CHANGES)[rng.integers(len(TEXT_CHANGES))]
            yield (
                "clips",
                f"{way} + {name}",
                lambda way=way, n=name: clip.clips(way, clip.texts(None, TEXT_CHANGES[n])),
            )
        else:
            w = (1.0, 2.0, 100.0)[rng.integers(3)]
            yield "clips", f"{way} + w={w}", lambda way=way, w=w: clip.clips(way, w=w)


def nobodys_clips(clip: Clip, rng: np.random.Generator) -> Iterator[Case]:
    for way in nobodys_images():
        yield "clips", "", partial(clip.clips, way)
    for prompt in ("An image of ", "a photo of a ", "Caption: "):
        yield "clips", "", lambda p=prompt: clip.clips("", clip.texts(p))
    for change in (
        lambda text: " ".join(text.split()[1:]),
        lambda text: " ".join(reversed(text.split())),
        lambda text: text.replace(",", " ,"),
        lambda text: text.title(),
        lambda text: re.sub(r"\b(a|an|the)\b ", "", text),
    ):
        yield "clips", "", lambda c=change: clip.clips("", clip.texts(None, c))
    plain = clip.clips
    for change_scores in (
        lambda scores: scores**2,
        lambda scores: scores + 0.01,
        lambda scores: scores * 0.97,
        lambda scores: scores * 1.7,
        lambda scores: scores + 3e-4 * rng.standard_normal(len(scores)),
        lambda scores: scores + 2e-3 * rng.standard_normal(len(scores)),
        lambda scores: np.where(np.arange(len(scores)) % 5 == 0, scores + 4e-4, scores),
        lambda scores: scores * (1 + 4e-4),
        lambda scores: np.log1p(scores),
        lambda scores: np.round(scores, 2) + 1e-3,
    ):
        yield "clips", "", lambda c=change_scores: c(plain())


# ---- texts


Tokens = Callable[[str], list[str]]
PTB: Tokens = lambda text: list(ptb_tokens(text))  # noqa: E731
TOKENS: dict[str, Tokens] = {
    "": PTB,
    "no tokenizer": str.split,
    "lower, no tokenizer": lambda text: text.lower().split(),
}


def coco(data: Inputs, scorer: Any, tokens: Tokens, name: str, first: bool = False, scale: float = 1) -> Any:
    rows = range(len(data.captions))
    captions = {row: [" ".join(tokens(data.captions[row]))] for row in rows}
    references = {}
    for row in rows:
        texts = data.references[row][: 1 if first else None]
        references[row] = [" ".join(tokens(text)) for text in texts]
    if name == "bleu":
        of_set, scores = scorer.compute_score(references, captions, verbose=0)
        return scale * np.array(scores[3]), scale * of_set[3]
    return scale * np.asarray(scorer.compute_score(references, captions)[1])


def nltk_scores(data: Inputs, tokens: Tokens, method: int) -> Any:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smoothing = getattr(SmoothingFunction(), f"method{method}")
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for caption, references in zip(data.captions, data.references, strict=True):
            words = [tokens(text) for text in references]
            scores.append(float(sentence_bleu(words, tokens(caption), smoothing_function=smoothing)))
    return np.array(scores)


def rouge_scores(data: Inputs, kind: str, first: bool = False, stemmer: bool = False) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stemmer)
    pairs = zip(data.captions, data.references, strict=True)
    return np.array(
        [
            scorer.score_multi(references[: 1 if first else None], caption)[kind].fmeasure
            for caption, references in pairs
        ]
    )


def text_cases(data: Inputs) -> Iterator[Case]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    for metric, scorer in (("bleu", Bleu()), ("rougel", Rouge()), ("ciderd", Cider())):
        score = partial(coco, data, scorer, name=metric)
        for name, tokens in TOKENS.items():
            if name:
                yield metric, name, partial(score, tokens=tokens)
            names = " + ".join(filter(None, [name, "times 100"]))
            yield metric, names, partial(score, tokens=tokens, scale=100)
        yield metric, "first reference", partial(score, tokens=PTB, first=True)
        both = partial(score, tokens=str.split, first=True)
        yield metric, "no tokenizer + first reference", both
    for method in range(5):
        smoothing = f"NLTK's method{method}" if method else "NLTK"
        for name, tokens in TOKENS.items():
            names = " + ".join(filter(None, [name, smoothing]))
            yield "bleu", names, partial(nltk_scores, data, tokens, method)
    yield "rougel", "a-z, 0-9 + best F", partial(rouge_scores, data, "rougeL")
    ordered = sorted(range(len(data.ids)), key=data.ids.__getitem__)
    yield "rougel", "sorted by id", lambda: coco(data, Rouge(), PTB, "rougel")[ordered]


def nobodys_texts(data: Inputs) -> Iterator[Case]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    def short(text: str) -> list[str]:
        return PTB(text)[:5]

    def whole(text: str) -> list[str]:
        return [word for word in PTB(text) if word not in {"a", "the", "and"}]

    for metric, scorer in (("bleu", Bleu()), ("rougel", Rouge()), ("ciderd", Cider())):
        for tokens in (short, whole, lambda text: list(text.replace(" ", ""))):
            yield metric, "", partial(coco, data, scorer, tokens, metric)
    for kind in ("rouge1", "rouge2"):
        yield "rougel", "", partial(rouge_scores, data, kind)
    stemmed = rouge_scores(data, "rougeL", stemmer=True)
    if not np.allclose(stemmed, rouge_scores(data, "rougeL")):  # else no word of these has another stem
        yield "rougel", "", lambda: stemmed
    for method in (5, 7):
        yield "bleu", "", partial(nltk_scores, data, PTB, method)


# ---- the report


def names_of(outcome: Any) -> list[set[frozenset[str]]]:
    """The variants that remain, those together that make the same, as sets of switches."""
    groups = []
    for names in outcome.remaining:
        group = set()
        for name in names:
            switches = [] if name == OWN_SETTINGS else name.split(" + ")
            group.add(frozenset(switches))
        groups.append(group)
    return groups


OWN_SETTINGS = "capeval's own settings"
BAD = ("missed", "one of many", "WRONG")


def effective(search: Any, truth: str, form: str) -> str:
    """The switches of a known change without those that change nothing on these inputs."""
    by_name = {switch.name: switch for switch in search.switches}
    switches = [switch for switch in search.switches if switch.name in truth.split(" + ")]
    assert len(switches) == len(list(filter(None, truth.split(" + ")))), (truth, by_name.keys())

    def made(names: list[Any]) -> Any:
        case = search.scored(tuple(names))
        return case.scores if form == "scores" else float(f"{case.mean:#.4g}")

    for switch in list(switches):
        fewer = [each for each in switches if each is not switch]
        if np.allclose(made(switches), made(fewer), 0, 1e-9 if search.network is None else 1e-6):
            switches = fewer
    return " + ".join(switch.name for switch in switches)


def verdict(search: Any, theirs: Any, truth: str) -> tuple[str, str]:
    """The outcome of `why` on a number, and the variant that it named for sure."""
    answer = search.explain(theirs)
    if not truth:
        variant = "" if answer.variant in (None, OWN_SETTINGS) else answer.variant
        return ("WRONG" if variant else "honest"), variant
    groups = names_of(answer)
    true = frozenset(truth.split(" + "))
    is_right = any(true in group for group in groups)
    if answer.variant is not None:
        return ("named" if is_right else "WRONG"), answer.variant
    if not is_right:
        return "missed", ""
    return ("one of three" if len(groups) <= 3 else "one of many"), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    rng = np.random.default_rng(parser.parse_args().seed)
    started = time.process_time()
    outcomes: dict[tuple[str, str], list[str]] = {}
    lines = []
    with tempfile.TemporaryDirectory() as name:
        data = inputs(Path(name), rng)
        clip = Clip(data, Path(name))
        searches = {}
        for metric in ("clips", "refclips", "bleu", "rougel", "ciderd"):
            tiny: Any = {"weights": "tiny"} if "clips" in metric else {}
            opened: Any = capeval_core.load(metric, on_error="nan", **tiny)
            references = data.references if opened.needs_references else None
            samples = opened.check(data.captions, data.images if opened.media else None, references)
            searches[metric] = Search(opened, samples, data.ids)
            searches[metric].scored = cache(searches[metric].scored)
        known_cases = [*clip_cases(clip, rng), *text_cases(data)]
        nobodys = [*nobodys_clips(clip, rng), *nobodys_texts(data)]
        for kind, cases in (("known", known_cases), ("nobody's", nobodys)):
            for metric, truth, make in cases:
                computed = make()
                scores = np.asarray(
                    computed[0] if isinstance(computed, tuple) else computed, dtype=np.float64
                )
                of_set = computed[1] if isinstance(computed, tuple) else scores.mean()
                search = searches[metric]
                for form, theirs in (("scores", scores.tolist()), ("mean", f"{of_set:#.4g}")):
                    is_mean_of_bleu = metric == "bleu" and form == "mean" and not isinstance(computed, tuple)
                    switches = f"{truth} + mean of captions" if is_mean_of_bleu else truth
                    true = effective(search, switches, form) if truth else ""
                    if truth and not true:
                        continue
                    how, variant = verdict(search, theirs, true)
                    outcomes.setdefault((kind, form), []).append(how)
                    seconds = time.process_time() - started
                    print(f"{kind} {metric} {form} {truth or '-'}: {how} {variant} {seconds:.0f}", flush=True)
                    if how in BAD:
                        lines.append(f"| {kind} | {metric} | {form} | {truth} | {how} | {variant} |")
    seconds = time.process_time() - started
    packages = (
        "torch",
        "transformers",
        "open-clip-torch",
        "torchvision",
        "torchmetrics",
        "opencv-python-headless",
    )
    packages += ("pycocoevalcap", "nltk", "rouge-score", "pillow")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    report = [
        "# `why` against numbers of other people's code",
        "",
        f"{datetime.date.today()}; {versions}; {CAPTIONS} captions, {IMAGES} images;",
        f"`benchmarks/why_others.py`, {seconds:.0f} s of CPU.",
        "",
    ]
    for (kind, form), verdicts in outcomes.items():
        counts = {how: verdicts.count(how) for how in sorted(set(verdicts))}
        good = sum(how not in BAD for how in verdicts)
        listed = ", ".join(f"{count} {how}" for how, count in counts.items())
        report.append(
            f"- {kind} changes, {form}: {good} of {len(verdicts)} ({good / len(verdicts):.1%}): {listed}"
        )
    report += [
        "",
        "| | metric | data | change | outcome | named |",
        "| --- | --- | --- | --- | --- | --- |",
        *lines,
        "",
    ]
    (RESULTS / "why_others.md").write_text("\n".join(report))


if __name__ == "__main__":
    main()
