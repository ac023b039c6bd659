"""The members of ECO's ensemble: chosen by name, opened one at a time, each encoding candidates to rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from capeval_core.models.model import CheckedModel

MATCHER = "blip2-itc"
"""The member that is the contrast of the model which also filters."""
PRESETS: dict[str, tuple[str, ...]] = {
    "paper": ("eva-clip-18b", "metaclip-bigg", "mobileclip-b", "openclip-bigg", MATCHER),
    "small": ("eva02-l14", "metaclip-l14", "mobileclip-b", "openclip-l14", MATCHER),
    "tiny": ("pacs-tiny", "alpha-clip-tiny", MATCHER),
}
"""`small` has the paper's five families in sizes of which each fits into 8 GB of a GPU."""
_TINY = {"pacs-tiny": "pacs", "alpha-clip-tiny": "hices"}

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

    @property
    def network(self) -> type[CheckedModel]:
        """The class of its encoder."""
        return network_of(self.folder)

    @property
    def model(self) -> Model:
        """Its label in the signature, and the fingerprint in stamps of its rows."""
        fingerprint = self.network.fingerprint_of(self.folder)
        return Model(self.folder.label(fingerprint), fingerprint)

    def open(self, device: str | None, dtype: str) -> Any:
        """Its encoder, in memory."""
        import torch

        try:
            with torch.device("cpu"):  # whatever a program that builds a model of its own has set
                return self.network.open(self.folder, device=device, dtype=dtype)
        except (WeightsError, MemoryError) as error:
            kind = MemoryError if isinstance(error, MemoryError) else WeightsError
            raise kind(_not_opened(self.name, error)) from error

    def rows(self, encoder: Any, batch: Pools, run: dict[str, Any]) -> Iterator[pa.Table]:
        """Tables of schema `MEMBER_ROW` that cover the batch in order; `run` is for the encoder."""
        prompt = self.folder.config.get("constants", {}).get("prompt", "")
        texts = encoder.encode_texts([f"{prompt}{caption}" for caption in batch.captions], **run)
        starts = [*batch.starts, len(batch)]
        pool = 0
        # One image per pool, whose features all its candidates share.
        for images in encoder.encode_images([batch.images[start] for start in starts[:-1]], **run):
            n = len(images.keys)
            part, sizes = slice(starts[pool], starts[pool + n]), np.diff(starts[pool : pool + n + 1])
            yield _rows(
                batch,
                part,
                groups=np.repeat(images.keys, sizes).tolist(),
                errors=np.repeat(np.array(images.errors, dtype=object), sizes).tolist(),
                truncated=np.array(texts.truncated[part]),
                value=paired_cosine(np.repeat(images.features, sizes, axis=0), texts.features[part]),
                itm=np.full(part.stop - part.start, np.nan, dtype=np.float32),
            )
            pool += n


class Matcher(Member):
    """BLIP-2: its contrast (ITC, the best query token's cosine) and its matching (ITM), in one pass."""

    @property
    def network(self) -> type[CheckedModel]:
        return network("blip2")

    def rows(self, encoder: Any, batch: Pools, run: dict[str, Any]) -> Iterator[pa.Table]:
        starts = [*batch.starts, len(batch)]
        pools = [batch.captions[start:stop] for start, stop in pairwise(starts)]
        images = [batch.images[start] for start in starts[:-1]]
        for start, match in zip(starts, encoder.match(images, pools, **run), strict=False):
            n = len(match.logits)
            yield _rows(
                batch,
                slice(start, start + n),
                groups=[match.key] * n,
                errors=[match.error] * n,
                truncated=np.array(match.truncated),
                value=best_query_cosine(match.queries, match.text_features),
                itm=match.itm,
            )


def open_members(
    members: str | Sequence[str] | None, matcher: Matcher | None, problems: Problems
) -> tuple[list[Member], tuple[str, ...]]:
    """The matcher that filters first, then the others; and the names of the ensemble, in its order.

    Args:
        matcher: None, where `problems` say why it could not be opened.

    Raises:
        ValueError: no member, one twice, or one called as the option `weights`.
        WeightsError: all weights that could not be loaded; names the members.
    """
    opened: list[Member] = [] if matcher is None else [matcher]
    ensemble = []
    for name in member_names(members, tiny=matcher is not None and matcher.folder.name == "tiny"):
        if name != MATCHER:
            try:
                with naming({"weights": "members"}):
                    opened.append(_member(name))
            except WeightsError as error:
                problems.extend(WeightsError(_not_opened(name, error)).problems)
                continue
        ensemble.append(opened[-1].name if name != MATCHER else MATCHER)
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
    """The members that an option names.

    >>> member_names("small", tiny=False)
    ['eva02-l14', 'metaclip-l14', 'mobileclip-b', 'openclip-l14', 'blip2-itc']
    >>> member_names("mobileclip-b, blip2-itc", tiny=False)
    ['mobileclip-b', 'blip2-itc']
    """
    if members is None:
        members = "tiny" if tiny else "paper"
    if isinstance(members, str):
        members = PRESETS.get(members) or members.split(",")
    names = [str(name).strip() for name in members]
    if not names or not all(names):
        known = ", ".join([*PRESETS, *ECO_MEMBERS, *_TINY, MATCHER])
        fix = f"expected one or more of {known}, Hub ids or folders"
        raise wrong_option("members", members, "it names none", fix, verb="")
    return names


def check_members(members: str | Sequence[str] | None) -> None:
    """Refuse names that can be no member's, before any weights are opened.

    Raises:
        ValueError: no name at all. WeightsError: neither a known name, nor a Hub id, nor a folder.
    """
    known = [*ECO_MEMBERS, *_TINY, MATCHER]
    for name in [] if members is None else member_names(members, tiny=False):
        if name not in known and "/" not in name and not expanded_path(name).is_dir():
            found = f"it is neither known ({', '.join(known)}), nor a Hub id (org/name), nor a folder"
            raise WeightsError(_not_opened(name, f"{found}{did_you_mean(name, known)}"))


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
    if encoder.kind == "blip2":
        return Matcher(name, folder)
    if not issubclass(encoder, ClipTowers):
        raise WeightsError(
            f"weights {folder.name!r} are of encoder {encoder.kind!r}, expected a CLIP or BLIP-2"
        )
    return Member(name, folder)


def _not_opened(name: str, error: Exception | str) -> str:
    return f"members: {name!r} could not be opened: {error}\nTo do without it, name the others in `members`."


def _rows(batch: Pools, part: slice, *, value: Any, itm: Any, **common: Any) -> pa.Table:
    own = {"value": nullable(value), "itm": nullable(itm)}
    return pa.table({**common_columns(batch, part, **common), **own}, schema=MEMBER_ROW)
