"""The members of ECO's ensemble: chosen by name, opened one at a time, each encoding candidates to rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.errors import Problems, did_you_mean, expanded_path, naming, wrong_option
from capeval_core.inputs.samples import Pools
from capeval_core.matching.cosine import best_query_cosine, paired_cosine
from capeval_core.metric import Model
from capeval_core.registry import network, network_of
from capeval_core.rows import column, common_columns, nullable, row_schema
from capeval_core.weights.catalogue import ECO_MEMBERS, EVA_CLIP
from capeval_core.weights.folder import WeightsError, WeightsFolder, open_weights

MATCHER = "blip2-itc"
"""The member that is the contrast of the model which also filters."""
PRESETS: dict[str, tuple[str, ...]] = {
    "paper": ("eva-clip-18b", "metaclip-bigg", "mobileclip-b", "openclip-bigg", MATCHER),
    "small": ("eva02-l14", "metaclip-l14", "mobileclip-b", "openclip-l14", MATCHER),
    "tiny": ("pacs-tiny", "alpha-clip-tiny", MATCHER),
}
"""`small` has the paper's five families in sizes of which each fits into 8 GB of a GPU."""
_TINY = {"pacs-tiny": "pacs", "alpha-clip-tiny": "hices"}
_KNOWN = [*ECO_MEMBERS, *_TINY, MATCHER]

MEMBER_ROW = row_schema(
    column("value", pa.float32(), "cosine of candidate and image"),
    column("itm", pa.float32(), "probability that they match, null for a dual encoder"),
)


@dataclass(frozen=True)
class Member:
    """A dual encoder: the cosine of image and candidate, behind the prompt that its weights name.

    name: in options, in the signature, and of its folder of rows. folder: its weights, on disk only.
    """

    name: str
    folder: WeightsFolder
    kind: str

    @property
    def model(self) -> Model:
        """Its label in the signature, and the fingerprint in stamps of its rows."""
        fingerprint = network(self.kind).fingerprint_of(self.folder)
        return Model(self.folder.label(fingerprint), fingerprint)

    def open(self, device: str | None, dtype: str) -> Any:
        """Its encoder, in memory."""
        import torch

        try:
            with torch.device("cpu"):  # whatever a program that builds a model of its own has set
                return network(self.kind).open(self.folder, device=device, dtype=dtype)
        except (WeightsError, MemoryError) as error:
            kind = MemoryError if isinstance(error, MemoryError) else WeightsError
            raise kind(_not_opened(self.name, error)) from error

    def rows(self, encoder: Any, batch: Pools, run: dict[str, Any]) -> Iterator[pa.Table]:
        """Tables of schema `MEMBER_ROW` that cover the batch in order; `run` is for the encoder."""
        prompt = self.folder.config.get("constants", {}).get("prompt", "")
        texts = encoder.encode_texts([f"{prompt}{caption}" for caption in batch.captions], **run)
        starts, pool = [*batch.starts, len(batch)], 0
        # One image per pool, whose features all its candidates share.
        for images in encoder.encode_images([batch.images[start] for start in starts[:-1]], **run):
            n = len(images.keys)
            part, sizes = slice(starts[pool], starts[pool + n]), np.diff(starts[pool : pool + n + 1])
            keys, errors = np.array(images.keys, dtype=object), np.array(images.errors, dtype=object)
            common = {"groups": np.repeat(keys, sizes).tolist(), "errors": np.repeat(errors, sizes).tolist()}
            value = paired_cosine(np.repeat(images.features, sizes, axis=0), texts.features[part])
            yield _rows(batch, part, value, np.full_like(value, np.nan), texts.truncated[part], **common)
            pool += n


class Matcher(Member):
    """BLIP-2: its contrast (ITC, the best query token's cosine) and its matching (ITM), in one pass."""

    def rows(self, encoder: Any, batch: Pools, run: dict[str, Any]) -> Iterator[pa.Table]:
        parts = [slice(*ends) for ends in pairwise([*batch.starts, len(batch)])]
        images = [batch.images[part.start] for part in parts]
        matches = encoder.match(images, [batch.captions[part] for part in parts], **run)
        for part, match in zip(parts, matches, strict=True):
            n = part.stop - part.start
            common = {"groups": [match.key] * n, "errors": [match.error] * n}
            value = best_query_cosine(match.queries, match.text_features)
            yield _rows(batch, part, value, match.itm, match.truncated, **common)


def _rows(batch: Pools, part: slice, value: Any, itm: Any, truncated: Any, **common: Any) -> pa.Table:
    columns = common_columns(batch, part, truncated=np.array(truncated), **common)
    return pa.table({**columns, "value": nullable(value), "itm": nullable(itm)}, schema=MEMBER_ROW)


def open_members(
    members: str | Sequence[str] | None, matcher: Matcher | None, problems: Problems
) -> tuple[list[Member], tuple[str, ...]]:
    """The matcher that filters first, then the others; and the names of the ensemble, in its order."""
    opened: list[Member] = [] if matcher is None else [matcher]
    ensemble = []
    for name in member_names(members, tiny=matcher is not None and matcher.folder.name == "tiny"):
        try:
            if name != MATCHER:
                with naming({"weights": "members"}):
                    opened.append(_member(name))
            ensemble.append(MATCHER if name == MATCHER else opened[-1].name)
        except WeightsError as error:
            problems.extend(WeightsError(_not_opened(name, error)).problems)
    if len(problems):
        raise WeightsError(problems)
    names = [member.name for member in opened]
    if twice := sorted({name for listed in (ensemble, names) for name in listed if listed.count(name) > 1}):
        raise ValueError(
            f"members: {', '.join(map(repr, twice))} comes twice: name each member once (a folder is "
            "called by its last part)"
        )
    if "weights" in ensemble:  # as the signature calls the matcher that filters
        raise ValueError("members: a folder called 'weights' cannot be told from the option: rename it")
    return opened, tuple(ensemble)


def member_names(members: str | Sequence[str] | None, *, tiny: bool) -> list[str]:
    """The members that an option names: a preset, names parted by commas, or a list of them."""
    if members is None:
        members = "tiny" if tiny else "paper"
    if isinstance(members, str):
        members = PRESETS.get(members) or members.split(",")
    names = [str(name).strip() for name in members]
    if not names or not all(names):
        fix = f"expected one or more of {', '.join([*PRESETS, *_KNOWN])}, Hub ids or folders"
        raise wrong_option("members", members, "it names none", fix, verb="")
    return names


def check_members(members: str | Sequence[str] | None) -> None:
    """Refuse names that can be no member's, before any weights are opened."""
    for name in [] if members is None else member_names(members, tiny=False):
        if name not in _KNOWN and "/" not in name and not expanded_path(name).is_dir():
            found = f"it is neither known ({', '.join(_KNOWN)}), nor a Hub id (org/name), nor a folder"
            raise WeightsError(_not_opened(name, f"{found}{did_you_mean(name, _KNOWN)}"))


def _member(name: str) -> Member:
    from capeval_core.encoders.clip import ClipTowers

    tiny, metric, weights = "", "eco", name
    if not expanded_path(name).is_dir():
        if name in _TINY:
            weights, tiny = "tiny", _TINY[name]
        elif name in ECO_MEMBERS:
            entry = ECO_MEMBERS[name]
            weights, metric = entry.repository, EVA_CLIP if entry.checkpoint else "eco"
    folder = open_weights(weights, metric=metric, tiny=tiny)
    if weights == name:  # a folder or a Hub id: its name has to fit into signatures and paths
        name = re.sub(r"[^\w.-]+", "-", folder.name.rpartition("/")[2]).lower()
    encoder = network_of(folder)
    if encoder.kind != "blip2" and not issubclass(encoder, ClipTowers):
        found = f"weights {folder.name!r} are of encoder {encoder.kind!r}, expected a CLIP or BLIP-2"
        raise WeightsError(found)
    return (Matcher if encoder.kind == "blip2" else Member)(name, folder, encoder.kind)


def _not_opened(name: str, error: Exception | str) -> str:
    return f"members: {name!r} could not be opened: {error}\nTo do without it, name the others in `members`."
