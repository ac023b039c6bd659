"""The configuration of open_clip's repositories, translated into ours."""

from __future__ import annotations

from typing import Any

from capeval_core.weights.folder import OPEN_CLIP_CONFIG, WeightsError


def translate_open_clip(config: dict[str, Any]) -> dict[str, Any]:
    """open_clip's repository format in ours.

    Raises:
        WeightsError: something is missing, or the preprocessing is not CLIP's.
    """
    try:
        model, preprocess = config["model_cfg"], config["preprocess_cfg"]
        vision, text = model["vision_cfg"], model["text_cfg"]
        size = preprocess.get("size", vision["image_size"])
        if isinstance(size, list) and len(set(size)) != 1:
            raise WeightsError(f"size {size} is not square, as CLIP's pictures are")
        translated = {
            "format": 1,
            "encoder": "clip",
            "architecture": {"embed_dim": model["embed_dim"], "vision": vision, "text": text},
            "activation": "quick_gelu" if model.get("quick_gelu", False) else "gelu",
            "preprocessing": {
                "image_size": size[0] if isinstance(size, list) else size,
                "mean": preprocess["mean"],
                "std": preprocess["std"],
                "interpolation": preprocess.get("interpolation", "bicubic"),
            },
        }
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{OPEN_CLIP_CONFIG} lacks {error}") from error
    if preprocess.get("resize_mode", "shortest") != "shortest":
        raise WeightsError(f"resize_mode {preprocess['resize_mode']!r} is not CLIP's 'shortest'")
    return translated
