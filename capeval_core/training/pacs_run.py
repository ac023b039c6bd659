"""PAC-S's training, from captions, images and generated positives to a folder of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.clip_model import config_problems
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.errors import Problems, file_problem, wrong_option
from capeval_core.inputs.visual import InputImage
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.lora import AdaptedClip, import_peft
from capeval_core.training.pacs import PacsTraining
from capeval_core.training.pacs_card import card_of
from capeval_core.training.pacs_objective import PacsObjective
from capeval_core.training.pairs import Numbers, PairLists, PairOrder, held_out
from capeval_core.training.positives import Positives
from capeval_core.training.projections import SCALE, Projections
from capeval_core.training.state import TOWERS, WEIGHTS, locked
from capeval_core.training.towers import Inputs, PixelsAndIds, TowerEncoder, TowerOutputs
from capeval_core.training.trained import as_stored, save_trained
from capeval_core.training.trainer import Trainer, open_accelerator
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsError, open_weights

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
    accelerator = open_accelerator(training, out)
    with locked(out, accelerator):
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
    trainer = Trainer(training, objective, looks, out, stamp, accelerator)
    weights = trainer.run(report if accelerator.is_main_process else lambda line: None)
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
