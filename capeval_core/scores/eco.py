"""ECO: of the captions proposed for an image the best, by an ensemble of CLIPs and their consensus.

Jeong, Lee, Nam, Ma, Kang: Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation
Using Ensembled CLIP and Consensus Scores, CVPR 2024 Workshops, https://arxiv.org/abs/2405.01028

The formulas are in `eco_formulas`, the filters in `eco_filters`, and what happens to a set in `eco_ranking`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from capeval_core.errors import Argument, InputWarning, Piece
from capeval_core.inputs.samples import Samples, candidates_of, check_pools, in_rgb
from capeval_core.metric import CaptionMetric, Model, Values
from capeval_core.options import Options as CommonOptions
from capeval_core.rows import RowStore
from capeval_core.scores.eco_ensembles import check_members, open_members
from capeval_core.scores.eco_members import MATCHER, MEMBER_ROW, Matcher, Member
from capeval_core.scores.eco_options import EcoOptions
from capeval_core.scores.eco_ranking import FAR_BELOW, Candidates, Ranking, rank
from capeval_core.scores.eco_rows import ECO_ROW, joined_rows
from capeval_core.weights.catalogue import BLIP2

if TYPE_CHECKING:
    from capeval_core.encoders.blip2 import Blip2Encoder


NAMED_CHOICES = 3
"""Doubtful choices that a warning gives the numbers of."""


class Eco(CaptionMetric):
    """ECO: picks the best of each image's candidates by ensembled CLIP score and consensus."""

    name = "eco"
    title = "ECO"
    key = "eco"
    summary = "The best of each image's candidates, by an ensemble of CLIPs and the consensus of the pool."
    paper = (
        "Jeong et al., Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation Using "
        "Ensembled CLIP and Consensus Scores, CVPR 2024 Workshops, https://arxiv.org/abs/2405.01028"
    )
    range = (-float("inf"), float("inf"))
    pools = True
    relative = (
        "its totals are z-scores of the very set that was scored, so they cannot be compared with those of "
        "another set, and resampling this one would change them"
    )
    default_weights = BLIP2[0]
    tiny = "blip2"
    Options: ClassVar[type[CommonOptions]] = EcoOptions
    ROW = ECO_ROW

    options: EcoOptions

    @classmethod
    def encoder_class(cls) -> type[Blip2Encoder]:
        from capeval_core.encoders.blip2 import Blip2Encoder

        return Blip2Encoder

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        super().check_options(options)
        if isinstance(options, EcoOptions):
            check_members(options.members)

    def open_models(self) -> dict[str, Model]:
        # No tensors yet: members are opened one after another, when they encode.
        matcher = Matcher(MATCHER, self.weights_folder())
        self.members, self.ensemble = open_members(self.options.members, matcher)
        known = {member.name: member.model for member in self.members}
        return {"weights": known[MATCHER], **{name: known[name] for name in self.ensemble}}

    @classmethod
    def check_input(
        cls,
        options: CommonOptions,
        captions: Any,
        images: Any,
        references: Any = None,
    ) -> Samples:
        samples = check_pools(
            captions, images, on_error=options.on_error, empty=options.empty, media=cls.media
        )
        return in_rgb(samples) if options.compat == "released" else samples

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        place = (self.options.device, self.options.dtype, self._run())
        yield joined_rows(
            batch, {m.name: pa.concat_tables(m.encoding(*place)(batch)) for m in self.members}, self.ensemble
        )

    def encode_all(
        self, samples: Samples, *, rows: str | PathLike[str] | None = None, progress: bool = False
    ) -> pa.Table:
        """Rows of checked samples. Members run one after another, each over all samples, and then go.

        With `rows` each member keeps its own in a folder of its name, so that a run goes on within a member,
        and another ensemble reuses the members that it shares.
        """
        folder = rows if rows is not None else self.options.rows
        tables = {}
        if folder is not None:
            self.store(folder, self.ROW, {"metric": self.name})  # claims the folder; rows lie below it
        try:
            with self.progress_bar(len(samples) * len(self.members), progress) as bar:
                for member in self.members:
                    store = None if folder is None else self._member_store(folder, member)
                    bar.set_postfix_str(member.name)
                    encode = member.encoding(self.options.device, self.options.dtype, self._run())
                    tables[member.name] = self.fill(samples, encode, store, bar)
                    del encode  # and with it the encoder
                    _free_device_memory()
        except BaseException:
            self.flush()  # of the members that came before, too
            raise
        return joined_rows(samples, tables, self.ensemble)

    def _member_store(self, folder: str | PathLike[str], member: Member) -> RowStore:
        stamp = {"metric": self.name, "member": member.name, "weights": member.model.fingerprint}
        return self.store(Path(folder) / member.name, MEMBER_ROW, {**stamp, **self.options.encoding()})

    def _run(self) -> dict[str, Any]:
        return {"cache": self.cache, "batch_size": self.options.batch_size}

    def aggregate(self, rows: pa.Table) -> Values:
        index = rows["index"].to_numpy()
        candidates = Candidates(
            pool=index - rows["candidate"].to_numpy(),
            captions=rows["caption"].to_pylist(),
            cosines=rows["values"].combine_chunks().flatten().to_numpy().reshape(-1, len(self.ensemble)),
            itm=rows["itm"].to_numpy(),
            failed=rows["error"].is_valid().to_numpy(),
        )
        ranking = rank(candidates, self.ensemble, self.options)
        if ranking.flat and np.isfinite(ranking.scores).any():
            warnings.warn(
                f"{self.name}: {', '.join(ranking.flat)} cannot tell these captions apart, all values are "
                "equal: such z-scores are 0 (within a pool, CIDEr is 0 where the filters leave two captions "
                "or fewer: see `documents`)",
                stacklevel=4,
            )
        if text := doubtful_choices(ranking):
            warnings.warn(InputWarning((f"{self.name}: ", *text)), stacklevel=4)
        return Values(ranking.scores, ranking.parts(), of=ranking.rows)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        images = [sample.image.name for sample, first in zip(samples, _firsts(samples), strict=True) if first]
        return {
            place: {"image": image} | {name: part[place] for name, part in parts.items()}
            for place, image in enumerate(images)
        }


def doubtful_choices(ranking: Ranking) -> tuple[Piece, ...]:
    """How many choices are doubtful, see `Ranking.doubtful`, and the numbers of the first few; () if none."""
    places = np.flatnonzero(ranking.doubtful).tolist()
    if not places:
        return ()
    itm = ranking.candidates.itm
    choices: list[Piece] = []
    for place in places[:NAMED_CHOICES]:
        chosen, best = ranking.rows[place], ranking.best_matches[place]
        start = ranking.pools[place].start
        reason = ranking.dropped[best]
        choices += [
            "; " if choices else "",
            Argument("captions", (place, chosen - start)),
            f" is chosen with a match of {itm[chosen]:.3f}, ",
            Argument("captions", (place, best - start)),
            f" has {itm[best]:.3f} ({f'dropped: {reason}' if reason else 'its total is lower'})",
        ]
    more = len(places) - NAMED_CHOICES
    return (
        f"in {len(places):,} of {len(ranking.pools):,} pools the match of the chosen caption is more than "
        f"{FAR_BELOW} below the best of its pool, so it may well be wrong (see `doubtful`): ",
        *choices,
        f"; and {more:,} more" if more > 0 else "",
    )


def _firsts(samples: Samples) -> list[bool]:
    return [candidate == 0 for candidate in candidates_of(samples)]


def _free_device_memory() -> None:
    """Hand back what the last member held on a GPU: the next one may need it in larger pieces."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
