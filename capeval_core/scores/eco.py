"""ECO: of the captions proposed for an image the best, by an ensemble of CLIPs and their consensus.

Jeong, Lee, Nam, Ma, Kang: Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation
Using Ensembled CLIP and Consensus Scores, CVPR 2024 Workshops, https://arxiv.org/abs/2405.01028

The paper's section "Consensus score" describes the filters of format and of image-text matching (ITM); its
released code has other limits and another order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.errors import Problems, at, did_you_mean, expanded_path, naming, warn, wrong_option
from capeval_core.fetching import listed_entry, open_listed
from capeval_core.inputs.samples import Samples, images_in_rgb
from capeval_core.matching.cosine import best_query_cosine, paired_cosine
from capeval_core.metric import CommonOptions, Model, Reranker
from capeval_core.options import option
from capeval_core.phrases.ngrams import Documents, consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.registry import facts, network, network_of
from capeval_core.result import Values, plain
from capeval_core.rows import COVERAGE, Texts, canonical, column, lists, nullable, row_schema
from capeval_core.run import Task, encode_tasks
from capeval_core.weights.catalogue import ECO_MEMBERS, EVA_CLIP, WeightsEntry
from capeval_core.weights.folder import WeightsError, WeightsFolder

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

ENSEMBLE_WEIGHT, CONSENSUS_WEIGHT = 3.52, 1.0
"""Table 1, row (d). One sentence of the paper has them the other way round, against its table."""
THRESHOLD = 0.39
"""Gap below which the shorter of the top two is chosen (the paper's ablation of short caption selection)."""


def standardise(values: Doubles) -> Doubles:
    """z-scores over the first axis, with the population's deviation; 0 where all are equal, NaN of NaN."""
    finite = np.isfinite(values)
    count = np.maximum(finite.sum(axis=0), 1)
    mean = np.where(finite, values, 0).sum(axis=0) / count
    spread = np.where(finite, values - mean, 0)
    deviation = np.sqrt((spread**2).sum(axis=0) / count)
    flat = _is_flat(values)  # a mean of equal numbers can be rounded, which is no deviation
    scaled: Doubles = np.where(finite, np.where(flat, 0, spread) / np.where(flat, 1, deviation), np.nan)
    return scaled


def _is_flat(values: Doubles) -> Flags:
    """Whether all finite values along the first axis are equal, or there are none."""
    low = np.where(np.isfinite(values), values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(np.isfinite(values), values, -np.inf).max(axis=0, initial=-np.inf)
    return np.asarray(low >= high)


def total(
    ensembled: Doubles,
    consensus: Doubles,
    ensemble_weight: float = ENSEMBLE_WEIGHT,
    consensus_weight: float = CONSENSUS_WEIGHT,
) -> Doubles:
    """Section "Score combination": weighted sum of the ensemble's and the consensus's z-scores."""
    return ensemble_weight * ensembled + consensus_weight * consensus


def choose(captions: Sequence[str], totals: Sequence[float], threshold: float = THRESHOLD) -> int:
    """Position of the chosen caption: the best, or the runner-up where it is close and has fewer words.

    The runner-up is the best one with another text: copies of the best are no alternative to it.
    """
    order = sorted(range(len(captions)), key=lambda position: -totals[position])
    best = order[0]
    second = next((position for position in order if captions[position] != captions[best]), best)
    close = totals[best] - totals[second] < threshold
    return second if close and len(captions[second].split()) < len(captions[best].split()) else best


FAR_BELOW = 0.5
"""A choice is doubtful if its ITM is that much below the best of its pool. ITM is the probability of
one of two answers, so with such a distance BLIP-2 answers no for the choice and yes for the other caption."""


class Rules(NamedTuple):
    """The filters: the fewest words, parted by white space, the most commas and periods; whether the better
    half of an odd pool is rounded up or down; and the order: the second one filters what the first leaves."""

    words: int
    commas: int
    periods: int
    half: Literal["up", "down"]
    order: tuple[str, str]


PAPER = Rules(words=5, commas=3, periods=2, half="up", order=("format", "itm"))
RELEASED = Rules(words=6, commas=2, periods=1, half="down", order=("itm", "format"))


def bad_format(caption: str, rules: Rules) -> str | None:
    """Why the format filter drops a caption, None if it does not."""
    words, commas, periods = len(caption.split()), caption.count(","), caption.count(".")
    if words < rules.words:
        return f"{words} words, expected {rules.words} or more"
    if commas > rules.commas:
        return f"{commas} commas, expected {rules.commas} or fewer"
    if periods > rules.periods:
        return f"{periods} periods, expected {rules.periods} or fewer"
    return None


def _best_first(values: Any) -> list[int]:
    """Positions of values, the largest first; of equal ones the earlier."""
    return [int(i) for i in np.argsort(-np.asarray(values, dtype=np.float64), kind="stable")]


def _filter_pool(
    captions: Sequence[str], itm: Sequence[float], rules: Rules = PAPER
) -> tuple[list[str | None], str]:
    """Per candidate why it is dropped, None if it is not; and a filter that would leave no candidate of the
    pool, which is not applied, '' if both were."""
    dropped: list[str | None] = [None] * len(captions)
    gave_way = ""
    for rule in rules.order:
        left = [i for i, reason in enumerate(dropped) if reason is None]
        if rule == "format":
            reasons = {i: reason for i in left if (reason := bad_format(captions[i], rules))}
        else:
            order = [left[position] for position in _best_first([itm[i] for i in left])]
            kept = (len(left) + (rules.half == "up")) // 2
            reasons = {
                i: f"ITM {itm[i]:.3f}, rank {rank} of {len(left)}: not in the better half"
                for rank, i in enumerate(order[kept:], kept + 1)
            }
        if left and len(reasons) == len(left):
            gave_way = rule
            continue
        for i, reason in reasons.items():
            dropped[i] = reason
    return dropped, gave_way


class Ranking:
    """The scores of n candidates of a set, pool after pool, and the choice of each pool.

    chosen: per image the position of the choice in its pool, -1 if there is none. rows: (images,) the chosen
    rows; the first of a pool that has no choice. ensemble: (n,), eq. 3. consensus, agreement: (n,) consensus
    and its z-score, NaN where a candidate was dropped, and total likewise. dropped: why, None for survivors.
    gave_way: per image the filter that was not applied, or ''.
    """

    def __init__(
        self,
        pool: Integers,
        captions: list[str],
        cosines: Mapping[str, Any],
        itm: Any,
        failed: Flags,
        options: EcoOptions,
    ) -> None:
        self.captions, self.options, self.members = captions, options, list(cosines)
        starts = np.flatnonzero(np.diff(pool, prepend=-1)).tolist()
        self.pools = [range(a, b) for a, b in pairwise([*starts, len(captions)])]
        self._texts = [*zip(pool.tolist(), captions, strict=True)]
        self.itm = np.asarray(itm, dtype=np.float64)
        values = np.stack([np.asarray(own, dtype=np.float64) for own in cosines.values()], axis=1)
        values = np.where(failed[:, None], np.nan, values)
        self._filter(values, failed)
        self.zscores = self._standardised(values)
        together = self.zscores.sum(axis=1)
        # Each member was standardised over all captions of all images; negative cosines stay as they are.
        self.ensemble = self._standardised(together)
        self.consensus = self._consensus()
        self.agreement = self._standardised(self.consensus)
        self.total = total(self.ensemble, self.agreement, options.ensemble_weight, options.consensus_weight)
        self.chosen = [self._choice(rows) for rows in self.pools]
        rows = [rows[max(position, 0)] for rows, position in zip(self.pools, self.chosen, strict=True)]
        self.rows: Integers = np.array(rows, dtype=np.int64)
        matches = np.nan_to_num(self.itm, nan=-1.0)
        self._best = [rows[int(matches[rows].argmax())] for rows in self.pools]
        self.doubtful = np.asarray(self.itm[self._best] - self.of_chosen(self.itm) > FAR_BELOW)
        flat = [name for name, equal in zip(self.members, _is_flat(values), strict=True) if equal]
        flat += ["the ensemble"] if not flat and _is_flat(together) else []
        self._flat = flat + ["consensus"] * bool(_is_flat(self.consensus))

    def _filter(self, values: Doubles, failed: Flags) -> None:
        """Why candidates are dropped, and of each pool the filter that was not applied."""
        rules = RELEASED if self.options.compat == "released" else PAPER
        scored = np.isfinite(values).all(axis=1) & np.isfinite(self.itm)
        reasons = np.where(failed, "its image could not be read", "a member has no finite value for it")
        self.dropped: list[str | None] = np.where(scored, np.array(None), reasons).tolist()
        self.gave_way: list[str] = []
        for pool in self.pools:
            rows = self._left(pool)
            found, gave_way = _filter_pool([self.captions[i] for i in rows], self.itm[rows].tolist(), rules)
            self.gave_way.append(gave_way)
            for row, reason in zip(rows, found, strict=True):
                self.dropped[row] = reason

    def _standardised(self, values: Doubles) -> Doubles:
        """z-scores of values (n,) or (n, members). The released code keeps values by text, after filters and
        consensus: of copies in a pool only the last one's value is left."""
        counted = np.arange(len(values))  # the row whose value counts for each row
        if self.options.compat == "released":
            valued = np.flatnonzero(np.isfinite(values.reshape(len(values), -1)).all(axis=1)).tolist()
            last = {self._texts[row]: row for row in valued}
            counted[valued] = [last[self._texts[row]] for row in valued]
        once = values.copy()
        once[counted != np.arange(len(values))] = np.nan
        return standardise(once)[counted]

    def _left(self, pool: range) -> list[int]:
        return [row for row in pool if self.dropped[row] is None]

    def _consensus(self) -> Doubles:
        """(n,) consensus of each survivor with the other survivors of its pool; NaN of those dropped."""
        kept = [rows for pool in self.pools if (rows := self._left(pool))]
        texts = [[self.captions[row] for row in rows] for rows in kept]
        formula = self.options.consensus_formula
        if formula == "tfidf":
            scores = tfidf_consensus(texts)
        else:
            tokens = [[ptb_tokens(text) for text in pool] for pool in texts]
            scores = consensus(tokens, documents=self.options.consensus_documents, kind=formula)
        values = np.full(len(self.captions), np.nan)
        for rows, own in zip(kept, scores, strict=True):
            values[rows] = own
        return values

    def _choice(self, pool: range) -> int:
        kept = self._left(pool)
        if not kept:
            return -1
        texts, totals = [self.captions[row] for row in kept], self.total[kept].tolist()
        return kept[choose(texts, totals, self.options.threshold)] - pool.start

    def of_chosen(self, values: Doubles) -> Doubles:
        """(images,) values of the chosen; NaN where there is no choice."""
        return np.where(np.asarray(self.chosen, dtype=np.int64) >= 0, values[self.rows], np.nan)

    def parts(self) -> dict[str, Any]:
        """Per image the choice and its scores; under `candidates` the scores of every candidate."""
        rows = zip(self.rows.tolist(), self.chosen, strict=True)
        return {
            "choice": self.chosen,
            "caption": [self.captions[row] if position >= 0 else "" for row, position in rows],
            "ensemble": self.of_chosen(self.ensemble),
            "consensus": self.of_chosen(self.agreement),
            "itm": self.of_chosen(self.itm),
            "gave_way": self.gave_way,
            "doubtful": self.doubtful.tolist(),
            "candidates": [self._table(pool) for pool in self.pools],
        }

    def _table(self, pool: range) -> list[dict[str, Any]]:
        left = self._left(pool)
        ranks = {left[i]: rank for rank, i in enumerate(_best_first(self.total[left]), 1)}
        columns = {"ensemble": self.ensemble, "cider": self.consensus, "consensus": self.agreement}
        columns |= {"itm": self.itm, "total": self.total}
        return [
            {
                "caption": self.captions[row],
                "members": dict(zip(self.members, map(plain, self.zscores[row]), strict=True)),
                **{name: plain(column[row]) for name, column in columns.items()},
                "rank": ranks.get(row),
                "dropped": self.dropped[row],
            }
            for row in pool
        ]

    def warnings(self) -> Iterator[str]:
        """What the user should know: values that are all equal, and choices that may well be wrong."""
        if self._flat and np.isfinite(self.of_chosen(self.total)).any():
            yield (
                f"{', '.join(self._flat)} cannot tell these captions apart, all values are equal: such "
                "z-scores are 0 (within a pool, CIDEr is 0 where the filters leave two captions or fewer: "
                "see `consensus_documents`)"
            )
        images, examples = np.flatnonzero(self.doubtful).tolist(), []
        for image in images[:3]:
            chosen, best, start = self.rows[image], self._best[image], self.pools[image].start
            reason = self.dropped[best]
            examples.append(
                f"{at('captions', (image, chosen - start))} is chosen with an ITM of {self.itm[chosen]:.3f}, "
                f"{at('captions', (image, best - start))} has {self.itm[best]:.3f} "
                f"({f'dropped: {reason}' if reason else 'its total is lower'})"
            )
        examples += [f"and {len(images) - 3:,} more"] * (len(images) > 3)
        if images:
            yield (
                f"in {len(images):,} of {len(self.pools):,} pools the ITM of the chosen caption is more than "
                f"{FAR_BELOW} below the best of its pool, so it may well be wrong (see `doubtful`): "
                f"{'; '.join(examples)}"
            )


# the members of the ensemble

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
    COVERAGE,
    column("value", pa.float32(), "cosine of candidate and image"),
    column("itm", pa.float32(), "probability that they match, null for a dual encoder"),
)


class Member:
    """A dual encoder: the cosine of image and candidate, behind the prompt that its weights name; its name is
    that of its folder of rows, too. Its rows are encoded as those of a metric."""

    ROW, media = MEMBER_ROW, ("image",)

    def __init__(self, eco: Eco, name: str, folder: WeightsFolder, kind: str) -> None:
        self.options, self.stores, self.run = eco.options, eco.stores, eco.run
        self.name, self.folder, self._metric, self._network = name, folder, eco.name, network(kind)
        fingerprint = self._network.fingerprint_of(folder)
        self.model = Model(folder.label(fingerprint), fingerprint)

    def stamp(self) -> dict[str, Any]:
        """Everything that its rows depend on beside their content."""
        own = {"metric": self._metric, "member": self.name, "weights": self.model.fingerprint}
        return own | self.options.encoding()

    @cached_property
    def encoder(self) -> Any:
        """Its encoder, in memory until `close`."""
        import torch

        try:
            with torch.device("cpu"):  # whatever a program that builds a model of its own has set
                return self._network.open(self.folder, device=self.options.device, dtype=self.options.dtype)
        except (WeightsError, MemoryError) as error:
            kind = MemoryError if isinstance(error, MemoryError) else WeightsError
            raise kind(_not_opened(self.name, error)) from error

    def close(self) -> None:
        """Give the memory of the encoder back."""
        import torch

        vars(self).pop("encoder", None)
        torch.cuda.empty_cache()  # the next one may need it in larger pieces

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        """Tables of schema `MEMBER_ROW` that cover the batch in order."""
        prompt, tokenizer = self.folder.config.get("constants", {}).get("prompt", ""), self.encoder.tokenizer
        texts, starts, pool = Texts(batch), [*batch.starts, len(batch)], 0
        encoded = self.encoder.encode_texts([f"{prompt}{caption}" for caption in batch.captions], **self.run)
        # One image per pool, whose features all its candidates share.
        for images in self.encoder.encode_images([batch.images[start] for start in starts[:-1]], **self.run):
            n = len(images.keys)
            part, sizes = slice(starts[pool], starts[pool + n]), np.diff(starts[pool : pool + n + 1])
            own = (np.array(values, dtype=object) for values in (images.keys, images.errors))
            keys, errors = (np.repeat(values, sizes).tolist() for values in own)
            columns = texts.columns(part, keys, errors, encoded.truncated, tokenizer=tokenizer, prompt=prompt)
            value = paired_cosine(np.repeat(images.features, sizes, axis=0), encoded.features[part])
            columns |= {"value": nullable(value), "itm": nullable(np.full_like(value, np.nan))}
            yield pa.table(columns, schema=self.ROW)
            pool += n


class Matcher(Member):
    """BLIP-2: its contrast (ITC, the best query token's cosine) and its matching (ITM), in one pass."""

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        pools = [batch[slice(*ends)] for ends in pairwise([*batch.starts, len(batch)])]
        images, captions = [pool.images[0] for pool in pools], [pool.captions for pool in pools]
        for pool, match in zip(pools, self.encoder.match(images, captions, **self.run), strict=True):
            keys, errors = [match.key] * len(pool), [match.error] * len(pool)
            every, tokenizer = slice(0, len(pool)), self.encoder.tokenizer
            columns = Texts(pool).columns(every, keys, errors, match.truncated, tokenizer=tokenizer)
            value = best_query_cosine(match.queries, match.text_features)
            columns |= {"value": nullable(value), "itm": nullable(match.itm)}
            yield pa.table(columns, schema=self.ROW)


def _member_names(members: str | Sequence[str] | None, *, tiny: bool) -> list[str]:
    """The members that an option names: a preset, names parted by commas, or a list of them."""
    if members is None:
        members = "tiny" if tiny else "paper"
    if isinstance(members, str):
        members = PRESETS.get(members) or members.split(",")
    names = [str(name).strip() for name in members]
    if not names or not all(names):
        fix = f"expected one or more of {', '.join([*PRESETS, *_KNOWN])}, Hub ids or folders"
        raise wrong_option("members", members, "it names none", fix)
    return names


def _member(eco: Eco, name: str) -> Member:
    from capeval_core.encoders.clip import ClipTowers

    tiny, metric = "", "eco"
    weights: Any = name
    if not expanded_path(name).is_dir():
        if name in _TINY:
            weights, tiny = "tiny", _TINY[name]
        elif name in ECO_MEMBERS:
            weights = ECO_MEMBERS[name]
            metric = EVA_CLIP if weights.checkpoint else "eco"
    folder = open_listed(weights, metric=metric, tiny=tiny)
    if weights == name:  # a folder or a Hub id: its name has to fit into signatures and paths
        name = re.sub(r"[^\w.-]+", "-", folder.name.rpartition("/")[2]).lower()
    encoder = network_of(folder)
    if encoder.kind != "blip2" and not issubclass(encoder, ClipTowers):
        found = f"weights {folder.name!r} are of encoder {encoder.kind!r}, expected a CLIP or BLIP-2"
        raise WeightsError(found)
    return (Matcher if encoder.kind == "blip2" else Member)(eco, name, folder, encoder.kind)


def _not_opened(name: str, error: Exception | str) -> str:
    return f"members: {name!r} could not be opened: {error}\nTo do without it, name the others in `members`."


# the metric


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
        usual = "consensus:tfidf" if "compat:released" in fields else "consensus:cider"
        stated = [field for field in super().without_defaults(fields) if field != usual]
        formula = next((field for field in stated if field.startswith("consensus:")), usual)
        if formula == "consensus:tfidf":
            stated = [field for field in stated if not field.startswith("consensus_documents:")]
        return stated


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
        for name in [] if options.members is None else _member_names(options.members, tiny=False):
            if name not in _KNOWN and "/" not in name and not expanded_path(name).is_dir():
                found = f"it is neither known ({', '.join(_KNOWN)}), nor a Hub id (org/name), nor a folder"
                raise WeightsError(_not_opened(name, f"{found}{did_you_mean(name, _KNOWN)}"))

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, **settings: Any) -> Samples:
        samples = super().check_input(options, *inputs, **settings)
        return images_in_rgb(samples) if options.compat == "released" else samples

    @classmethod
    def entries(cls, options: Any) -> list[WeightsEntry]:
        weights = super().entries(options)
        members = _member_names(options.members, tiny=not weights)
        listed = [ECO_MEMBERS.get(name) or listed_entry(name) for name in members]
        return [*weights, *filter(None, listed)]

    def open_models(self) -> dict[str, Model]:
        # No tensors yet: members are opened one after another, when they encode.
        problems, tiny = Problems(), False
        self.members: list[Member] = []
        self.ensemble: list[str] = []
        try:
            self.members.append(Matcher(self, MATCHER, self.folder, "blip2"))
            tiny = self.folder.name == "tiny"
        except WeightsError as error:
            problems.extend(error.problems)
        for name in _member_names(self.options.members, tiny=tiny):
            try:
                if name != MATCHER:
                    with naming({"weights": "members"}):
                        self.members.append(_member(self, name))
                self.ensemble.append(MATCHER if name == MATCHER else self.members[-1].name)
            except WeightsError as error:
                problems.extend(WeightsError(_not_opened(name, error)).problems)
        if len(problems):
            raise WeightsError(problems)
        every = Counter(self.ensemble), Counter(member.name for member in self.members)
        if twice := sorted({name for counts in every for name in counts if counts[name] > 1}):
            fix = "name each member once (a folder is called by its last part)"
            raise ValueError(f"members: {', '.join(map(repr, twice))} comes twice: {fix}")
        if "weights" in self.ensemble:  # as the signature calls the matcher that filters
            raise ValueError("members: a folder called 'weights' cannot be told from the option: rename it")
        models = {member.name: member.model for member in self.members}
        return {"weights": models[MATCHER], **{name: models[name] for name in self.ensemble}}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        yield self.encode_all(batch)

    def encode_all(
        self, samples: Samples, *, progress: bool = False, on_rows: Callable[[int], None] | None = None
    ) -> pa.Table:
        """Rows of checked samples. Members run one after another, and each keeps its own below `rows`, so
        that a run goes on within a member, and another ensemble reuses the members that it shares."""
        folder = self.options.rows
        self.stores.open(folder, self.ROW, {"metric": self.name})  # claims the folder; rows lie below it
        tasks, tables = {}, {}
        for member in self.members:
            below = None if folder is None else Path(folder) / member.name
            tasks[member] = Task(member, [samples], [below])
        for member, task in tasks.items():
            try:
                encode_tasks([task], progress=progress, on_rows=on_rows)
            finally:
                member.close()
            (tables[member.name],) = task.rows
        return _joined_rows(samples, tables, self.ensemble)

    def aggregate(self, rows: pa.Table) -> Values:
        values = rows["values"].combine_chunks().flatten().to_numpy().reshape(-1, len(self.ensemble))
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
        return Values(ranking.of_chosen(ranking.total), ranking.parts(), rows=ranking.rows)


def _joined_rows(pools: Samples, tables: Mapping[str, pa.Table], ensemble: Sequence[str]) -> pa.Table:
    """One row per candidate, from the rows of its members in any order; `ensemble` orders their values."""
    indices = np.asarray(pools.indices, dtype=np.int64)
    aligned = {}
    for name, table in tables.items():
        rows = canonical(table)
        aligned[name] = rows.take(pa.array(np.searchsorted(rows["index"].to_numpy(), indices)))
    values = np.stack([aligned[name]["value"].to_numpy() for name in ensemble], axis=1)
    truncated = [table["truncated"].to_numpy() for table in aligned.values()]
    columns = {
        **{name: aligned[MATCHER][name] for name in MEMBER_ROW.names if name != "value"},
        "error": pc.coalesce(*(table["error"] for table in aligned.values())),
        "truncated": np.max(truncated, axis=0),
        "coverage": np.min([table["coverage"].to_numpy() for table in aligned.values()], axis=0),
        "candidate": pools.candidates,
        "caption": pools.captions,
        "values": lists(values.astype(np.float32).ravel(), np.full(len(indices), len(ensemble))),
    }
    return pa.table({name: columns[name] for name in Eco.ROW.names}, schema=Eco.ROW)
