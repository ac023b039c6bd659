"""ECO as a metric: its options, and the rows of its members joined into one ranking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capeval_core.errors import Problems, did_you_mean, expanded_path, naming, warn
from capeval_core.fetching import listed_entry
from capeval_core.inputs.samples import Samples, images_in_rgb
from capeval_core.metric import CommonOptions, Model, Reranker
from capeval_core.options import option
from capeval_core.phrases.ngrams import Documents
from capeval_core.registry import facts
from capeval_core.result import Values
from capeval_core.rows import COVERAGE, canonical, column, lists, row_schema
from capeval_core.run import Task, encode_tasks
from capeval_core.scores.eco.members import (
    MATCHER,
    MEMBER_ROW,
    NAMES,
    Matcher,
    Member,
    member_names,
    not_opened,
    open_member,
)
from capeval_core.scores.eco.ranking import CONSENSUS_WEIGHT, ENSEMBLE_WEIGHT, THRESHOLD, Ranking
from capeval_core.weights.catalogue import ECO_MEMBERS, WeightsEntry
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

    @property
    def consensus_formula(self) -> Literal["cider", "cider_d", "tfidf"]:
        """The formula of the consensus, also where the option `consensus` leaves it to `compat`."""
        return self.consensus or ("tfidf" if self.compat == "released" else "cider")

    @classmethod
    def without_defaults(cls, fields: Sequence[str]) -> list[str]:
        """As for all options; the usual consensus follows `compat`, and TF-IDF compares no documents."""
        usual_field = "consensus:tfidf" if "compat:released" in fields else "consensus:cider"
        formula = usual_field
        changed_fields = []
        for field in super().without_defaults(fields):
            if field.startswith("consensus:"):
                formula = field
            if field != usual_field:
                changed_fields.append(field)
        if formula == "consensus:tfidf":
            return [field for field in changed_fields if not field.startswith("consensus_documents:")]
        return changed_fields


@facts("eco")
class Eco(Reranker):
    """ECO: picks the best of each image's candidates by ensembled CLIP score and consensus."""

    languages = ("English",)
    Options: ClassVar[type[CommonOptions]] = EcoOptions
    ROW = row_schema(
        COVERAGE,
        column("candidate", pa.int32(), "its position in the pool of its image"),
        column("caption", pa.string(), "its text, for filters and consensus"),
        column("values", pa.list_(pa.float32()), "its cosine with the image, one per member"),
        column("itm", pa.float32(), "BLIP-2's probability that it belongs to the image"),
    )

    options: EcoOptions

    @classmethod
    def check_options(cls, options: Any) -> None:
        super().check_options(options)
        # Names alone: weights of five networks are not opened for a check.
        names = [] if options.members is None else member_names(options.members, tiny=False)
        for name in names:
            if name not in NAMES and "/" not in name and not expanded_path(name).is_dir():
                problem = f"it is neither known ({', '.join(NAMES)}), nor a Hub id (org/name), nor a folder"
                raise WeightsError(not_opened(name, f"{problem}{did_you_mean(name, NAMES)}"))

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, **settings: Any) -> Samples:
        samples = super().check_input(options, *inputs, **settings)
        # The released code converts images before any member's own preprocessing.
        return images_in_rgb(samples) if options.compat == "released" else samples

    @classmethod
    def entries(cls, options: EcoOptions) -> list[WeightsEntry]:
        weights = super().entries(options)
        entries = list(weights)
        for name in member_names(options.members, tiny=not weights):
            entry = ECO_MEMBERS.get(name) or listed_entry(name)
            if entry is not None:
                entries.append(entry)
        return entries

    def open_models(self) -> dict[str, Model]:
        # No tensors yet: members are opened one after another, when they encode.
        problems = Problems()
        self.members: list[Member] = []
        self.ensemble: list[str] = []
        try:
            self.members.append(Matcher(self, MATCHER, self.folder, "blip2"))
            tiny = self.folder.name == "tiny"
        except WeightsError as error:
            problems.extend(error.problems)
            tiny = False
        for name in member_names(self.options.members, tiny=tiny):
            if name == MATCHER:  # it is there already, since it filters in any ensemble
                self.ensemble.append(MATCHER)
                continue
            # All problems together: weights are fetched over hours, and one missing member is found at once.
            try:
                with naming({"weights": "members"}):
                    member = open_member(self, name)
            except WeightsError as error:
                problems.extend(WeightsError(not_opened(name, error)).problems)
            else:
                self.members.append(member)
                self.ensemble.append(member.name)
        if len(problems):
            raise WeightsError(problems)
        self._check_names()
        models_by_name = {member.name: member.model for member in self.members}
        # The matcher twice, if its contrast is a member: the signature names its two parts.
        models = {"weights": models_by_name[MATCHER]}
        for name in self.ensemble:
            models[name] = models_by_name[name]
        return models

    def _check_names(self) -> None:
        """Refuse members of one name, by which rows, values and the signature have them."""
        repeated = set()
        for names in (self.ensemble, [member.name for member in self.members]):
            for name, count in Counter(names).items():
                if count > 1:
                    repeated.add(name)
        if repeated:
            fix = "name each member once (a folder is called by its last part)"
            raise ValueError(f"members: {', '.join(map(repr, sorted(repeated)))} comes twice: {fix}")
        if "weights" in self.ensemble:  # as the signature calls the matcher that filters
            raise ValueError("members: a folder called 'weights' cannot be told from the option: rename it")

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        # In one piece: members are opened once for all of it, not for each window.
        yield self.encode_all(batch)

    def encode_all(
        self, samples: Samples, *, progress: bool = False, on_rows: Callable[[int], None] | None = None
    ) -> pa.Table:
        """Rows of checked samples. Members run one after another, and each keeps its own below `rows`, so
        that a run resumes within a member, and another ensemble reuses the members that it shares."""
        folder = self.options.rows
        self.stores.open(folder, self.ROW, {"metric": self.name})  # claims the folder; rows are below it
        tasks = {}
        for member in self.members:
            member_folder = None if folder is None else Path(folder) / member.name
            tasks[member] = Task(member, [samples], [member_folder])  # refuses rows of other settings
        # One after another, each closed before the next: five networks do not fit into one GPU.
        tables = {}
        for member, task in tasks.items():
            try:
                encode_tasks([task], progress=progress, on_rows=on_rows)
            finally:
                member.close()
            (tables[member.name],) = task.rows
        return _joined_rows(samples, tables, self.ensemble)

    def aggregate(self, rows: pa.Table) -> Values:
        values = rows["values"].combine_chunks().flatten().to_numpy().reshape(-1, len(self.ensemble))
        # index - candidate is the row at which a pool begins, which names the pool.
        ranking = Ranking(
            rows["index"].to_numpy() - rows["candidate"].to_numpy(),
            rows["caption"].to_pylist(),
            dict(zip(self.ensemble, values.T, strict=True)),
            rows["itm"].to_numpy(),
            rows["error"].is_valid().to_numpy(),
            self.options,
        )
        for message in ranking.warnings():
            warn(f"{self.name}: {message}")
        return Values(ranking.of_choices(ranking.total), ranking.parts(), rows=ranking.rows)


def _joined_rows(pools: Samples, tables: Mapping[str, pa.Table], ensemble: Sequence[str]) -> pa.Table:
    """One row per candidate, from the rows of its members in any order; `ensemble` orders their values."""
    indices = np.asarray(pools.indices, dtype=np.int64)
    aligned = {}
    errors = []
    truncated = []
    coverage = []
    for name, table in tables.items():
        rows = canonical(table)  # sorted by index: a resumed run has its rows in the order of its parts
        aligned[name] = rows.take(pa.array(np.searchsorted(rows["index"].to_numpy(), indices)))
        errors.append(aligned[name]["error"])
        truncated.append(aligned[name]["truncated"].to_numpy())
        coverage.append(aligned[name]["coverage"].to_numpy())
    values = np.stack([aligned[name]["value"].to_numpy() for name in ensemble], axis=1)  # (rows, members)
    columns = {name: aligned[MATCHER][name] for name in MEMBER_ROW.names}
    # What one member cannot read is not compared fairly: the worst of all members counts.
    columns |= {
        "error": pc.coalesce(*errors),
        "truncated": np.max(truncated, axis=0),
        "coverage": np.min(coverage, axis=0),
        "candidate": pools.candidates,
        "caption": pools.captions,
        "values": lists(values.astype(np.float32).ravel(), np.full(len(indices), len(ensemble))),
    }
    return pa.table({name: columns[name] for name in Eco.ROW.names}, schema=Eco.ROW)
