"""The card of weights that `capeval train pacs` made: data, losses and settings."""

from __future__ import annotations

import json

from capeval_core._version import __version__
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.training.pacs import GENERATED_CAPTIONS, GENERATED_IMAGES, PacsTraining
from capeval_core.training.pairs import Numbers, PairLists
from capeval_core.training.positives import Positives
from capeval_core.training.state import Progress
from capeval_core.weights.folder import WeightsFolder

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
