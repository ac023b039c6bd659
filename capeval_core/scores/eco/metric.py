"""ECO: of the captions proposed for an image the best, by an ensemble of CLIPs and their consensus.

Jeong, Lee, Nam, Ma, Kang: Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation
Using Ensembled CLIP and Consensus Scores, CVPR 2024 Workshops, https://arxiv.org/abs/2405.01028
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from capeval_core.errors import Problems, warn
from capeval_core.inputs.samples import Pools, Samples, images_in_rgb
from capeval_core.metric import Choices, Model, Reranker, pools_of
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.phrases.ngrams import Documents
from capeval_core.rows import canonical, column, row_schema
from capeval_core.scores.eco.formulas import CONSENSUS_WEIGHT, ENSEMBLE_WEIGHT, THRESHOLD
from capeval_core.scores.eco.members import MATCHER, MEMBER_ROW, Matcher, Member, check_members, open_members
from capeval_core.scores.eco.ranking import Candidates, rank
from capeval_core.scores.facts import facts
from capeval_core.weights.folder import WeightsError


@dataclass(frozen=True, kw_only=True)
class EcoOptions(CommonOptions):
    """Options of ECO. `weights` are those of BLIP-2, whose matching filters candidates."""

    members: str | Sequence[str] | None = option(
        None,
        "the ensemble: `paper`, `small`, `tiny`, or names, Hub ids and folders (comma-separated or a list); "
        "`blip2-itc` is the contrast of `weights`; None: `paper`, with the weights `tiny` `tiny`",
    )
    ensemble_weight: float = option(
        ENSEMBLE_WEIGHT, "weight of the ensembled CLIP score", sign="ensemble", minimum=0
    )
    consensus_weight: float = option(
        CONSENSUS_WEIGHT, "weight of the consensus score", sign="consensus_weight", minimum=0
    )
    threshold: float = option(
        THRESHOLD, "gap between the best two below which the shorter is chosen", sign="threshold", minimum=0
    )
    consensus: Literal["cider", "cider_d", "tfidf"] | None = option(
        None,
        "how captions of a pool are compared: by CIDEr as the paper says, CIDEr-D, or the released code's "
        "TF-IDF; None: `cider`, with compat `released` `tfidf`",
        sign="consensus",
    )
    consensus_documents: Documents = option(
        "doc_caption_within_pool",
        "what a document is where CIDEr weighs n-grams by rarity: a caption, all captions of an image, or "
        "the other captions; within a pool or over all pools",
        sign="consensus_documents",
    )

    def check(self, metric: Any) -> None:
        check_members(self.members)

    @property
    def consensus_formula(self) -> Literal["cider", "cider_d", "tfidf"]:
        """The formula of the consensus, also where the option `consensus` leaves it to `compat`."""
        return self.consensus or ("tfidf" if self.compat == "released" else "cider")

    def signed(self) -> list[str]:
        """As for all options, with the formula spelt out, and documents only where the formula has any."""
        signs = super(EcoOptions, replace(self, consensus=self.consensus_formula)).signed()
        if self.consensus_formula != "tfidf":
            return signs
        return [sign for sign in signs if not sign.startswith("consensus_documents:")]


@facts("eco")
class Eco(Reranker):
    """ECO: picks the best of each image's candidates by ensembled CLIP score and consensus."""

    Options: ClassVar[type[CommonOptions]] = EcoOptions
    ROW = row_schema(
        column("candidate", pa.int32(), "its position in the pool of its image"),
        column("caption", pa.string(), "its text, for filters and consensus"),
        column("values", pa.list_(pa.float32()), "its cosine with the image, one per member"),
        column("itm", pa.float32(), "BLIP-2's probability that it belongs to the image"),
    )

    options: EcoOptions

    @classmethod
    def check_input(cls, options: CommonOptions, *inputs: Any, progress: bool = False) -> Samples:
        samples = super().check_input(options, *inputs, progress=progress)
        return images_in_rgb(samples) if options.compat == "released" else samples

    def open_models(self) -> dict[str, Model]:
        # No tensors yet: members are opened one after another, when they encode.
        problems = Problems()
        matcher = None
        try:
            matcher = Matcher(MATCHER, self.weights_folder())
        except WeightsError as error:
            problems.extend(error.problems)
        self.members, self.ensemble = open_members(self.options.members, matcher, problems)
        models = {member.name: member.model for member in self.members}
        return {"weights": models[MATCHER], **{name: models[name] for name in self.ensemble}}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        yield self.encode_all(batch)

    def encode_all(
        self, samples: Samples, *, rows: str | PathLike[str] | None = None, progress: bool = False
    ) -> pa.Table:
        """Rows of checked samples. Members run one after another, each over all samples, and then go.

        With `rows` each member keeps its own in a folder of its name, so that a run goes on within a member,
        and another ensemble reuses the members that it shares.
        """
        pools = pools_of(samples)
        folder = self.options.rows if rows is None else rows
        if folder is not None:
            self.store(folder, self.ROW, {"metric": self.name})  # claims the folder; rows lie below it
        tables = {}
        try:
            with self.progress_bar(len(pools) * len(self.members), progress) as bar:
                for member in self.members:
                    bar.set_postfix_str(member.name)
                    tables[member.name] = self._member_rows(member, pools, folder, bar)
                    _free_device_memory()
        except BaseException:
            self.flush()  # of the members that came before, too
            raise
        return joined_rows(pools, tables, self.ensemble)

    def _member_rows(
        self, member: Member, pools: Pools, folder: str | PathLike[str] | None, bar: tqdm[Any]
    ) -> pa.Table:
        """Rows of one member; its encoder is in memory no longer than this runs."""
        folder = None if folder is None else Path(folder) / member.name
        stamp = {"metric": self.name, "member": member.name, "weights": member.model.fingerprint}
        stamp |= self.options.encoding()
        run = {"cache": self.cache, "batch_size": self.options.batch_size}
        encoder = None
        with self.collector(pools, MEMBER_ROW, folder, stamp, bar) as collector:
            for window in collector.windows():
                if encoder is None:  # not where all rows are stored
                    encoder = member.open(self.options.device, self.options.dtype)
                for table in member.rows(encoder, pools_of(window), run):
                    collector.add(table)
        return collector.table()

    def aggregate(self, rows: pa.Table) -> Choices:
        candidates = Candidates(
            pool=rows["index"].to_numpy() - rows["candidate"].to_numpy(),
            captions=rows["caption"].to_pylist(),
            cosines=rows["values"].combine_chunks().flatten().to_numpy().reshape(-1, len(self.ensemble)),
            itm=rows["itm"].to_numpy(),
            failed=rows["error"].is_valid().to_numpy(),
        )
        ranking = rank(candidates, self.ensemble, self.options)
        if ranking.flat and np.isfinite(ranking.scores).any():
            warn(
                f"{self.name}: {', '.join(ranking.flat)} cannot tell these captions apart, all values are "
                "equal: such z-scores are 0 (within a pool, CIDEr is 0 where the filters leave two captions "
                "or fewer: see `consensus_documents`)"
            )
        if message := ranking.doubtful_choices():
            warn(f"{self.name}: {message}")
        return Choices(ranking.scores, ranking.parts(), ranking.rows)


def joined_rows(pools: Pools, tables: Mapping[str, pa.Table], ensemble: Sequence[str]) -> pa.Table:
    """One row per candidate, from the rows of its members in any order; `ensemble` orders their values."""
    indices = np.asarray(pools.indices, dtype=np.int64)
    aligned = {name: _aligned(table, indices) for name, table in tables.items()}
    values = [aligned[name]["value"].to_numpy(zero_copy_only=False).astype(np.float32) for name in ensemble]
    flat = np.stack(values, axis=1)
    offsets = np.arange(len(indices) + 1, dtype=np.int32) * flat.shape[1]
    first = aligned[MATCHER]
    columns = {spec.name: first[spec.name] for spec in MEMBER_ROW if spec.name not in ("value", "itm")}
    columns["error"] = pc.coalesce(*(table["error"] for table in aligned.values()))
    truncated = [table["truncated"].to_numpy() for table in aligned.values()]
    columns["truncated"] = pa.array(np.max(truncated, axis=0), pa.int32())
    own = {
        "candidate": pa.array(pools.candidates, pa.int32()),
        "caption": pa.array(pools.captions, pa.string()),
        "values": pa.ListArray.from_arrays(offsets, flat.ravel()),
        "itm": first["itm"],
    }
    return pa.table({**columns, **own}, schema=Eco.ROW)


def _aligned(table: pa.Table, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    """The rows of these indices, in this order."""
    rows = canonical(table)
    return rows.take(pa.array(np.searchsorted(rows["index"].to_numpy(), indices)))


def _free_device_memory() -> None:
    """Hand back the memory of the last member on a GPU: the next one may need it in larger pieces."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
