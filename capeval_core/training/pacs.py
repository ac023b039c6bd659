"""PAC-S's training: a CLIP is tuned by positive-augmented contrastive losses.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112, sections 3 and 4.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core._version import __version__
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.errors import Problems, file_problem, option_problem, wrong_option
from capeval_core.inputs.images import InputImage
from capeval_core.models.copies import on_device
from capeval_core.options import option
from capeval_core.registry import network_of
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.lora import SCALE, AdaptedClip, Projections
from capeval_core.training.pairs import ABSENT, Numbers, PairLists, PairOrder, Pairs, held_out
from capeval_core.training.positives import Positives
from capeval_core.training.settings import Training
from capeval_core.training.towers import PixelsAndIds, TowerEncoder, TowerOutputs
from capeval_core.training.trainer import (
    TOWERS,
    VALIDATION,
    WEIGHTS,
    Looks,
    Objective,
    Progress,
    ReadTerms,
    Report,
    Trainer,
    as_stored,
    opened,
    save_trained,
    scalar_terms,
)
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsError, WeightsFolder, open_weights

CONTRAST = "contrast"
"""The only phase of the training."""
REAL, GENERATED_IMAGES, GENERATED_CAPTIONS = "real pairs", "generated images", "generated captions"
"""The terms of eq. 3: L(V, T), L(V', T), L(V, T')."""
LAMBDA_V, LAMBDA_T = 0.05, 0.1
"""Weights of L(V', T) and L(V, T')."""


def info_nce(images: Tensor, texts: Tensor, scale: Tensor | float) -> Tensor:
    """Eq. 2: each image finds its text among all texts, each text its image; the sum of both means.

    images, texts: (n, d), of any length; row i of one belongs to row i of the other. scale: 1 / temperature.

    >>> float(info_nce(torch.eye(3), torch.eye(3), scale=100.0).round(decimals=6))
    0.0
    >>> float(info_nce(torch.ones(2, 4), torch.ones(2, 4), scale=1.0).round(decimals=4))  # 2 log 2
    1.3863
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    own = torch.arange(len(logits), device=logits.device)
    return functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)


def positive_augmented_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Eq. 3: the weighted sum of the terms.

    >>> terms = {REAL: torch.tensor(2.0), GENERATED_IMAGES: torch.tensor(1.0)}
    >>> positive_augmented_loss(terms, {REAL: 1.0, GENERATED_IMAGES: 0.05})
    tensor(2.0500)
    """
    return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


@dataclass(frozen=True, kw_only=True)
class PacsTraining(Training):
    """How PAC-S is trained. The defaults are the paper's, and those noted where it states none."""

    name: ClassVar = "pacs"
    lengths: ClassVar = {CONTRAST: ("steps", "learning_rate")}
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
        folder=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience and self.patience < self.evaluate_every:
            found = f"below the {self.evaluate_every} of evaluate_every"
            raise wrong_option("patience", self.patience, found, "look more often, or wait longer")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: a linear rise, then constant."""
        return self.learning_rate * min((step + 1) / max(self.warmup, 1), 1.0)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term of eq. 3 that is not switched off."""
        weights = {REAL: 1.0, GENERATED_IMAGES: self.lambda_v, GENERATED_CAPTIONS: self.lambda_t}
        return {name: weight for name, weight in weights.items() if weight}


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
        self.captioned = captioned if validation is None else _joined(captioned, validation)
        self.lists = PairLists.of(self.captioned, positives)
        _check_positives(training, None if positives is None else self.lists)
        count = len(captioned.ids)
        if validation is None:
            self.trained, self.held_out = held_out(count, training.validation, training.seed)
        else:
            self.trained, self.held_out = np.arange(count), np.arange(count, len(self.captioned.ids))
        if training.batch_size > len(self.trained):
            found = f"more than the {len(self.trained):,} images to train on"
            raise wrong_option("batch_size", training.batch_size, found, "pass a smaller one")
        if len(self.held_out) == 1:
            raise ValueError(
                "one image is held out for validation, but its loss needs two: give more captions"
            )

    def visuals(self) -> Iterator[InputImage]:
        """All images, then the generated ones."""
        generated = self.positives.images() if self.positives is not None else iter(())
        images = (visual for visual in self.captioned.visuals() if isinstance(visual, InputImage))
        return chain(images, generated)


def _check_positives(training: PacsTraining, lists: PairLists | None) -> None:
    """Refuse losses that are switched on without their positives. lists: None: there is no folder."""
    problems = Problems()
    for place, (name, what) in enumerate((("lambda_v", "images"), ("lambda_t", "captions"))):
        if (weight := getattr(training, name)) and (lists is None or not lists.generated[place]):
            why = (
                "is no folder of positives" if lists is None else f"are no generated {what} of these captions"
            )
            found = f"a weight of generated {what}, but there {why}"
            fix = "pass a folder that `capeval augment` made as `--positives`, or 0 to train without them"
            problems.add(option_problem(name, weight, found, fix))
    problems.raise_if_any()


def _joined(captioned: CaptionedImages, validation: CaptionedImages) -> CaptionedImages:
    """Images to train on, then those that are held out."""
    problems = Problems()
    for image_id in sorted({*captioned.ids} & {*validation.ids}):
        fix = "leave it out of one of them"
        problems.add(file_problem("validation", f"{image_id!r} is also trained on", fix))
    problems.raise_if_any()
    count = len(captioned.ids)
    return CaptionedImages(
        captioned.ids + validation.ids,
        captioned.captions + validation.captions,
        captioned.images + validation.images,
        lambda i: captioned.visual(i) if i < count else validation.visual(i - count),
    )


@dataclass(frozen=True)
class PairBatch:
    """What the model takes of n pairs.

    generated: for each loss of generated positives, what the model takes of n of them, and (n,) which pairs
    have one; the others have their own image or caption there, which the loss leaves out.
    """

    images: Tensor
    texts: Any
    generated: dict[str, tuple[Any, Tensor]]


class PacsObjective(Objective):
    """Projections, or adapters, of a CLIP with the losses of PAC-S."""

    model: Projections | AdaptedClip

    def __init__(
        self,
        training: PacsTraining,
        model: Projections | AdaptedClip,
        tensors: dict[str, Tensor],
        inputs: TowerOutputs | PixelsAndIds,
        order: PairOrder,
        world: int,
    ) -> None:
        self.training, self.model, self.tensors = training, model, tensors
        self.inputs, self.order, self.world = inputs, order, world

    def batch(self, phase: str, number: int) -> PairBatch:
        return self._batch(self.order.chosen(number))

    def _batch(self, pairs: Pairs) -> PairBatch:
        inputs, generated = self.inputs, {}
        for name, made, own, take in (
            (GENERATED_IMAGES, pairs.generated_images, pairs.images, inputs.images),
            (GENERATED_CAPTIONS, pairs.generated_captions, pairs.captions, inputs.texts),
        ):
            if name in self.training.weights:
                there = made != ABSENT
                generated[name] = take(np.where(there, made, own)), torch.from_numpy(there)
        return PairBatch(inputs.images(pairs.images), inputs.texts(pairs.captions), generated)

    def losses(self, phase: str, batch: PairBatch) -> tuple[Tensor, ReadTerms]:
        terms = self._terms(batch, self._gathered)
        loss = positive_augmented_loss(terms, self.training.weights)
        return loss, lambda: scalar_terms({**terms, "all": loss})

    def _terms(self, batch: PairBatch, gathered: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The terms of eq. 3 that are switched on and have pairs, over the rows that `gathered` gives."""
        model = self.model
        device = model.logit_scale.device
        images = gathered(model.images(on_device(batch.images, device)))
        texts = gathered(model.texts(_on(batch.texts, device)))
        terms = {REAL: info_nce(images, texts, model.scale)}
        for name, (inputs, there) in batch.generated.items():
            features = model.images if name == GENERATED_IMAGES else model.texts
            generated = gathered(features(_on(inputs, device)))
            # One process does not wait for its device; several gather on their devices.
            present = on_device(gathered(there).cpu().nonzero()[:, 0], device)
            if len(present) and name == GENERATED_IMAGES:
                terms[name] = info_nce(generated[present], texts[present], model.scale)
            elif len(present):
                terms[name] = info_nce(images[present], generated[present], model.scale)
        return terms

    def _gathered(self, rows: Tensor) -> Tensor:
        """(n * processes, ...) the rows of all processes in their order; each process has n of them.

        Every process computes the same loss from them, and gradients are then averaged over processes. As a
        process's rows get as many equal parts as there are processes, that is the gradient of the loss.
        """
        if self.world == 1:
            return rows
        from torch.distributed.nn.functional import all_gather

        rows = rows.to(self.model.logit_scale.device).contiguous()
        return torch.cat(all_gather(rows))  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        self.model.bound()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of the CLIP."""
        return self.model.tuned({name: tensor.detach().cpu() for name, tensor in state.items()}, self.tensors)

    def looks(self, lists: PairLists, images: Numbers) -> Looks:
        """Looks at the loss of eq. 3 on images held out, always with the same captions and positives."""
        training = self.training
        pairs = lists.drawn(images, np.random.default_rng([training.seed, 3]))
        count = -(-len(images) // training.batch_size)
        parts = [Pairs(*part) for part in zip(*(np.array_split(own, count) for own in pairs), strict=True)]

        @torch.no_grad()
        def loss() -> float:
            self.model.eval()
            losses = []
            for part in parts:
                terms = self._terms(self._batch(part), lambda rows: rows)
                losses.append(float(positive_augmented_loss(terms, training.weights)))
            self.model.train()
            return float(np.mean(losses))

        return Looks(0, training.evaluate_every, training.patience, loss, VALIDATION)


def _on(inputs: Any, device: torch.device) -> Any:
    """Outputs of a tower on a device; token ids as they are."""
    return on_device(inputs, device) if isinstance(inputs, Tensor) else inputs


def train_pacs(
    training: PacsTraining, data: PairData, out: Path, *, report: Report = lambda line: None
) -> Path:
    """Train PAC-S; a training that `out` holds goes on where it was stopped.

    Args:
        training: the settings.
        data: what it learns from.
        out: folder of the training: `weights`, `log.jsonl`, `curves.png`, its state, outputs of the towers.
        report: takes a line for the user now and then.

    Returns:
        The folder of weights.

    Raises:
        ValueError: weights that could not be loaded or are no CLIP's; images that cannot be read; the folder
            of another training.
    """
    with opened(training, out) as accelerator:
        return _trained(training, data, out, accelerator, report)


def _trained(training: PacsTraining, data: PairData, out: Path, accelerator: Any, report: Report) -> Path:
    start = open_weights(training.start, metric="pacs", tiny="pacs")
    if network_of(start) is not ClipEncoder:
        raise WeightsError(f"{start.name!r} is no CLIP with a ViT or a ResNet: others cannot be trained here")
    config, tensors = ClipEncoder.read_config(start), start.tensors()
    prompt = training.prompt
    if prompt is None:
        prompt = str(config.get("constants", {}).get("prompt", PROMPT))
    training = replace(training, prompt=prompt)
    captions = [f"{prompt}{text}" for text in data.lists.texts]
    world = accelerator.num_processes
    order = PairOrder(data.lists, data.trained, training.batch_size, world, training.seed)
    stamp: dict[str, Any] = {
        **training.stamp(),
        "start": ClipEncoder.fingerprint_of(start),
        "captions": data.captioned.fingerprint,
        "validation": data.validation.fingerprint if data.validation is not None else training.validation,
        "positives": data.positives.fingerprint if data.positives is not None else None,
        "processes": world,
    }
    length = int(config["architecture"]["text"]["context_length"])
    cut = sum(map(bool, ClipTokenizer(length).encode(captions).truncated))
    cut_off = f"cut off at {length:,} tokens: {cut:,} of {len(captions):,} captions" if cut else None
    if cut_off is not None and accelerator.is_main_process:
        report(cut_off)
    folder, device = Path(training.towers or out / TOWERS), str(accelerator.device)
    inputs: TowerOutputs | PixelsAndIds
    model: Projections | AdaptedClip
    with accelerator.main_process_first():
        counts = f"{len(data.captioned.ids):,} images and {len(captions):,} captions"
        if training.lora:
            report(f"pixels and token ids of {counts}")
            inputs = PixelsAndIds(ClipEncoder.open(start, device=device), folder, data.visuals(), captions)
        else:
            report(f"outputs of the frozen towers for {counts}")
            inputs = TowerOutputs(TowerEncoder.of(start, device), folder, data.visuals(), captions)
    if training.lora:
        rank, own = training.lora, accelerator.device
        model = AdaptedClip(config, tensors, rank, training.temperature, training.seed, own)
    else:
        model = Projections(config, tensors, training.temperature)
    objective = PacsObjective(training, model, tensors, inputs, order, world)
    looks = objective.looks(data.lists, data.held_out) if len(data.held_out) else None
    trainer = Trainer(training, objective, looks, out, stamp, accelerator, report)
    weights = trainer.run()
    if accelerator.is_main_process:
        stored = {
            name: tensor if tensor.data_ptr() == tensors[name].data_ptr() else as_stored(tensor, training)
            for name, tensor in weights.items()
        }
        temperature = math.exp(-float(weights[SCALE]))
        card = _card(training, data, start, trainer.progress, temperature, cut_off)
        constants = {"prompt": prompt}
        save_trained(out / WEIGHTS, ClipEncoder, start, stored, training, stamp, constants, card)
    accelerator.wait_for_everyone()
    return out / WEIGHTS


def _card(
    training: PacsTraining,
    data: PairData,
    start: WeightsFolder,
    progress: Progress,
    temperature: float,
    cut_off: str | None,
) -> str:
    """README.md of trained weights."""
    from jinja2 import Environment, PackageLoader

    weights, counts = training.weights, data.lists.captions.starts
    terms = [(GENERATED_IMAGES, "L(V', T)"), (GENERATED_CAPTIONS, "L(V, T')")]
    made_by = None if data.positives is None else json.dumps(data.positives.settings, sort_keys=True)
    template = Environment(loader=PackageLoader("capeval_core.reports")).get_template("pacs_card.md.j2")
    return template.render(
        version=__version__,
        training=training,
        start=start.label(ClipEncoder.fingerprint_of(start)),
        captions=int((counts[data.trained + 1] - counts[data.trained]).sum()),
        trained=len(data.trained),
        held_out=len(data.held_out),
        prompt=repr(training.prompt),
        generated=data.lists.generated,
        made_by=made_by,
        cut_off=cut_off,
        terms=[(f"{weights[name]:g}", term) for name, term in terms if name in weights],
        temperature=f"{temperature:.4g}",
        progress=progress,
        settings=[(name, json.dumps(value)) for name, value in training.stamp().items() if name != "data"],
    )
