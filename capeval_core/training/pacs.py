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
from capeval_core.errors import Problems, ProblemsError, counted, file_error, warn, wrong_option
from capeval_core.fetching import open_listed
from capeval_core.models.device import on_device
from capeval_core.options import option
from capeval_core.project import __version__
from capeval_core.registry import network_of
from capeval_core.training.augmentation import Positives
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
    HeldOut,
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
from capeval_core.training.training_data import CaptionedImages
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsError

CONTRAST = "contrast"  # the only phase of the training
# The terms of eq. 3.
REAL = "real pairs"  # L(V, T)
GENERATED_IMAGES = "generated images"  # L(V', T)
GENERATED_CAPTIONS = "generated captions"  # L(V, T')
LAMBDA_V = 0.05  # weight of L(V', T)
LAMBDA_T = 0.1  # weight of L(V, T')
ABSENT = -1  # in place of a number where a pair has no generated image or no generated caption


def info_nce(images: Tensor, texts: Tensor, scale: Tensor | float) -> Tensor:
    """Eq. 2: each image finds its text among all texts, each text its image; the sum of both means.

    images, texts: (n, d), of any length; row i of one belongs to row i of the other. scale: 1 / temperature.
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    matches = torch.arange(len(logits), device=logits.device)
    return functional.cross_entropy(logits, matches) + functional.cross_entropy(logits.T, matches)


def _positive_augmented_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Eq. 3: the weighted sum of the terms."""
    weighted = [weights[name] * term for name, term in terms.items()]
    return torch.stack(weighted).sum()


@dataclass(frozen=True, kw_only=True)
class PacsTraining(Training):
    """Options of PAC-S's training. The defaults are the paper's, and those noted where it states none."""

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
            problem = f"is below the {self.evaluate_every} of evaluate_every"
            raise wrong_option("patience", self.patience, problem, "look more often, or wait longer")

    def schedule(self) -> list[Phase]:
        return [Phase(CONTRAST, self.steps, self.learning_rate)]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: a linear rise, then constant."""
        return self.learning_rate * min((step + 1) / max(self.warmup, 1), 1.0)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term of eq. 3 that is not switched off."""
        weights = {REAL: 1.0}
        if self.lambda_v:
            weights[GENERATED_IMAGES] = self.lambda_v
        if self.lambda_t:
            weights[GENERATED_CAPTIONS] = self.lambda_t
        return weights


class _Pairs(NamedTuple):
    """Numbers of images and captions, (n,) each; generated ones are numbered behind the others."""

    images: Numbers
    captions: Numbers
    generated_images: Numbers
    generated_captions: Numbers

    def select(self, rows: Numbers | slice) -> _Pairs:
        """The pairs of some rows."""
        return _Pairs(*(numbers[rows] for numbers in self))


class _Lists:
    """A list of numbers for each of n owners: that of owner i is `values[starts[i]:starts[i + 1]]`.

    values   4 7 | 1 | | 3 5 8      flat, as a batch takes one number of each of its owners at once
    starts   0     2   3 3      6
    owner    0     1   2 3
    """

    def __init__(self, owner_count: int, owners: Sequence[int], values: Iterable[int]) -> None:
        owner_of_value = np.array(owners, dtype=np.int64)
        counts = np.bincount(owner_of_value, minlength=owner_count)
        # Stable: a draw by lot is of the captions of an image in the order of the file.
        by_owner = np.argsort(owner_of_value, kind="stable")
        self.values = np.fromiter(values, dtype=np.int64)[by_owner]
        self.starts = np.concatenate([[0], np.cumsum(counts)])

    def drawn(self, owners: Numbers, lots: NDArray[np.float64]) -> Numbers:
        """One of each owner's numbers, by a lot in [0, 1); `ABSENT` where it has none."""
        if not len(self.values):
            return np.full(len(owners), ABSENT)
        first = self.starts[owners]
        counts = self.starts[owners + 1] - first
        places = first + np.floor(lots * counts).astype(np.int64)
        # An owner without numbers may point behind the end; its value is not used.
        places = np.minimum(places, len(self.values) - 1)
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
        self.positives = positives
        self.validation = validation
        count = len(captioned.ids)
        # One numbering for both, so that the towers' outputs of all of them are stored together.
        self.captioned = captioned if validation is None else _joined(captioned, validation)
        self._number(training)
        if validation is None:
            # Images and not captions: one whose other captions are trained on is not new to the network.
            held_out_count = 0
            if training.validation:  # the loss of a single image is 0, so two at least
                held_out_count = min(count, max(2, round(training.validation * count)))
            order = np.random.default_rng([training.seed, 2]).permutation(count)
            self.trained = np.sort(order[held_out_count:])
            self.held_out = np.sort(order[:held_out_count])
        else:
            self.trained = np.arange(count)
            self.held_out = np.arange(count, len(self.captioned.ids))
        # A batch has an image once at most, see `PacsObjective`.
        if training.batch_size > len(self.trained):
            problem = f"is more than the {len(self.trained):,} images to train on"
            raise wrong_option("batch_size", training.batch_size, problem, "pass a smaller one")
        if len(self.held_out) == 1:
            raise ValueError(
                "one image is held out for validation, but its loss needs two: give more captions"
            )

    def _number(self, training: PacsTraining) -> None:
        """Number captions and images, then generated ones behind them, and relate each to its source."""
        #     numbers of images      0 ... images - 1     | generated: images, images + 1, ...
        #     numbers of captions    0 ... captions - 1   | generated: captions, captions + 1, ...
        #
        # A generated caption has an image as its source, a generated image has a caption of an image, which
        # may be in the set several times.
        ids = self.captioned.ids
        captions = list(self.captioned.captions)
        self.captions = _Lists(len(ids), self.captioned.numbers, range(len(captions)))
        self.texts = list(captions)  # generated ones follow
        image_number = {image_id: number for number, image_id in enumerate(ids)}
        captions_by_source: dict[tuple[str, str], list[int]] = {}
        for caption, source in enumerate(zip(self.captioned.images, captions, strict=True)):
            captions_by_source.setdefault(source, []).append(caption)
        caption_owners: list[int] = []
        image_owners: list[int] = []
        generated_images: list[int] = []
        unused = 0
        if self.positives is not None:
            for image_id, text in self.positives.captions:
                if image_id in image_number:
                    caption_owners.append(image_number[image_id])
                    self.texts.append(text)
                else:
                    unused += 1
            for image, source in enumerate(self.positives.sources, len(ids)):
                owners = captions_by_source.get(source, [])
                image_owners += owners
                generated_images += [image] * len(owners)
                if not owners:
                    unused += 1
        generated_captions = range(len(captions), len(self.texts))
        self.generated_captions = _Lists(len(ids), caption_owners, generated_captions)
        self.generated_images = _Lists(len(captions), image_owners, generated_images)
        self.generated = len(image_owners), len(caption_owners)
        if unused:
            warn(f"{unused:,} positives belong to no image or caption here")
        problems = Problems()
        if training.lambda_v and not image_owners:
            problems.add(self._without_positives("lambda_v", training.lambda_v, "images"))
        if training.lambda_t and not caption_owners:
            problems.add(self._without_positives("lambda_t", training.lambda_t, "captions"))
        problems.raise_if_any()

    def _without_positives(self, name: str, weight: float, kind: str) -> ProblemsError:
        """The error that a loss has a weight but no generated images or captions."""
        if self.positives is None:
            reason = "there is no folder of positives"
        else:
            reason = f"there are no generated {kind} of these captions"
        fix = "pass a folder that `capeval augment` made as `--positives`, or 0 to train without them"
        return wrong_option(name, weight, f"is a weight of generated {kind}, but {reason}", fix)

    def visuals(self) -> Iterator[Any]:
        """All images, then the generated ones: by number."""
        yield from map(self.captioned.visual, range(len(self.captioned.ids)))
        if self.positives is not None:
            yield from self.positives.images()

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
    # The loss of images that are trained on falls for ever: it would choose the last weights.
    for image_id in sorted({*captioned.ids} & {*validation.ids}):
        fix = "leave it out of one of them"
        problems.add(file_error("validation", f"{image_id!r} is also trained on", fix, sentence=True))
    problems.raise_if_any()
    count = len(captioned.ids)
    return CaptionedImages(
        captioned.ids + validation.ids,
        captioned.captions + validation.captions,
        captioned.images + validation.images,
        lambda i: captioned.visual(i) if i < count else validation.visual(i - count),
    )


class _PairBatch(NamedTuple):
    """The model's inputs of n pairs."""

    images: Tensor
    texts: Any
    generated: dict[str, tuple[Any, Tensor]]
    """For each loss of positives its n inputs, and which of them are positives and not mere stand-ins."""


class PacsObjective(Objective):
    """Projections, or adapters, of a CLIP with the losses of PAC-S.

    In an epoch each image comes at most once, with one of its captions and one positive of each kind, by lot.
    So no batch has two captions of one image, which would be each other's negatives.
    """

    model: TunedClip

    def __init__(
        self, training: PacsTraining, data: PairData, model: TunedClip, inputs: Inputs, world: int
    ) -> None:
        self.training = training
        self.data = data
        self.model = model
        self.inputs = inputs
        self.world = world
        # Kept, as an epoch is drawn for all of its batches together.
        self._epoch = lru_cache(maxsize=2)(self._pairs_of)

    def _pairs_of(self, epoch: int) -> _Pairs:
        """The pairs of an epoch, in order; they depend on the seed and the epoch alone."""
        rng = np.random.default_rng([self.training.seed, 1, epoch])
        return self.data.drawn(self.data.trained, rng)

    def batch(self, phase: str, number: int) -> _PairBatch:
        """The part of a process: number `batch * processes + process`."""
        # An epoch ends with its last full batch: a smaller one has fewer negatives, so another loss.
        size = self.training.batch_size
        batch, process = divmod(number, self.world)
        epoch, place = divmod(batch, len(self.data.trained) // size)
        share = size // self.world
        start = place * size + process * share
        return self._batch(self._epoch(epoch).select(slice(start, start + share)))

    def _batch(self, pairs: _Pairs) -> _PairBatch:
        """The inputs of pairs; where a positive is absent its source stands in, so that sizes agree."""
        generated: dict[str, tuple[Any, Tensor]] = {}
        if GENERATED_IMAGES in self.training.weights:
            present = pairs.generated_images != ABSENT
            numbers = np.where(present, pairs.generated_images, pairs.images)
            generated[GENERATED_IMAGES] = self.inputs.images(numbers), torch.from_numpy(present)
        if GENERATED_CAPTIONS in self.training.weights:
            present = pairs.generated_captions != ABSENT
            numbers = np.where(present, pairs.generated_captions, pairs.captions)
            generated[GENERATED_CAPTIONS] = self.inputs.texts(numbers), torch.from_numpy(present)
        return _PairBatch(self.inputs.images(pairs.images), self.inputs.texts(pairs.captions), generated)

    def losses(self, phase: str, batch: _PairBatch) -> tuple[Tensor, ReadTerms]:
        terms = self._terms(batch, self._gathered)
        loss = _positive_augmented_loss(terms, self.training.weights)
        return loss, lambda: scalar_terms({**terms, "all": loss})

    def _terms(self, batch: _PairBatch, gathered: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The terms of eq. 3 that are switched on and have pairs, over the rows that `gathered` gives."""
        model = self.model
        device = model.logit_scale.device
        scale = model.logit_scale.exp()  # as in CLIP, its logarithm is learned, so that it stays positive

        def features(tower: Callable[[Any], Tensor], inputs: Any) -> Tensor:
            if isinstance(inputs, Tensor):
                inputs = on_device(inputs, device)
            return gathered(tower(inputs))

        images = features(model.images, batch.images)
        texts = features(model.texts, batch.texts)
        terms = {REAL: info_nce(images, texts, scale)}
        for name, (inputs, is_positive) in batch.generated.items():
            tower = model.images if name == GENERATED_IMAGES else model.texts
            generated = features(tower, inputs)
            # One process does not wait for its device; several gather on their devices.
            rows = on_device(gathered(is_positive).cpu().nonzero()[:, 0], device)
            if not len(rows):  # the mean of no losses is NaN
                continue
            if name == GENERATED_IMAGES:
                terms[name] = info_nce(generated[rows], texts[rows], scale)
            else:
                terms[name] = info_nce(images[rows], generated[rows], scale)
        return terms

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in their order.

        Every process computes the same loss; the mean of the gradients of all is the gradient of the loss.
        """
        if self.world == 1:
            return rows
        from torch.distributed.nn.functional import all_gather

        # `torch.distributed.nn`'s, through which gradients flow back to the process of each row.
        rows = rows.to(self.model.logit_scale.device).contiguous()
        return torch.cat(all_gather(rows))  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        self.model.bound()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.model.tuned(state)

    def held_out(self) -> Looks:
        """The looks at the loss of eq. 3 on images held out, always with the same captions and positives."""
        training = self.training
        images = self.data.held_out
        pairs = self.data.drawn(images, np.random.default_rng([training.seed, 3]))
        # Equal parts, as the loss of a last small batch would not compare with those of others.
        part_count = math.ceil(len(images) / training.batch_size)
        parts = list(map(pairs.select, np.array_split(np.arange(len(images)), part_count)))

        @torch.no_grad()
        def loss() -> float:
            self.model.eval()
            losses = []
            for part in parts:
                # Every process looks at all of them, so nothing is gathered.
                terms = self._terms(self._batch(part), lambda rows: rows)
                losses.append(float(_positive_augmented_loss(terms, training.weights)))
            self.model.train()
            return float(np.mean(losses))

        @torch.no_grad()
        def cosines() -> list[float]:
            self.model.eval()
            scores: list[float] = []
            for part in parts:
                batch = self._batch(part)
                image_features = self.model.images(on_device(batch.images, self.model.logit_scale.device))
                text_features = self.model.texts(batch.texts)
                scores += functional.cosine_similarity(image_features, text_features).tolist()
            self.model.train()
            return scores

        captions = [self.data.texts[caption] for caption in pairs.captions.tolist()]
        held_out = HeldOut(captions, lambda row: self.data.captioned.visual(int(pairs.images[row])), cosines)
        return Looks(0, training.evaluate_every, training.patience, loss, VALIDATION, held_out)


def train_pacs(training: PacsTraining, data: PairData, out: Path, *, report: Report) -> Path:
    """Train PAC-S, or resume the training that `out` holds; the folder of weights."""
    with opened(training, out) as accelerator:
        start = open_listed(training.start, metric="pacs", tiny="pacs")
        if network_of(start) is not ClipEncoder:
            raise WeightsError(
                f"{start.name!r} is not a CLIP with a ViT or a ResNet: others cannot be trained here"
            )
        config = ClipEncoder.read_config(start)
        tensors = start.tensors()
        prompt = training.prompt
        if prompt is None:
            prompt = str(config.get("constants", {}).get("prompt", PROMPT))
        training = replace(training, prompt=prompt)
        # The loss is over the batches of all processes, so that equal parts give the batch of one process.
        world = accelerator.num_processes
        if training.batch_size % world:
            problem = f"is not a multiple of the {world} processes"
            raise wrong_option("batch_size", training.batch_size, problem, "pass one that is")
        stamp: dict[str, Any] = {
            **training.stamp(),
            "start": ClipEncoder.fingerprint_of(start),
            "captions": data.captioned.fingerprint,
            "validation": training.validation if data.validation is None else data.validation.fingerprint,
            "positives": None if data.positives is None else data.positives.fingerprint,
            "processes": world,
        }
        captions = [f"{prompt}{text}" for text in data.texts]
        cut_off = _cut_off(captions, int(config["architecture"]["text"]["context_length"]))
        if cut_off is not None and accelerator.is_main_process:
            report(cut_off)
        folder = Path(training.towers or out / TOWERS)
        device = str(accelerator.device)
        # The main process fills the folder, the others find everything there.
        with accelerator.main_process_first():
            counts = f"{counted(len(data.captioned.ids), 'image')} and {counted(len(captions), 'caption')}"
            # Adapters lie in the towers, so that their outputs change with every step.
            if training.lora:
                report(f"pixels and token ids of {counts}")
                clip = ClipEncoder.open(start, device=device)
                inputs = pixels_and_ids(clip, folder, data.visuals(), captions)
            else:
                report(f"outputs of the frozen towers for {counts}")
                # The canary is of the whole network, which ends in projections.
                tower_config = {name: value for name, value in config.items() if name != "canary"}
                towers = TowerEncoder(tower_config, dict(tensors), checksum=start.checksum, device=device)
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


def _cut_off(captions: Sequence[str], length: int) -> str | None:
    """A sentence about captions that are longer than the text tower reads, for the log and the card."""
    truncated = np.count_nonzero(ClipTokenizer(length).encode(captions).truncated)
    if not truncated:
        return None
    return f"cut off at {length:,} tokens: {truncated:,} of {len(captions):,} captions"


def _card(training: PacsTraining, data: PairData, **more: Any) -> str:
    """README.md of trained weights."""
    from jinja2 import Environment, PackageLoader

    weights = training.weights
    starts = data.captions.starts
    made_by = None
    if data.positives is not None:
        made_by = json.dumps(data.positives.settings, sort_keys=True)
    terms = []
    for name, term in ((GENERATED_IMAGES, "L(V', T)"), (GENERATED_CAPTIONS, "L(V, T')")):
        if name in weights:
            terms.append((f"{weights[name]:g}", term))
    settings = []
    for name, value in training.stamp().items():
        if name != "data":  # its name is in the line about the captions
            settings.append((name, json.dumps(value)))
    template = Environment(loader=PackageLoader("capeval_core.reports")).get_template("pacs_card.md.j2")
    return template.render(
        version=__version__,
        training=training,
        captions=int((starts[data.trained + 1] - starts[data.trained]).sum()),
        trained=len(data.trained),
        held_out=len(data.held_out),
        prompt=repr(training.prompt),
        generated=data.generated,
        made_by=made_by,
        terms=terms,
        settings=settings,
        **more,
    )
