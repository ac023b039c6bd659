"""The ensemble of ECO: its presets, and networks that give the cosine of each candidate with its image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from capeval_core.errors import expanded_path, wrong_option
from capeval_core.fetching import open_listed
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import best_query_cosine, paired_cosine
from capeval_core.metric import Model
from capeval_core.registry import network, network_of
from capeval_core.rows import COVERAGE, Texts, column, nullable, row_schema
from capeval_core.weights.catalogue import ECO_MEMBERS, EVA_CLIP
from capeval_core.weights.folder import WeightsError, WeightsFolder

if TYPE_CHECKING:
    from capeval_core.scores.eco.metric import Eco

MATCHER = "blip2-itc"
"""The member that is the contrast of the model which also filters."""
PRESETS: dict[str, tuple[str, ...]] = {
    "paper": ("eva-clip-18b", "metaclip-bigg", "mobileclip-b", "openclip-bigg", MATCHER),
    "small": ("eva02-l14", "metaclip-l14", "mobileclip-b", "openclip-l14", MATCHER),
    "tiny": ("pacs-tiny", "alpha-clip-tiny", MATCHER),
}
"""`small` has the paper's five families in sizes of which each fits into 8 GB of a GPU."""
_TINY = {"pacs-tiny": "pacs", "alpha-clip-tiny": "hices"}
NAMES = [*ECO_MEMBERS, *_TINY, MATCHER]
"""The members that have names; others are Hub ids or folders."""

MEMBER_ROW = row_schema(
    COVERAGE,
    column("value", pa.float32(), "cosine of candidate and image"),
    column("itm", pa.float32(), "probability that they match, null for a dual encoder"),
)


class Member:
    """A dual encoder: the cosine of image and candidate, behind the prompt that its weights name; its name is
    that of its folder of rows, too. Its rows are encoded as those of a metric."""

    ROW = MEMBER_ROW
    media = ("image",)

    def __init__(self, eco: Eco, name: str, folder: WeightsFolder, kind: str) -> None:
        self.options = eco.options
        self.stores = eco.stores
        self.run = eco.run
        self.name = name
        self.folder = folder
        self._metric = eco.name
        self._network = network(kind)
        fingerprint = self._network.fingerprint_of(folder)
        self.model = Model(folder.label(fingerprint), fingerprint)

    def stamp(self) -> dict[str, Any]:
        """Everything that its rows depend on, apart from their content."""
        stamp = {"metric": self._metric, "member": self.name, "weights": self.model.fingerprint}
        return stamp | self.options.encoding()

    @cached_property
    def encoder(self) -> Any:
        """Its encoder, in memory until `close`."""
        import torch

        try:
            with torch.device("cpu"):  # a program that builds a model of its own may have set another
                return self._network.open(self.folder, device=self.options.device, dtype=self.options.dtype)
        except (WeightsError, MemoryError) as error:
            # Too little memory is not a fault of the weights.
            kind = MemoryError if isinstance(error, MemoryError) else WeightsError
            raise kind(not_opened(self.name, error)) from error

    def close(self) -> None:
        """Give the memory of the encoder back."""
        import torch

        vars(self).pop("encoder", None)  # where `cached_property` has it
        torch.cuda.empty_cache()  # the next one may need it in larger pieces

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        """Tables of schema `MEMBER_ROW` that cover the batch in order."""
        # Weights that were trained behind a prompt name it, such as PAC-S's.
        prompt = self.folder.config.get("constants", {}).get("prompt", "")
        tokenizer = self.encoder.tokenizer
        texts = Texts(batch)
        prompted_captions = [f"{prompt}{caption}" for caption in batch.captions]
        encoded = self.encoder.encode_texts(prompted_captions, **self.run)
        # One image per pool, whose features all its candidates share.
        starts = [*batch.starts, len(batch)]
        pool_images = [batch.images[start] for start in batch.starts]
        pool = 0
        for images in self.encoder.encode_images(pool_images, **self.run):
            # Some pools at a time: `part` are their candidates, `sizes` how many each has.
            n = len(images.keys)
            part = slice(starts[pool], starts[pool + n])
            sizes = np.diff(starts[pool : pool + n + 1])
            columns = texts.columns(
                part,
                np.repeat(np.array(images.keys, dtype=object), sizes).tolist(),
                np.repeat(np.array(images.errors, dtype=object), sizes).tolist(),
                encoded.truncated,
                tokenizer=tokenizer,
                prompt=prompt,
            )
            value = paired_cosine(np.repeat(images.features, sizes, axis=0), encoded.features[part])
            columns["value"] = nullable(value)
            columns["itm"] = nullable(np.full_like(value, np.nan))  # null: only BLIP-2 matches
            yield pa.table(columns, schema=self.ROW)
            pool += n


class Matcher(Member):
    """BLIP-2: its contrast (ITC, the best query token's cosine) and its matching (ITM), in one pass."""

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        pools = []
        images = []
        captions = []
        for start, stop in pairwise([*batch.starts, len(batch)]):
            pool = batch[start:stop]
            pools.append(pool)
            images.append(pool.images[0])
            captions.append(pool.captions)
        for pool, match in zip(pools, self.encoder.match(images, captions, **self.run), strict=True):
            columns = Texts(pool).columns(
                slice(0, len(pool)),
                [match.key] * len(pool),
                [match.error] * len(pool),
                match.truncated,
                tokenizer=self.encoder.tokenizer,
            )
            columns["value"] = nullable(best_query_cosine(match.queries, match.text_features))
            columns["itm"] = nullable(match.itm)
            yield pa.table(columns, schema=self.ROW)


def member_names(members: str | Sequence[str] | None, *, tiny: bool) -> list[str]:
    """The members of an option: a preset, names parted by commas, or a list of them."""
    if members is None:
        members = "tiny" if tiny else "paper"
    if isinstance(members, str):
        members = PRESETS.get(members) or members.split(",")
    names = [str(name).strip() for name in members]
    if not names or not all(names):
        fix = f"expected one or more of {', '.join([*PRESETS, *NAMES])}, Hub ids or folders"
        raise wrong_option("members", members, "it names none", fix, sentence=True)
    return names


def open_member(eco: Eco, name: str) -> Member:
    """The member of a name, a Hub id or a folder, without its tensors."""
    from capeval_core.encoders.dual import DualEncoder

    metric = "eco"
    tiny = ""
    weights: Any = name
    if not expanded_path(name).is_dir():
        if name in _TINY:
            weights = "tiny"
            tiny = _TINY[name]
        elif name in ECO_MEMBERS:
            weights = ECO_MEMBERS[name]
            # A checkpoint is one of EVA-CLIP's release, which has a form of its own.
            metric = EVA_CLIP if weights.checkpoint else "eco"
    folder = open_listed(weights, metric=metric, tiny=tiny)
    if weights == name:  # a folder or a Hub id: its name has to fit into signatures and paths
        name = re.sub(r"[^\w.-]+", "-", folder.name.rpartition("/")[2]).lower()
    encoder = network_of(folder)
    # Any network with one feature for an image and one for a text; HICE-S's Alpha-CLIP is one.
    if encoder.kind != "blip2" and not issubclass(encoder, DualEncoder):
        problem = f"weights {folder.name!r} are of encoder {encoder.kind!r}, expected a CLIP or BLIP-2"
        raise WeightsError(problem)
    return (Matcher if encoder.kind == "blip2" else Member)(eco, name, folder, encoder.kind)


def not_opened(name: str, error: Exception | str) -> str:
    return f"members: {name!r} could not be opened: {error}\nTo do without it, name the others in `members`."
