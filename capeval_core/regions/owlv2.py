"""Boxes around whatever may be an object, of no class: OWLv2's objectness.

Minderer, Gritsenko, Houlsby: Scaling Open-Vocabulary Object Detection, NeurIPS 2023,
https://arxiv.org/abs/2306.09683
"""

from __future__ import annotations

import hashlib
import json
import threading
from os import PathLike
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from PIL import Image

from capeval_core.inputs.visual import InputImage
from capeval_core.models.architecture import check_tensors, size_problems
from capeval_core.models.device import DTYPES, exact_float32, resolve_device
from capeval_core.regions.boxes import clipped, distinct
from capeval_core.regions.models import DETECTOR, needs_transformers, open_model
from capeval_core.regions.source import Boxes, BoxSource
from capeval_core.weights.folder import WeightsError, WeightsFolder

THRESHOLD = 0.1
"""The paper trains objectness to predict the class score that a box will get, and 0.1 is the class score from
which transformers takes a box of OWLv2 for a detection."""
_REVISION = 1


class Owlv2Boxes(BoxSource):
    """The boxes of OWLv2 that are most likely objects, whatever they show.

    No text is asked for: a detector of fixed classes would miss what has no class, and the captions are what
    is to be judged. The vision tower runs in `dtype`, what predicts boxes always in float32.

    Args:
        weights: Hub id (`@revision` pins it) or folder of an OWLv2 in transformers' format.
        most: how many boxes at most.
        overlap: intersection over union above which the worse of two boxes goes.
        threshold: objectness, 0 to 1, below which a box goes. It is no calibrated probability; with 0 there
            are as many boxes as fit, even on a blank image.
        device: torch device name; None: CUDA where there is a GPU.
        dtype: "float32", "bfloat16" or "float16".

    Any number of threads may use one; the model then serves them in turn.

    Raises:
        WeightsError: transformers is missing, or the weights cannot be had or read.
    """

    def __init__(
        self,
        weights: str | PathLike[str] = DETECTOR,
        *,
        most: int = 300,
        overlap: float = 0.9,
        threshold: float = THRESHOLD,
        device: str | None = None,
        dtype: str = "float32",
    ) -> None:
        folder = open_model(weights, what="detector", model_type="owlv2", default=DETECTOR)
        self._most, self._overlap, self._threshold = most, overlap, threshold
        self._model = _open(folder, str(resolve_device(device)), dtype)
        settings = [_REVISION, folder.checksum, self._model.config, most, overlap, threshold, dtype]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        self.fingerprint = f"owlv2-{digest}"
        self.name = folder.label(digest)

    def find(self, image: InputImage, decoded: Image.Image) -> Boxes:
        corners, scores = self._model(decoded)
        size = (decoded.height, decoded.width)
        corners = clipped(corners * np.float32(max(size)), size)  # of the square that the image was padded to
        inside = (corners[:, 2:] > corners[:, :2]).all(axis=1) & (scores >= self._threshold)
        return distinct(corners[inside], scores[inside], self._overlap, self._most)


class _Model:
    """OWLv2 without its text tower: boxes (n, 4), as shares of the padded square, and scores of an image."""

    def __init__(self, folder: WeightsFolder, device: torch.device, dtype: str) -> None:
        try:
            from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor

            processor: Any = Owlv2ImageProcessor.from_pretrained(folder.path)
            if problems := size_problems(folder.config, ""):
                raise ValueError("; ".join(problems))
            config: Any = Owlv2Config(**folder.config)
        except ImportError as error:
            raise needs_transformers("detector", error) from error
        except Exception as error:  # a strange config raises whatever its reader raises
            raise WeightsError(f"detector {folder.name!r}: its config cannot be read ({error})") from error
        self.config = {"model": folder.config, "processor": processor.to_dict()}
        try:
            with torch.device("meta"):  # no memory is taken before the file is known to have these sizes
                expected = _without_text(Owlv2ForObjectDetection(config)).state_dict()
            # Files of older versions also hold buffers, which are made anew.
            header = {name: each for name, each in folder.header().items() if name in expected}
            if missing := [name for name in expected if name not in header]:
                raise WeightsError(f"{len(missing)} tensors are missing, such as {missing[0]}")
            check_tensors(expected, header)
            tensors = {name: each for name, each in folder.tensors().items() if name in expected}
            model: Any = _without_text(Owlv2ForObjectDetection(config))
            model.load_state_dict(tensors)
        except WeightsError as error:
            raise WeightsError(f"detector {folder.name!r}: {error}") from error
        except Exception as error:  # a strange config raises whatever its reader raises
            raise WeightsError(f"detector {folder.name!r}: its config cannot be built ({error})") from error
        model.owlv2.to(DTYPES[dtype])
        model.layer_norm.to(DTYPES[dtype])
        self._model = model.to(device).eval()
        self._processor = processor
        self._device, self._dtype = device, DTYPES[dtype]
        self._lock = threading.Lock()

    def __call__(self, image: Image.Image) -> tuple[Any, Any]:
        model = self._model
        pixels = self._processor(images=image, return_tensors="pt")["pixel_values"]
        with self._lock, torch.inference_mode(), exact_float32(self._device):
            grid = model.image_embedder(pixels.to(self._device, self._dtype))[0].float()
            features = grid.flatten(1, 2)
            scores = model.objectness_predictor(features)[0].sigmoid()
            centre, side = model.box_predictor(features, grid)[0].split(2, dim=-1)
            corners = torch.cat([centre - side / 2, centre + side / 2], dim=-1)
        return corners.cpu().numpy(), scores.cpu().numpy()


def _without_text(model: Any) -> Any:
    del model.owlv2.text_model, model.owlv2.text_projection
    return model


_OPENED: WeakValueDictionary[tuple[str, str, str], _Model] = WeakValueDictionary()


def _open(folder: WeightsFolder, device: str, dtype: str) -> _Model:
    """The model of a folder; loaded once per process, device and dtype while it is in use."""
    key = (f"{folder.path}:{folder.checksum}", device, dtype)
    model = _OPENED.get(key)
    if model is None:
        model = _OPENED[key] = _Model(folder, torch.device(device), dtype)
    return model
