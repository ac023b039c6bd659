"""BLIP-2 in transformers' format: configuration, words and processor, and the model that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capeval_core.weights.catalogue import BLIP2
from capeval_core.weights.constants import CLIP_MEAN, CLIP_STD
from capeval_core.weights.folder import TOKENIZER, VOCABULARY, WeightsError, WeightsFolder, read_json

if TYPE_CHECKING:
    from transformers import Blip2ForImageTextRetrieval

VISION = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "image_size",
    "patch_size",
    "hidden_act",
    "layer_norm_eps",
    "qkv_bias",
)
QFORMER = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "layer_norm_eps",
    "pad_token_id",
    "cross_attention_frequency",
    "encoder_hidden_size",
)
"""What the towers depend on, named as in transformers' configuration."""
CONTEXT = 32
"""Ids of a text in the original code, marks included."""


def translate_transformers(folder: WeightsFolder) -> dict[str, Any]:
    """Our configuration of a repository in transformers' format.

    Raises:
        WeightsError: it is no BLIP-2 with matching heads, or its images are not made as we make them.
    """
    given = folder.config
    if given.get("model_type") != "blip-2" or given.get("architectures") != ["Blip2ForImageTextRetrieval"]:
        raise WeightsError(
            f"these are weights of {given.get('model_type')!r} ({given.get('architectures')}), expected a "
            f"Blip2ForImageTextRetrieval such as {BLIP2[0].repository}"
        )
    try:
        from transformers import Blip2Config
    except ImportError as error:
        raise WeightsError(f"BLIP-2 needs transformers ({error}): pip install transformers") from error
    try:
        whole = Blip2Config.from_dict(given).to_dict()
        architecture = {
            "vision": {key: whole["vision_config"][key] for key in VISION},
            "qformer": {key: whole["qformer_config"][key] for key in QFORMER},
            "num_query_tokens": whole["num_query_tokens"],
            "image_text_hidden_size": whole["image_text_hidden_size"],
        }
    except Exception as error:  # versions of transformers refuse in different ways
        raise WeightsError(f"config.json cannot be understood ({error})") from error
    return {
        "encoder": "blip2",
        "architecture": architecture,
        "preprocessing": preprocessing(architecture, _processor(folder.path)),
        "context_length": CONTEXT,
        "vocabulary": _words_of(folder.path),
    }


def empty_model(architecture: dict[str, Any]) -> Blip2ForImageTextRetrieval:
    """The model of an architecture (names as in transformers' configuration), its weights still random.

    Raises:
        WeightsError: transformers is missing, or the architecture cannot be built.
    """
    try:
        from transformers import Blip2Config, Blip2ForImageTextRetrieval
    except ImportError as error:
        raise WeightsError(f"BLIP-2 needs transformers ({error}): pip install transformers") from error
    try:
        config = Blip2Config(
            vision_config=dict(architecture["vision"]),
            qformer_config={**architecture["qformer"], "use_qformer_text_input": True},
            num_query_tokens=architecture["num_query_tokens"],
            image_text_hidden_size=architecture["image_text_hidden_size"],
        )
        return Blip2ForImageTextRetrieval(config)
    except Exception as error:  # versions of transformers refuse in different ways
        raise WeightsError(f"the architecture of the config cannot be built ({error})") from error


def preprocessing(architecture: Mapping[str, Any], processor: Mapping[str, Any] = {}) -> dict[str, Any]:
    """How images are made, after a processor of transformers where there is one."""
    if processor.get("resample", 3) != 3:
        raise WeightsError(f"images are resized by method {processor['resample']}, expected 3 (bicubic)")
    return {
        "image_size": architecture["vision"]["image_size"],
        "mean": list(processor.get("image_mean") or CLIP_MEAN),
        "std": list(processor.get("image_std") or CLIP_STD),
        "interpolation": "bicubic",
    }


def read_words(file: Path) -> list[str]:
    """The words of a vocab.txt, one per line."""
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(
            f"{file} cannot be read ({error}): it holds the words that ids stand for"
        ) from error


def _words_of(folder: Path) -> list[str]:
    if (folder / VOCABULARY).is_file():
        return read_words(folder / VOCABULARY)
    try:
        words = read_json(folder / TOKENIZER)["model"]["vocab"]
        return sorted(words, key=words.__getitem__)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{folder} has neither {VOCABULARY} nor a {TOKENIZER} with words ({error}): download it again"
        ) from error


def _processor(folder: Path) -> dict[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            try:
                found = read_json(folder / name)
                return dict(found.get("image_processor", found))
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise WeightsError(f"{name} cannot be read ({error})") from error
    raise WeightsError(f"{folder} has no preprocessor_config.json: download the repository again")
