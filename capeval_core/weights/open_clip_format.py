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
        for name, part in (("vision_cfg", vision), ("text_cfg", text), ("preprocess_cfg", preprocess)):
            if not isinstance(part, dict):
                raise WeightsError(f"{OPEN_CLIP_CONFIG}: {name} is no object")
        if not isinstance(quick_gelu := model.get("quick_gelu", False), bool):
            raise WeightsError(f"{OPEN_CLIP_CONFIG}: quick_gelu is {quick_gelu!r}, expected true or false")
        size = preprocess.get("size", vision["image_size"])
        if isinstance(size, list) and (not size or any(side != size[0] for side in size)):
            raise WeightsError(f"size {size} is not square, as CLIP's images are")
        translated = {
            "format": 1,
            "encoder": "clip",
            "architecture": {"embed_dim": model["embed_dim"], "vision": vision, "text": text},
            "activation": "quick_gelu" if quick_gelu else "gelu",
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
