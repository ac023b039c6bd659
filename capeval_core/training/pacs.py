"""PAC-S's training: a CLIP is tuned by positive-augmented contrastive losses.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112, sections 3 and 4.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.errors import Problems, counted, file_error, warn, wrong_option
from capeval_core.fetching import open_listed
from capeval_core.inputs.images import InputImage
from capeval_core.models.device import on_device
from capeval_core.options import option
from capeval_core.project import __version__
from capeval_core.registry import network_of
from capeval_core.training.augmentation import Positives
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.towers import (
    SCALE,
    AdaptedClip,
    Inputs,
    Numbers,
    Projections,
    TowerEncoder,
    TunedClip,
    pixels_and_ids,
    tower_outputs,
)
from capeval_core.training.trainer import (
    TOWERS,
    VALIDATION,
    Looks,
    Objective,
    Phase,
    ReadTerms,
    Report,
    Trainer,
    Training,
    opened,
    scalar_terms,
)
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsError

CONTRAST = "contrast"  # the only phase of the training
REAL, GENERATED_IMAGES, GENERATED_CAPTIONS = "real pairs", "generated images", "generated captions"
"""The terms of eq. 3: L(V, T), L(V', T), L(V, T')."""
LAMBDA_V, LAMBDA_T = 0.05, 0.1  # weights of L(V', T) and L(V, T')
ABSENT = -1  # stands where a pair has no generated image or no generated caption


def info_nce(images: Tensor, texts: Tensor, scale: Tensor | float) -> Tensor:
    """Eq. 2: each image finds its text among all texts, each text its image; the sum of both means.

    images, texts: (n, d), of any length; row i of one belongs to row i of the other. scale: 1 / temperature.
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    own = torch.arange(len(logits), device=logits.device)
    return functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)


def _positive_augmented_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Eq. 3: the weighted sum of the terms."""
    return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


@dataclass(frozen=True, kw_only=True)
class PacsTraining(Training):
    """How PAC-S is trained. The defaults are the paper's, and those noted where it states none."""

    name: ClassVar = "pacs"
    metric: ClassVar = "pacs"
    shares: ClassVar[tuple[str, ...]] = ("validation",)
    free: ClassVar[tuple[str, ...]] = (*Training.free, "towers")
    betas: ClassVar = (0.9, 0.999)  # the paper states none: PyTorch's

    prompt: str | None = option(
        None,
        "put before captions, and recorded in the weights; None: that of the weights that it starts from",
    )
    lambda_v: float = option(
        LAMBDA_V, "weight of the loss between generated images and captions; 0: without", minimum=0
    )
    lambda_t: float = option(
        LAMBDA_T, "weight of the loss between images and generated captions; 0: without", minimum=0
    )
    temperature: float | None = option(
        None,
        "fixed temperature of the losses; None: as in CLIP, learned, from that of the weights, 0.01 at least",
        minimum=1e-3,
    )
    lora: int = option(
        0,
        "rank of low-rank adapters of attention, as in PAC-S++, which are trained in place of projections; "
        "0: the projections of both towers are, and a ResNet's attention pool",
        minimum=0,
    )
    validation: float = option(
        0.05, "share of the images that are held out, unless captions for validation are given", minimum=0
    )
    evaluate_every: int = option(100, "steps between two measurements of the validation loss", minimum=1)
    patience: int = option(
        1_500, "steps without a lower validation loss that end the training; 0: none", minimum=0
    )
    steps: int = option(100_000, "steps at most", minimum=1)
    learning_rate: float = option(1e-4, "the learning rate, after its rise", minimum=0)
    warmup: int = option(0, "steps over which the learning rate rises", minimum=0)
    batch_size: int = option(256, "pairs per forward pass, in all processes together", minimum=2)
    accumulation: int = option(1, "forward passes per step", minimum=1)
    clip: float = option(0.0, "largest norm of the gradient; 0: no limit", minimum=0)
    weight_decay: float = option(0.01, "decay of the matrices", minimum=0)
    stored: Literal["float16", "float32"] = option(
        "float32", "numeric type of the trained tensors that are written"
    )
    towers: str | PathLike[str] | None = option(
        None,
        "folder that keeps outputs of the frozen towers, for several trainings of the same weights; "
        "None: in --out",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience and self.patience < self.evaluate_every:
            found = f"is below the {self.evaluate_every} of evaluate_every"
            raise wrong_option("patience", self.patience, found, "look more often, or wait longer")

    def schedule(self) -> list[Phase]:
        return [Phase(CONTRAST, self.steps, self.learning_rate)]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: a linear rise, then constant."""
        return self.learning_rate * min((step + 1) / max(self.warmup, 1), 1.0)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term of eq. 3 that is not switched off."""
        weights = {REAL: 1.0, GENERATED_IMAGES: self.lambda_v, GENERATED_CAPTIONS: self.lambda_t}
        return {name: weight for name, weight in weights.items() if weight}


class _Pairs(NamedTuple):
    """Numbers of images and captions, generated ones behind the others, (n,) each."""

    images: Numbers
    captions: Numbers
    generated_images: Numbers
    generated_captions: Numbers


class _Lists:
    """A list of numbers for each of n things: those of thing i are `values[starts[i]:starts[i + 1]]`."""

    def __init__(self, things: int, owners: Sequence[int], values: Iterable[int]) -> None:
        own = np.array(owners, dtype=np.int64)
        self.values = np.fromiter(values, dtype=np.int64)[np.argsort(own, kind="stable")]
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=things))])

    def drawn(self, things: Numbers, lots: NDArray[np.float64]) -> Numbers:
        """One of each thing's numbers, by a lot in [0, 1); `ABSENT` where it has none."""
        if not len(self.values):
            return np.full(len(things), ABSENT)
        first, counts = self.starts[things], self.starts[things + 1] - self.starts[things]
        places = np.minimum(first + np.floor(lots * counts).astype(np.int64), len(self.values) - 1)
        return np.where(counts > 0, self.values[places], ABSENT)


class PairData:
    """Everything that a training of PAC-S learns from, checked; no weights are opened."""

    def __init__(
        self,
        training: PacsTraining,
        captioned: CaptionedImages,
        positives: Positives | None,
        validation: CaptionedImages | None = None,
    ) -> None:
        self.positives, self.validation = positives, validation
        count = len(captioned.ids)
        self.captioned = captioned if validation is None else _joined(captioned, validation)
        self._number(training)
        if validation is None:
            share = training.validation
            most = min(count, max(2, round(share * count))) if share else 0
            order = np.random.default_rng([training.seed, 2]).permutation(count)
            self.trained, self.held_out = np.sort(order[most:]), np.sort(order[:most])
        else:
            self.trained, self.held_out = np.arange(count), np.arange(count, len(self.captioned.ids))
        if training.batch_size > len(self.trained):
            found = f"is more than the {len(self.trained):,} images to train on"
            raise wrong_option("batch_size", training.batch_size, found, "pass a smaller one")
        if len(self.held_out) == 1:
            raise ValueError(
                "one image is held out for validation, but its loss needs two: give more captions"
            )

    def _number(self, training: PacsTraining) -> None:
        """Number captions, then generated ones, and images, then generated ones; see what belongs to what."""
        captioned, positives, problems = self.captioned, self.positives, Problems()
        ids, texts = captioned.ids, list(captioned.captions)
        number = {image_id: index for index, image_id in enumerate(ids)}
        self.captions = _Lists(len(ids), captioned.numbers, range(len(texts)))
        generated = [] if positives is None else [row for row in positives.captions if row[0] in number]
        owners = [number[image_id] for image_id, _ in generated]
        self.generated_captions = _Lists(len(ids), owners, range(len(texts), len(texts) + len(owners)))
        self.texts = texts + [text for _, text in generated]
        sources: dict[tuple[str, str], list[int]] = {}
        for caption, source in enumerate(zip(captioned.images, texts, strict=True)):
            sources.setdefault(source, []).append(caption)
        origins = [] if positives is None else positives.sources
        rows = [(c, i) for i, origin in enumerate(origins, len(ids)) for c in sources.get(origin, ())]
        self.generated_images = _Lists(len(texts), [c for c, _ in rows], [i for _, i in rows])
        self.generated = len(rows), len(generated)
        if positives is not None:
            unused = len(positives.captions) - len(generated) + sum(own not in sources for own in origins)
            if unused:
                warn(f"{unused:,} positives belong to no image or caption here")
        kinds = (("lambda_v", "images"), ("lambda_t", "captions"))
        for (name, what), count in zip(kinds, self.generated, strict=True):
            if (weight := getattr(training, name)) and not count:
                found = f"are no generated {what} of these captions"
                if positives is None:
                    found = "is no folder of positives"
                fix = "pass a folder that `capeval augment` made as `--positives`, or 0 to train without them"
                found = f"is a weight of generated {what}, but there {found}"
                problems.add(wrong_option(name, weight, found, fix))
        problems.raise_if_any()

    def visuals(self) -> Iterator[InputImage]:
        """All images, then the generated ones."""
        generated = self.positives.images() if self.positives is not None else iter(())
        images: Any = map(self.captioned.visual, range(len(self.captioned.ids)))
        return chain(images, generated)

    def drawn(self, images: Numbers, rng: np.random.Generator) -> _Pairs:
        """All of these images in random order, each with a caption and positives by lot."""
        order = images[rng.permutation(len(images))]
        lots = rng.random((3, len(order)))
        captions = self.captions.drawn(order, lots[0])
        generated = self.generated_images.drawn(captions, lots[1])
        return _Pairs(order, captions, generated, self.generated_captions.drawn(order, lots[2]))


def _joined(captioned: CaptionedImages, validation: CaptionedImages) -> CaptionedImages:
    """Images to train on, then those that are held out."""
    problems = Problems()
    for image_id in sorted({*captioned.ids} & {*validation.ids}):
        fix = "leave it out of one of them"
        problems.add(file_error("validation", f"{image_id!r} is also trained on", fix))
    problems.raise_if_any()
    count = len(captioned.ids)
    return CaptionedImages(
        captioned.ids + validation.ids,
        captioned.captions + validation.captions,
        captioned.images + validation.images,
        lambda i: captioned.visual(i) if i < count else validation.visual(i - count),
    )


class _PairBatch(NamedTuple):
    """What the model takes of n pairs; for each loss of positives what it takes of n, and which are there."""

    images: Tensor
    texts: Any
    generated: dict[str, tuple[Any, Tensor]]


class PacsObjective(Objective):
    """Projections, or adapters, of a CLIP with the losses of PAC-S.

    In an epoch each image comes at most once, with one of its captions and one positive of each kind, by lot.
    So no batch has two captions of one image, which would be each other's negatives.
    """

    model: TunedClip

    def __init__(
        self, training: PacsTraining, data: PairData, model: TunedClip, inputs: Inputs, world: int
    ) -> None:
        self.training, self.data, self.model, self.inputs, self.world = training, data, model, inputs, world
        self._epoch = lru_cache(maxsize=2)(
            lambda epoch: data.drawn(data.trained, np.random.default_rng([training.seed, 1, epoch]))
        )

    def batch(self, phase: str, number: int) -> _PairBatch:
        """The part of a process: number `batch * processes + process`."""
        size = self.training.batch_size
        batch, process = divmod(number, self.world)
        epoch, place = divmod(batch, len(self.data.trained) // size)
        each = size // self.world
        start = place * size + process * each
        return self._batch(_Pairs(*(numbers[start : start + each] for numbers in self._epoch(epoch))))

    def _batch(self, pairs: _Pairs) -> _PairBatch:
        inputs, generated = self.inputs, {}
        for name, made, own, take in (
            (GENERATED_IMAGES, pairs.generated_images, pairs.images, inputs.images),
            (GENERATED_CAPTIONS, pairs.generated_captions, pairs.captions, inputs.texts),
        ):
            if name in self.training.weights:
                there = made != ABSENT
                generated[name] = take(np.where(there, made, own)), torch.from_numpy(there)
        return _PairBatch(inputs.images(pairs.images), inputs.texts(pairs.captions), generated)

    def losses(self, phase: str, batch: _PairBatch) -> tuple[Tensor, ReadTerms]:
        terms = self._terms(batch, self._gathered)
        loss = _positive_augmented_loss(terms, self.training.weights)
        return loss, lambda: scalar_terms({**terms, "all": loss})

    def _terms(self, batch: _PairBatch, gathered: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The terms of eq. 3 that are switched on and have pairs, over the rows that `gathered` gives."""
        model = self.model
        device, scale = model.logit_scale.device, model.logit_scale.exp()

        def features(of: Callable[[Any], Tensor], inputs: Any) -> Tensor:
            return gathered(of(on_device(inputs, device) if isinstance(inputs, Tensor) else inputs))

        images, texts = features(model.images, batch.images), features(model.texts, batch.texts)
        terms = {REAL: info_nce(images, texts, scale)}
        for name, (inputs, there) in batch.generated.items():
            generated = features(model.images if name == GENERATED_IMAGES else model.texts, inputs)
            # One process does not wait for its device; several gather on their devices.
            present = on_device(gathered(there).cpu().nonzero()[:, 0], device)
            if len(present) and name == GENERATED_IMAGES:
                terms[name] = info_nce(generated[present], texts[present], scale)
            elif len(present):
                terms[name] = info_nce(images[present], generated[present], scale)
        return terms

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in their order.

        Every process computes the same loss; the mean of the gradients of all is the gradient of the loss.
        """
        if self.world == 1:
            return rows
        from torch.distributed.nn.functional import all_gather

        rows = rows.to(self.model.logit_scale.device).contiguous()
        return torch.cat(all_gather(rows))  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        self.model.bound()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.model.tuned(state)

    def held_out(self) -> Looks:
        """Looks at the loss of eq. 3 on images held out, always with the same captions and positives."""
        training, images = self.training, self.data.held_out
        pairs = self.data.drawn(images, np.random.default_rng([training.seed, 3]))
        count = -(-len(images) // training.batch_size)
        parts = [_Pairs(*part) for part in zip(*(np.array_split(own, count) for own in pairs), strict=True)]

        @torch.no_grad()
        def loss() -> float:
            self.model.eval()
            losses = []
            for part in parts:
                terms = self._terms(self._batch(part), lambda rows: rows)
                losses.append(float(_positive_augmented_loss(terms, training.weights)))
            self.model.train()
            return float(np.mean(losses))

        return Looks(0, training.evaluate_every, training.patience, loss, VALIDATION)


def train_pacs(training: PacsTraining, data: PairData, out: Path, *, report: Report) -> Path:
    """Train PAC-S; a training that `out` holds goes on where it was stopped. The folder of weights."""
    with opened(training, out) as accelerator:
        start = open_listed(training.start, metric="pacs", tiny="pacs")
        if network_of(start) is not ClipEncoder:
            raise WeightsError(
                f"{start.name!r} is no CLIP with a ViT or a ResNet: others cannot be trained here"
            )
        config, tensors = ClipEncoder.read_config(start), start.tensors()
        prompt = training.prompt
        if prompt is None:
            prompt = str(config.get("constants", {}).get("prompt", PROMPT))
        training = replace(training, prompt=prompt)
        world = accelerator.num_processes
        if training.batch_size % world:
            found = f"is no multiple of the {world} processes"
            raise wrong_option("batch_size", training.batch_size, found, "pass one that is")
        stamp: dict[str, Any] = {
            **training.stamp(),
            "start": ClipEncoder.fingerprint_of(start),
            "captions": data.captioned.fingerprint,
            "validation": training.validation if data.validation is None else data.validation.fingerprint,
            "positives": None if data.positives is None else data.positives.fingerprint,
            "processes": world,
        }
        captions = [f"{prompt}{text}" for text in data.texts]
        length = int(config["architecture"]["text"]["context_length"])
        cut = sum(map(bool, ClipTokenizer(length).encode(captions).truncated))
        cut_off = f"cut off at {length:,} tokens: {cut:,} of {len(captions):,} captions" if cut else None
        if cut_off is not None and accelerator.is_main_process:
            report(cut_off)
        folder, device = Path(training.towers or out / TOWERS), str(accelerator.device)
        with accelerator.main_process_first():
            counts = f"{counted(len(data.captioned.ids), 'image')} and {counted(len(captions), 'caption')}"
            if training.lora:
                report(f"pixels and token ids of {counts}")
                clip = ClipEncoder.open(start, device=device)
                inputs = pixels_and_ids(clip, folder, data.visuals(), captions)
            else:
                report(f"outputs of the frozen towers for {counts}")
                own = {name: value for name, value in config.items() if name != "canary"}
                towers = TowerEncoder(own, dict(tensors), checksum=start.checksum, device=device)
                inputs = tower_outputs(towers, folder, data.visuals(), captions)
        model: TunedClip = Projections(config, tensors, training.temperature)
        if training.lora:
            model = AdaptedClip(config, tensors, training, accelerator.device)
        objective = PacsObjective(training, data, model, inputs, world)
        if len(data.held_out):
            objective.looks = objective.held_out()
        trainer = Trainer(objective, out, stamp, accelerator, report)
        weights = trainer.run()
        card = _card(
            training,
            data,
            start=start.label(ClipEncoder.fingerprint_of(start)),
            cut_off=cut_off,
            temperature=f"{math.exp(-float(weights[SCALE])):.4g}",
            progress=trainer.progress,
        )
        return trainer.write(ClipEncoder, start, weights, {"prompt": prompt}, card)


def _card(training: PacsTraining, data: PairData, **more: Any) -> str:
    """README.md of trained weights."""
    from jinja2 import Environment, PackageLoader

    weights, starts, positives = training.weights, data.captions.starts, data.positives
    terms = [(GENERATED_IMAGES, "L(V', T)"), (GENERATED_CAPTIONS, "L(V, T')")]
    template = Environment(loader=PackageLoader("capeval_core.reports")).get_template("pacs_card.md.j2")
    return template.render(
        version=__version__,
        training=training,
        captions=int((starts[data.trained + 1] - starts[data.trained]).sum()),
        trained=len(data.trained),
        held_out=len(data.held_out),
        prompt=repr(training.prompt),
        generated=data.generated,
        made_by=None if positives is None else json.dumps(positives.settings, sort_keys=True),
        terms=[(f"{weights[name]:g}", term) for name, term in terms if name in weights],
        settings=[(name, json.dumps(value)) for name, value in training.stamp().items() if name != "data"],
        **more,
    )
