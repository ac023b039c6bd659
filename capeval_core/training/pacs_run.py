"""PAC-S's training, from captions, images and generated positives to a folder of weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core._version import __version__
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.clip_model import config_problems
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.errors import Problems, file_problem, wrong_option
from capeval_core.inputs.images import InputImage
from capeval_core.models.copies import on_device
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.lora import SCALE, AdaptedClip, Projections, import_peft
from capeval_core.training.pacs import (
    GENERATED_CAPTIONS,
    GENERATED_IMAGES,
    REAL,
    PacsTraining,
    info_nce,
    positive_augmented_loss,
)
from capeval_core.training.pairs import ABSENT, Numbers, PairLists, PairOrder, Pairs, drawn_pairs, held_out
from capeval_core.training.positives import Positives
from capeval_core.training.towers import Inputs, PixelsAndIds, TowerEncoder, TowerOutputs
from capeval_core.training.trainer import (
    TOWERS,
    VALIDATION,
    WEIGHTS,
    Looks,
    Objective,
    Progress,
    ReadTerms,
    Trainer,
    as_stored,
    opened,
    save_trained,
    scalar_terms,
)
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsError, WeightsFolder, open_weights


class _Gather(torch.autograd.Function):
    """All processes' rows; the gradient of a process's own rows is the sum of what all processes give."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, accelerator: Any) -> Tensor:
        ctx.accelerator, ctx.count = accelerator, len(rows)
        gathered: Tensor = accelerator.gather(rows.to(accelerator.device).contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total: Tensor = ctx.accelerator.reduce(gradient.contiguous(), "sum")
        start = ctx.accelerator.process_index * ctx.count
        return total[start : start + ctx.count], None


def gather_rows(rows: Tensor, accelerator: Any) -> Tensor:
    """(n * processes, ...) the rows of all processes in their order; each process has n of them.

    Where every process computes the same loss from them and gradients are then averaged over processes, the
    result is the gradient of that loss: each process's rows get as many equal parts as there are processes.
    """
    if accelerator.num_processes == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows, accelerator)
    return gathered


class Trained(Protocol):
    """The part of a CLIP that is trained."""

    images: Callable[[Tensor], Tensor]
    texts: Callable[[Any], Tensor]
    scale: Tensor


@dataclass(frozen=True)
class PairBatch:
    """What the model takes of n pairs.

    images, texts: of each pair. generated_images, generated_texts: of the pairs that have one; None where the
    loss is switched off. with_image, with_caption: (n,) which pairs those are.
    """

    images: Tensor
    texts: Any
    generated_images: Tensor | None
    with_image: Tensor
    generated_texts: Any | None
    with_caption: Tensor


class PacsObjective(Objective):
    """Projections, or adapters, of a CLIP with the losses of PAC-S.

    Args:
        training: the settings.
        model: `Projections` or `AdaptedClip`, on its device.
        tensors: of the weights that it starts from.
        inputs: images and texts by number.
        order: of the pairs that are trained on.
        accelerator: of `accelerate`.
    """

    def __init__(
        self,
        training: PacsTraining,
        model: nn.Module,
        tensors: dict[str, Tensor],
        inputs: Inputs,
        order: PairOrder,
        accelerator: Any,
    ) -> None:
        self.training, self.model, self.module, self.tensors = training, model, cast(Any, model), tensors
        self.inputs, self.order, self.accelerator = inputs, order, accelerator

    def batch(self, phase: str, number: int) -> PairBatch:
        return self.made(self.order.chosen(number))

    def made(self, pairs: Pairs) -> PairBatch:
        """What the model takes of some pairs."""
        training = self.training
        image, caption = pairs.generated_images != ABSENT, pairs.generated_captions != ABSENT
        return PairBatch(
            self.inputs.images(pairs.images),
            self.inputs.texts(pairs.captions),
            # A pair without a positive has its own image or caption there, which the losses leave out.
            self.inputs.images(np.where(image, pairs.generated_images, pairs.images))
            if training.lambda_v
            else None,
            torch.from_numpy(image),
            self.inputs.texts(np.where(caption, pairs.generated_captions, pairs.captions))
            if training.lambda_t
            else None,
            torch.from_numpy(caption),
        )

    def losses(self, phase: str, batch: PairBatch) -> tuple[Tensor, ReadTerms]:
        terms = self.terms(batch, lambda rows: gather_rows(rows, self.accelerator))
        loss = positive_augmented_loss(terms, self.training.weights)
        return loss, lambda: scalar_terms({**terms, "all": loss})

    def terms(self, batch: PairBatch, gather: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The terms of eq. 3 that are switched on and have pairs, over the rows that `gather` gives."""
        model: Any = self.model
        device = model.scale.device
        images = gather(model.images(on_device(batch.images, device)))
        texts = gather(model.texts(_on(batch.texts, device)))
        terms = {REAL: info_nce(images, texts, model.scale)}
        if batch.generated_images is not None:
            generated = gather(model.images(on_device(batch.generated_images, device)))
            present = _places(batch.with_image, gather, device)
            if len(present):
                terms[GENERATED_IMAGES] = info_nce(generated[present], texts[present], model.scale)
        if batch.generated_texts is not None:
            generated = gather(model.texts(_on(batch.generated_texts, device)))
            present = _places(batch.with_caption, gather, device)
            if len(present):
                terms[GENERATED_CAPTIONS] = info_nce(images[present], generated[present], model.scale)
        return terms

    def end_step(self) -> None:
        self.module.bound()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of the CLIP."""
        tuned: dict[str, Tensor] = self.module.tuned(
            {name: tensor.detach().cpu() for name, tensor in state.items()}, self.tensors
        )
        return tuned

    def looks(self, lists: PairLists, images: Numbers) -> Looks:
        """Looks at the loss of eq. 3 on images held out, always with the same captions and positives."""
        training = self.training
        pairs = drawn_pairs(lists, images, np.random.default_rng([training.seed, 3]))

        @torch.no_grad()
        def loss() -> float:
            module: nn.Module = self.model
            module.eval()
            losses = [
                float(
                    positive_augmented_loss(self.terms(self.made(part), lambda rows: rows), training.weights)
                )
                for part in even_parts(pairs, training.batch_size)
            ]
            module.train()
            return float(np.mean(losses))

        return Looks(0, training.evaluate_every, training.patience, loss, VALIDATION)


def even_parts(pairs: Pairs, most: int) -> Iterator[Pairs]:
    """Parts of pairs of nearly equal sizes, `most` at most.

    >>> [len(part.images) for part in even_parts(Pairs(*[np.arange(7)] * 4), 3)]
    [3, 2, 2]
    """
    parts = [np.array_split(numbers, -(-len(numbers) // most)) for numbers in pairs]
    return (Pairs(*part) for part in zip(*parts, strict=True))


def _on(texts: Any, device: torch.device) -> Any:
    """Outputs of a tower on a device; token ids as they are."""
    return on_device(texts, device) if isinstance(texts, Tensor) else texts


def _places(present: Tensor, gather: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Places of the rows of all processes that are present; one process does not wait for its device."""
    gathered = gather(present)
    if gathered is not present:  # several processes, which gather on their devices
        gathered = gathered.cpu()
    return on_device(gathered.nonzero()[:, 0], device)


_CARD = """---
library_name: capeval
tags:
- image-captioning
- evaluation
- clip
pipeline_tag: zero-shot-image-classification
---

# Weights of PAC-S, trained by `capeval train pacs`

```python
import capeval_core

metric = capeval_core.load("pacs", weights="FOLDER")
```

Trained with capeval {version} as in Sarto et al., *Positive-Augmented Contrastive Learning for Image and
Video Captioning Evaluation*, CVPR 2023 (https://arxiv.org/abs/2303.12112). How scores of these weights agree
with human judgements is not known: measure it before you report them.

## Data

{data}

## Losses

L = L(V, T){terms} (equations 2 and 3), where V and T are images and captions,
V' and T' generated ones. Trained are {trained}.
The temperature is {temperature}.

{ending}

## Settings

| setting | value |
| --- | --- |
{settings}
"""


def card_of(
    training: PacsTraining,
    lists: PairLists,
    trained: Numbers,
    held_out: Numbers,
    positives: Positives | None,
    start: WeightsFolder,
    progress: Progress,
    temperature: float,
    cut_off: str | None,
) -> str:
    """README.md of trained weights.

    Args:
        training: the settings, with the prompt.
        lists: captions and positives of images.
        trained, held_out: numbers of the images.
        positives: of the training; None: none.
        start: the weights that it began with.
        progress: where it ended.
        temperature: at the end.
        cut_off: how many captions were too long; None: none.
    """
    weights = training.weights
    terms = [(GENERATED_IMAGES, "L(V', T)"), (GENERATED_CAPTIONS, "L(V, T')")]
    data = _data(training, lists, trained, held_out, positives, start)
    if cut_off is not None:
        data.append(f"- {cut_off[0].upper()}{cut_off[1:]}, generated and held-out ones among them.")
    settings = {name: value for name, value in training.stamp().items() if name != "data"}
    return _CARD.format(
        version=__version__,
        data="\n".join(data),
        terms="".join(f" + {weights[name]:g} {term}" for name, term in terms if name in weights),
        trained=f"adapters of rank {training.lora} of the attention in both towers, merged into its weights"
        if training.lora
        else "the projections of both towers, a ResNet's attention pool with them",
        temperature=f"{temperature:.4g}"
        + (", as it was learned" if training.temperature is None else ", fixed"),
        ending=_ending(progress),
        settings="\n".join(f"| {name} | {json.dumps(value)} |" for name, value in settings.items()),
    )


def _data(
    training: PacsTraining,
    lists: PairLists,
    trained: Numbers,
    held_out: Numbers,
    positives: Positives | None,
    start: WeightsFolder,
) -> list[str]:
    fingerprint = ClipEncoder.fingerprint_of(start)
    counts = lists.captions.starts[trained + 1] - lists.captions.starts[trained]
    lines = [
        f"- Start: {start.label(fingerprint)}.",
        f"- Captions: {training.data or 'not named'}; {int(counts.sum()):,} of {len(trained):,} images, and "
        f"{len(held_out):,} images held out.",
        f"- Prompt: {training.prompt!r}.",
    ]
    if positives is None:
        return [*lines, "- Generated positives: none."]
    images, captions = lists.generated
    made_by = json.dumps(positives.settings, sort_keys=True)
    return [*lines, f"- Generated positives: {images:,} images, {captions:,} captions, made by {made_by}."]


def _ending(progress: Progress) -> str:
    steps = f"It took {progress.step:,} steps"
    if progress.best is None:
        return f"{steps}; the weights are the last ones."
    value, step = progress.best
    return (
        f"{steps}; the weights are those of step {step:,.0f}, with the lowest validation loss, {value:.4f}."
    )


Report = Callable[[str], None]


class PairData:
    """Everything that a training of PAC-S learns from, checked; no weights are opened.

    Args:
        training: the settings.
        captioned: captions and images to train on.
        positives: what was generated from them; None: nothing.
        validation: captions and images that are held out; None: a share of the others.

    Raises:
        InputError: losses without their positives, too few images for a batch or for validation, images that
            are both trained on and held out.
        ImportError: adapters without peft.
    """

    def __init__(
        self,
        training: PacsTraining,
        captioned: CaptionedImages,
        positives: Positives | None,
        validation: CaptionedImages | None = None,
    ) -> None:
        self.positives, self.validation = positives, validation
        self.captioned = captioned if validation is None else joined(captioned, validation)
        self.lists = PairLists.of(self.captioned, positives)
        training.check_positives(*(self.lists.generated if positives is not None else (None, None)))
        count = len(captioned.ids)
        self.trained: Numbers
        self.held_out: Numbers
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
        if training.lora:
            import_peft()

    def visuals(self) -> Iterator[InputImage]:
        """All images, then the generated ones."""
        generated = self.positives.images() if self.positives is not None else iter(())
        images = (visual for visual in self.captioned.visuals() if isinstance(visual, InputImage))
        return chain(images, generated)


def joined(captioned: CaptionedImages, validation: CaptionedImages) -> CaptionedImages:
    """Images to train on, then those that are held out.

    Raises:
        InputError: an image is among both.
    """
    problems = Problems()
    for image_id in sorted({*captioned.ids} & {*validation.ids}):
        fix = "leave it out of one of them"
        problems.add(file_problem("validation", f"{image_id!r} is also trained on", fix))
    problems.raise_if_any()
    return CaptionedImages(
        captioned.ids + validation.ids,
        captioned.captions + validation.captions,
        captioned.images + validation.images,
        lambda: chain(captioned.visuals(), validation.visuals()),
    )


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
    config = ClipEncoder.read_config(start)
    if config_problems(config) or "timm_model_name" in config["architecture"]["vision"]:
        raise WeightsError("the image tower is one of timm's, which cannot be trained here: pass a CLIP")
    prompt = training.prompt
    if prompt is None:
        prompt = str(config.get("constants", {}).get("prompt", PROMPT))
    training = replace(training, prompt=prompt)
    captions = [f"{prompt}{text}" for text in data.lists.texts]
    order = PairOrder(data.lists, data.trained, training.batch_size, accelerator.num_processes, training.seed)
    stamp: dict[str, Any] = {
        **training.stamp(),
        "start": ClipEncoder.fingerprint_of(start),
        "captions": data.captioned.fingerprint,
        "validation": data.validation.fingerprint if data.validation is not None else training.validation,
        "positives": data.positives.fingerprint if data.positives is not None else None,
        "processes": accelerator.num_processes,
    }
    cut_off = _cut_off(captions, int(config["architecture"]["text"]["context_length"]))
    if cut_off is not None and accelerator.is_main_process:
        report(cut_off)
    tensors = start.tensors()
    inputs: Inputs
    model: Any
    folder, device = Path(training.towers or out / TOWERS), str(accelerator.device)
    with accelerator.main_process_first():
        counts = f"{len(data.captioned.ids):,} images and {len(captions):,} captions"
        if training.lora:
            report(f"pixels and token ids of {counts}")
            inputs = PixelsAndIds(ClipEncoder.open(start, device=device), folder, data.visuals(), captions)
        else:
            report(f"outputs of the frozen towers for {counts}")
            inputs = TowerOutputs(TowerEncoder.of(start, device), folder, data.visuals(), captions)
    if training.lora:
        model = AdaptedClip(
            config, tensors, training.lora, training.temperature, training.seed, accelerator.device
        )
    else:
        model = Projections(config, tensors, training.temperature)
    objective = PacsObjective(training, model, tensors, inputs, order, accelerator)
    looks = objective.looks(data.lists, data.held_out) if len(data.held_out) else None
    trainer = Trainer(training, objective, looks, out, stamp, accelerator, report)
    weights = trainer.run()
    if accelerator.is_main_process:
        stored = {
            name: tensor if tensor.data_ptr() == tensors[name].data_ptr() else as_stored(tensor, training)
            for name, tensor in weights.items()
        }
        temperature = math.exp(-float(weights[SCALE]))
        images = data.trained, data.held_out
        card = card_of(
            training, data.lists, *images, data.positives, start, trainer.progress, temperature, cut_off
        )
        constants = {"prompt": prompt}
        save_trained(out / WEIGHTS, ClipEncoder, start, stored, training, stamp, constants, card)
    accelerator.wait_for_everyone()
    return out / WEIGHTS


def _cut_off(captions: Sequence[str], context_length: int) -> str | None:
    """A sentence on the captions, generated ones among them, that are too long for the text tower.

    >>> _cut_off(["a dog", "a dog and a cat"], 5)
    'cut off at 5 tokens: 1 of 2 captions'
    """
    cut = sum(map(bool, ClipTokenizer(context_length).encode(captions).truncated))
    return f"cut off at {context_length:,} tokens: {cut:,} of {len(captions):,} captions" if cut else None
