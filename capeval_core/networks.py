"""The list of networks, and the one that a folder of weights is for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from capeval_core.errors import did_you_mean
from capeval_core.weights.folder import CONFIG, OPEN_CLIP_TENSORS, WeightsError, WeightsFolder

if TYPE_CHECKING:
    from capeval_core.models.model import CheckedModel

NETWORKS: dict[str, str] = {
    "clip": "capeval_core.encoders.clip:ClipEncoder",
    "open_clip": "capeval_core.encoders.open_clip:OpenClipEncoder",
    "eva_clip": "capeval_core.encoders.eva_clip:EvaClipEncoder",
    "alpha_clip": "capeval_core.encoders.alpha_clip:AlphaClipEncoder",
    "blip2": "capeval_core.encoders.blip2:Blip2Encoder",
    "sam": "capeval_core.regions.sam:Sam",
}
"""Every network: what `encoder` in a config calls it, which is its `kind`, and its class."""


def network(kind: str) -> type[CheckedModel]:
    """The class of that kind.

    >>> network("sam").__name__
    'Sam'
    """
    module, _, name = NETWORKS[kind].partition(":")
    found: type[CheckedModel] = getattr(import_module(module), name)
    return found


def network_of(folder: WeightsFolder) -> type[CheckedModel]:
    """The class that opens a folder of weights, told by the folder's own config.

    Raises:
        WeightsError: the config names no network, or one that is not known here.

    >>> from capeval_core.weights.folder import open_weights
    >>> network_of(open_weights("tiny", metric="eco", tiny="blip2")).__name__
    'Blip2Encoder'
    """
    if folder.tensor_file.name == OPEN_CLIP_TENSORS:
        from capeval_core.encoders.dual import dual_class

        return dual_class(folder)
    kind = folder.config.get("encoder")
    if not isinstance(kind, str) or kind not in NETWORKS:
        raise WeightsError(
            f"weights {folder.name!r}: {CONFIG} says encoder {kind!r}, which is no network here"
            f"{did_you_mean(str(kind), NETWORKS)} (known: {', '.join(NETWORKS)})"
        )
    return network(kind)
