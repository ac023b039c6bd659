"""Generated captions: BLIP's captioner.

Li, Li, Xiong, Hoi: BLIP: Bootstrapping Language-Image Pre-training for Unified Vision-Language Understanding
and Generation, ICML 2022, https://arxiv.org/abs/2201.12086
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from capeval_core.errors import InputError, wrong_option
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.training.generators import (
    Dropped,
    FoundModel,
    Generated,
    Generator,
    failure,
    find_model,
    quiet,
    refuse_incomplete,
)
from capeval_core.weights.folder import CONFIG, TENSORS, WeightsError, read_config

if TYPE_CHECKING:
    from capeval_core.training.augmentation import CaptionAugmentation

BLIP = "Salesforce/blip-image-captioning-large"
"""BLIP with ViT-L, pre-trained on 129M pairs and tuned on COCO's captions, as PAC-S's paper uses it."""
_ARCHITECTURE = "BlipForConditionalGeneration"
_WHAT = "captioner"


def find_captioner(model: str, revision: str | None) -> FoundModel:
    """The files of a BLIP captioner in transformers' format.

    Raises:
        WeightsError: there is none, or it is another model.
    """

    def needed(path: Path) -> list[str]:
        if not (path / CONFIG).is_file():
            if (path / "model_index.json").is_file():
                kind = read_config(path / "model_index.json").get("_class_name")
                raise WeightsError(f"{_WHAT} {model!r} is a pipeline of diffusers ({kind}), {_EXPECTED}")
            raise WeightsError(f"{_WHAT} {model!r} has no {CONFIG}, {_EXPECTED}")
        config = read_config(path / CONFIG)
        kinds = config.get("architectures") or [f"model of type {config.get('model_type')!r}"]
        if config.get("model_type") != "blip" or _ARCHITECTURE not in kinds:
            raise WeightsError(f"{_WHAT} {model!r} is a {kinds[0]}, {_EXPECTED}")
        return [TENSORS]

    return find_model(model, revision, _WHAT, default=BLIP, files=["*.json", "*.txt"], needed=needed)


_EXPECTED = f"expected a captioner ({_ARCHITECTURE}), such as {BLIP}"


class Captioner(Generator[Image.Image]):
    """A BLIP captioner that is open.

    Args:
        found: its files.
        settings: how captions are decoded.

    Raises:
        WeightsError: a file is damaged, or tensors are missing.
    """

    def __init__(self, found: FoundModel, settings: CaptionAugmentation) -> None:
        from transformers import BlipConfig, BlipForConditionalGeneration, BlipProcessor

        what = f"{_WHAT} {found.name!r}"
        try:
            with quiet("transformers"):
                self._processor: Any = BlipProcessor.from_pretrained(found.path, local_files_only=True)
                config: Any = BlipConfig.from_pretrained(found.path, local_files_only=True)
                self._check_length(settings, config.text_config.max_position_embeddings)
                captioner: Any = BlipForConditionalGeneration
                model, info = captioner.from_pretrained(
                    found.path,
                    dtype=DTYPES[settings.dtype],
                    use_safetensors=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
        except InputError:
            raise
        except Exception as error:  # whatever a damaged file leads its reader to
            raise failure(what, error) from error
        refuse_incomplete(what, info)
        self._settings = settings
        self._device = resolve_device(settings.device)
        self._model: Any = model.to(self._device).eval()

    def _check_length(self, settings: CaptionAugmentation, positions: int) -> None:
        """Refuse captions that the text decoder cannot hold, or that end within the prompt."""
        prompt = len(self._processor.tokenizer(settings.prompt)["input_ids"]) - 1
        if not prompt < settings.max_length <= positions:
            expected = f"expected more than the prompt's {prompt} and at most the model's {positions} tokens"
            raise wrong_option("max_length", settings.max_length, "", expected, verb="")

    def generate(self, contents: Sequence[Image.Image], seeds: Sequence[int]) -> list[Generated | Dropped]:
        """A caption of each image, without the prompt."""
        settings = self._settings
        prompts = [settings.prompt] * len(contents)
        inputs = self._processor(images=list(contents), text=prompts, return_tensors="pt")
        inputs = inputs.to(self._device, DTYPES[settings.dtype])
        search: dict[str, Any] = {"num_beams": settings.beams}
        if settings.decoding == "nucleus":
            search = {"num_beams": 1, "logits_processor": _nucleus(settings.top_p, seeds)}
        with torch.inference_mode(), quiet("transformers"):
            tokens = self._model.generate(
                pixel_values=inputs["pixel_values"],
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_length=settings.max_length,
                min_length=settings.min_length,
                do_sample=False,  # which would draw from one stream for all images of a batch
                **search,
            )
        # The prompt's last token, the end, is not handed to the decoder.
        new = tokens[:, inputs["input_ids"].shape[1] - 1 :]
        texts = self._processor.batch_decode(new, skip_special_tokens=True)
        return [" ".join(text.split()) or Dropped("empty caption") for text in texts]


def _nucleus(top_p: float, seeds: Sequence[int]) -> Any:
    """Nucleus sampling (Holtzman et al., 2020) by logits of which the highest one is the sample."""
    from transformers import LogitsProcessorList, TopPLogitsWarper

    return LogitsProcessorList([TopPLogitsWarper(top_p), GumbelNoise(seeds)])


class GumbelNoise:
    """Noise under which the most probable token is a sample, from a stream of its own for each row.

    argmax(logits + g), where g = -log(-log(u)) is Gumbel noise, is distributed as softmax(logits). So a
    caption does not depend on the images beside it in the batch.

    >>> noise = GumbelNoise([7])
    >>> logits = torch.log(torch.tensor([[0.25, 0.0, 0.75]]))
    >>> draws = torch.stack([noise(None, logits).argmax(dim=-1)[0] for _ in range(2000)])
    >>> torch.bincount(draws, minlength=3).div(2000).tolist()
    [0.2..., 0.0, 0.7...]
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        draws = torch.stack(
            [torch.rand(size, generator=stream, dtype=torch.float64) for stream in self._streams]
        )
        return scores.float() - torch.log(-torch.log(draws)).to(scores.device, torch.float32)
