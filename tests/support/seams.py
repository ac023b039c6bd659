"""The only file of the tests that imports internals of the package: what moves is mended here.

Everything else in `tests/` uses the public modules and `tests.support`. At most 60 names.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from capeval_core import fetch, registry
from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import qformer_states
from capeval_core.encoders.blocks import usable_kernels as tried_kernels
from capeval_core.encoders.packed import Packing, groups_of
from capeval_core.encoders.packed import attend as packed_attention
from capeval_core.errors import Problems
from capeval_core.inputs import collection, columns, texts
from capeval_core.inputs.boxes import BoxFeatureStore, box_source, boxes_of
from capeval_core.inputs.decoders import frames_within_limits
from capeval_core.inputs.images import InputImage, Source, Visual, image_source, resized, within
from capeval_core.inputs.samples import Samples, check_samples
from capeval_core.inputs.videos import Sampling, video_source
from capeval_core.integrations.shards.plan import plan_shards
from capeval_core.integrations.shards.run import score_shards as score_planned_shards
from capeval_core.judgements.correlation import Resamples, WeightedRows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine
from capeval_core.matching.greedy import greedy_match
from capeval_core.models import model as models
from capeval_core.models.device import _stream as copy_stream
from capeval_core.models.device import cuda_is_lost, triton_problem
from capeval_core.models.rounding import OF_FORMULAS, rounding_of
from capeval_core.phrases.factual import phrases_of, soft_spice_phrases, without_mark
from capeval_core.phrases.ngrams import consensus as ngram_consensus
from capeval_core.phrases.ngrams import tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.phrases.source import phrase_opener
from capeval_core.phrases.spans import wrong_words
from capeval_core.regions import boxes as region_boxes
from capeval_core.regions.by_name import region_opener
from capeval_core.regions.regions import Regions, RegionSource
from capeval_core.regions.suppression import Suppression, class_confidences
from capeval_core.replay import variants
from capeval_core.reports.figures import draw_histogram
from capeval_core.scores.box_metrics import FirstBoxes
from capeval_core.scores.eco import EcoOptions, Ranking
from capeval_core.store import TableStore
from capeval_core.training import negatives, tags
from capeval_core.training.augmentation import Positive, table_of
from capeval_core.training.pacs import info_nce
from capeval_core.training.umic import ranking_loss
from capeval_core.weights import catalogue
from capeval_core.weights import conversion as conversions
from capeval_core.weights.folder import config_checksum

if not triton_problem():
    from capeval_core.encoders import cuda_kernels

__all__ = [
    "LIMITS",
    "OF_FORMULAS",
    "attend",
    "best_boxes",
    "blip2_states",
    "box_store",
    "check",
    "confidences",
    "config_checksum",
    "consensus",
    "contrastive_loss",
    "convert",
    "copy_stream",
    "cuda_is_lost",
    "draw_histogram",
    "eco_ranking",
    "encode",
    "first_boxes",
    "frames_within_limits",
    "graph_phrases",
    "greedy_match",
    "grouped_cosine",
    "harmonic_mean",
    "image",
    "kernel",
    "layout_problems",
    "letterbox",
    "mask_regions",
    "needs_triton",
    "negative_caption",
    "negative_groups",
    "network",
    "networks_held",
    "object_boxes",
    "open_phrases",
    "open_regions",
    "paired_cosine",
    "ptb_tokens",
    "ranking_loss",
    "read_collection",
    "read_texts",
    "read_video",
    "resampled_correlations",
    "resamples",
    "resized",
    "rounding_of",
    "score_shards",
    "shapes",
    "short_synonyms",
    "similar",
    "small_release",
    "soft_spice_phrases",
    "tagger",
    "usable_kernels",
    "variants",
    "visual",
    "with_kernels",
    "without_mark",
    "write_positives",
    "wrong_words",
]

# networks


def network(
    kind: str,
    weights: Mapping[str, Any] | str | PathLike[str],
    tensors: Mapping[str, Tensor] | None = None,
    *,
    device: str | None = "cpu",
    dtype: str = "float32",
) -> Any:
    """A network: of a config and its tensors, or of `tiny`, a weights folder or a repository."""
    class_: Any = registry.network(kind)
    if isinstance(weights, Mapping):
        return class_(weights, tensors, device=device, dtype=dtype)
    return class_.from_pretrained(weights, device=device, dtype=dtype)


class _LastOpened(WeakValueDictionary[Any, Any]):
    """Opened networks, of which the last ones are held."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._held: deque[Any] = deque(maxlen=most)

    def __setitem__(self, key: Any, network: Any) -> None:
        super().__setitem__(key, network)
        self._held.append(network)


@contextmanager
def networks_held(most: int) -> Iterator[None]:
    """Let so many networks stay open for the next test, which would open them again; 0: as for users."""
    with mock.patch.object(models, "_OPENED", _LastOpened(most)):
        yield


def convert(kind: str, path: str | PathLike[str], **settings: Any) -> Any:
    """An original checkpoint as `config`, `tensors` and `notes`."""
    return registry.network(kind).convert(path, **settings)


@contextmanager
def small_release(folder: str, settings: Mapping[str, Any] = {}, **facts: Any) -> Iterator[Sequence[str]]:
    """Let a listed release, or a model beside weights, be a small one: of any architecture, its files of no
    known digest, with settings that its conversion needs; `facts` are of the first file. Gives the first
    addresses of its files."""
    entry = next(entry for entry in (*catalogue.WEIGHTS, *catalogue.PARTS) if entry.folder == folder)
    names = ("architecture", "files", "settings", "sha256")
    before = {name: getattr(entry, name) for name in names}
    files = [replace(file, sha256=None, size=None) for file in entry.files]
    if files:
        files[0] = replace(files[0], **facts)
    small: dict[str, Any] = {"architecture": None, "files": tuple(files), "sha256": None}
    small["settings"] = {**entry.settings, **settings}
    try:
        for name, value in small.items():
            object.__setattr__(entry, name, value)  # the classes of metrics hold this very entry
        yield [file.addresses[0] for file in entry.files]
    finally:
        for name, value in before.items():
            object.__setattr__(entry, name, value)


@contextmanager
def short_synonyms() -> Iterator[None]:
    """Let CHAIR's list of synonyms be the packaged short one, fetched into the cache in use."""
    entry = catalogue.SYNONYMS
    released = entry.files
    short = Path(catalogue.__file__).parent / "tiny" / "chair" / released[0].name
    digest = hashlib.sha256(short.read_bytes()).hexdigest()
    try:
        object.__setattr__(entry, "files", (replace(released[0], sha256=digest, size=None),))
        fetch("chair", sources={short.name: short})
        yield
    finally:
        object.__setattr__(entry, "files", released)


def shapes(kind: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Name and shape of every tensor of a network, without memory."""
    return dict(registry.network(kind).empty(config).state_dict())


def encode(
    network: Any,
    visuals: Iterable[Any],
    texts: Iterable[Sequence[str]] | None = None,
    *,
    regions: Any = None,
    medium: str = "images",
    sampling: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """What a network gives for each visual, by name, with `key` and `error`.

    visuals: as users hand them in; box features for UNITER and ViLBERT. texts: per visual. regions: per image
    masks, or the boxes to segment; or a source. options: `cache` (none), `batch_size`, ...
    """
    options.setdefault("cache", FeatureCache(0))
    images = (visual("image", value, f"{medium}[{i}]") for i, value in enumerate(visuals))
    if network.kind == "sam":
        for image, corners in zip(images, regions, strict=True):
            found = network.segment(image.load(), corners)
            yield {"masks": found.masks(), "quality": found.quality, "error": None}
    elif network.kind in ("uniter", "vilbert"):
        boxes = (visual("boxes", value, f"{medium}[{i}]") for i, value in enumerate(visuals))
        run = network.rank if network.kind == "uniter" else network.token_features
        yield from map(_named, run(boxes, texts, **options))
    elif texts is not None:
        yield from map(_named, network.match(images, texts, **options))
    elif regions is not None:
        given = (own if isinstance(own, Regions) else Regions.of(own, size=own.shape[1:]) for own in regions)
        yield from map(_named, network.encode_regions(images, given, **options))
    elif medium == "videos":
        videos = (visual("video", value, f"{medium}[{i}]") for i, value in enumerate(visuals))
        settings = {} if sampling is None else {"sampling": Sampling(**sampling)}
        for part in network.encode_videos(videos, **settings, **options):
            yield from _rows(part)
    elif hasattr(network, "encode_boxes"):
        for found in network.encode_boxes(images, **options):
            whole = found.error is None
            loaded = _named(found.load()) if whole else {}
            yield {**loaded, "key": found.key if whole else "", "error": found.error}
    else:
        for part in network.encode_images(images, **options):
            yield from _rows(part)


def mask_regions(masks: Any) -> Any:
    """Masks (n, h, w) as regions that hold run lengths."""
    return Regions.of(masks)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    own: Sequence[int],
    other: Sequence[int],
    *,
    causal: bool = False,
    firsts: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention within packed sequences of sorted lengths; with `firsts`, of the first row of each alone."""
    groups = groups_of(own)
    mine, theirs = (Packing.of(n, query.device, groups) for n in (own, other))
    queries = mine.firsts if firsts else mine
    return packed_attention(query, keys, values, heads, queries, theirs, causal=causal, dropout=dropout)


needs_triton = pytest.mark.skipif(bool(triton_problem()), reason="triton is not installed")


def with_kernels(network: Any, name: str) -> Any:
    """A network of CLIP's blocks by the steps of CUDA: `triton`, or PyTorch's where no kernel can be used."""
    other = copy(network)
    other.triton = name == "triton"
    return other


def usable_kernels(dtype: torch.dtype, broken: str | None = None) -> str:
    """What a trial of all kernels leaves on the CPU; one of them may be `broken`."""
    with pytest.MonkeyPatch.context() as patch:
        if broken:
            right = kernel(broken)
            patch.setattr(cuda_kernels, broken, lambda *given: right(*given) * 1.1)
        found = tried_kernels.__wrapped__(torch.device("cpu"), dtype)
    return "triton" if found else "pytorch"


def kernel(name: str) -> Any:
    """A Triton kernel of CLIP's blocks."""
    return getattr(cuda_kernels, name)


def _named(found: Any) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in fields(found)}


def _rows(part: Any) -> Iterator[dict[str, Any]]:
    """The rows of a part: `keys` of all is the `key` of each."""
    columns = _named(part)
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield {"key": row.pop("keys"), "error": row.pop("errors"), **row}


# inputs


def check(
    captions: Any, images: Any, references: Any = None, *, pools: bool = False, **options: Any
) -> Samples:
    """What `score` (or, of pools, `rerank`) makes of its arguments before it opens weights."""
    options = {"needs_references": references is not None, "pools": pools, **options}
    return check_samples(captions, images, references, **options)


def read_texts(path: str | PathLike[str], references: bool = False, **options: str) -> list[tuple[str, str]]:
    """The ids and texts of a file of candidates, or of references."""
    problems = Problems()
    role = "references" if references else "caption"
    file = texts.read_texts(path, role, problems, columns.FileOptions(**options))
    problems.raise_if_any()
    ids = file.ids(file.id_columns[0])
    return [(ids[owner], text) for owner, text in zip(file.owners, file.texts, strict=True)]


def read_collection(
    candidates: Path, images: Path | None, references: Path | Sequence[Path] | None = None, **options: Any
) -> Any:
    """Files joined by image id, with `ids`, `captions`, `images`, `references` and `entries`."""
    more = {name: options.pop(name) for name in ("wide", "medium", "needs_references") if name in options}
    chosen = columns.FileOptions(**options)
    return collection.read_collection(candidates, images, references, options=chosen, **more)


def image(value: Any, where: str = "image") -> Any:
    """Any value of an image, with its `key`, `name`, `load()` and `check()`."""
    return InputImage.of(value, where)


# media


_SOURCES: dict[str, Any] = {"image": image_source, "video": video_source, "boxes": box_source}


def visual(medium: str, value: Any, where: str = "") -> Any:
    """What an encoder sees of an image, a video or boxes: `key`, `name`, `load()`, `check()`."""
    if isinstance(value, Source):  # of a store
        return Visual(where, value)
    return _Checked.of(value, where or medium, _SOURCES[medium])


class _Checked(Visual[Any]):
    """With the check of its content that comes before a run."""

    def check(self) -> None:
        with within(self.where):
            self.source.decode(reduced=True)


def read_video(value: Any, **sampling: Any) -> tuple[dict[int, Any], list[int], str | None]:
    """Images by the number of their frame, the numbers that are used, and why they are not all."""
    reading = visual("video", value, "video").load().read("video", Sampling(**sampling))
    images: dict[int, Any] = {}
    for number, image in reading:
        assert number not in images, f"frame {number} is given a second time"
        images[number] = image
    return images, reading.indices, reading.incomplete


def box_store(path: Path) -> BoxFeatureStore:
    """Image id -> stored box features."""
    return BoxFeatureStore.open(path)


def open_regions(spec: Any, **settings: Any) -> RegionSource:
    """The source of regions that an option names: `segment(image)`, `name`, `fingerprint`."""
    return region_opener(spec)(**settings)


def best_boxes(
    groups: Sequence[NDArray[np.float32]], overlap: float, most: int, **rule: Any
) -> list[list[int]]:
    """The boxes of each group, best first, that survive suppression."""
    return [Suppression(overlap, **rule).best(boxes, most).tolist() for boxes in groups]


def confidences(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], overlap: float, threshold: float = 0, **rule: Any
) -> list[float]:
    """The best score of each box among the classes whose suppression it survives."""
    found: list[float] = class_confidences(boxes, scores, Suppression(overlap, **rule), threshold).tolist()
    return found


def open_phrases(spec: Any, **settings: Any) -> Any:
    """The source of phrases that an option names: `phrases(texts)`, `name`, `fingerprint`."""
    return phrase_opener(spec)(**settings)


def consensus(pools: Any, kind: str = "cider", documents: str = "doc_caption_within_pool") -> list[Any]:
    """ECO's consensus of each caption with its pool: by CIDEr of tokens, or released (`tfidf`) of texts."""
    if kind == "tfidf":
        return tfidf_consensus(pools)
    return ngram_consensus(pools, kind=kind, documents=documents)  # type: ignore[arg-type]


def graph_phrases(graph: str, style: str = "triplet") -> list[str]:
    """The phrases of a scene graph as FACTUAL writes it."""
    return phrases_of(graph, style)  # type: ignore[arg-type]


# training


contrastive_loss = info_nce


def negative_groups(images: Sequence[str], captions: Sequence[str], tagged: Any, **options: Any) -> Any:
    """`group(epoch, index)` with the captions and kinds of a training set, its `len` the captions."""
    return negatives.NegativeSampler(images, captions, tagged, **options)


_TABLES: dict[int, tuple[Any, negatives.WordTable]] = {}


def negative_caption(
    kind: str, tokens: Sequence[str], words: Any, rng: np.random.Generator, **options: Any
) -> list[str] | None:
    """A negative of a kind: `words` are the tags, for a substitution with counts of words by tag."""
    if kind == "substitution":
        tags_of, counts = words
        if id(counts) not in _TABLES:  # made once, since laws take thousands of negatives
            _TABLES[id(counts)] = (counts, negatives.WordTable(counts))
        return negatives.substitution(tokens, tags_of, _TABLES[id(counts)][1], rng, **options)
    if kind == "repetition_removal":
        return negatives.repetition_removal(tokens, words, rng, **options)
    return negatives.word_order(tokens, rng, **options)


def similar(images: Sequence[str], *, top: int, features: Any = None, captions: Any = None) -> dict[str, Any]:
    """By id of an image, the ids of the most similar ones, by features or by captions."""
    if features is not None:
        return negatives.similar_by_features(images, features, top=top)
    return negatives.similar_by_captions(images, captions, top=top)


def tagger(name: str) -> Any:
    """`tags(captions)` gives pairs of token and tag; `fingerprint`."""
    return tags.open_tagger(name)


def write_positives(folder: Path, positives: Sequence[tuple[Any, ...]], settings: Mapping[str, Any]) -> None:
    """A folder as of `capeval augment`: tuples of kind, id, source caption, caption, image."""
    for kind in ("caption", "image"):
        own = [Positive(*rest, made_with="{}") for one, *rest in positives if one == kind]
        if own:
            kept = TableStore(folder / f"{kind}s", settings, "out")
            kept.append(table_of(own))
            kept.flush()


# integrations


def score_shards(source: Path, target: Path, scorer: Any, *, workers: int, progress: Any = None) -> list[Any]:
    """What became of each shard of a folder, by processes of Ray: a `ShardResult`, or what has a `reason`."""
    shards = plan_shards([f"{source}/*.parquet"], str(target))
    results: list[Any] = []
    for outcome in score_planned_shards(shards, [scorer], {"progress": progress}, workers=workers):
        results += outcome if isinstance(outcome, list) else [outcome]
    return results


# judgements


def resamples(groups: Sequence[str], *, draws: int, seed: int = 0) -> Any:
    """Resamples of images: `weights(draw)` of the rows, `means(values)`, `interval(values, level=)`."""
    return Resamples(groups, draws=draws, seed=seed)


def resampled_correlations(scores: Any, ratings: Any, weights: Any) -> dict[str, float]:
    """The coefficients of rows that count as often as their weights say."""
    names = {"tau_b": "kendall_tau_b", "tau_c": "kendall_tau_c", "spearman": "spearman", "pearson": "pearson"}
    found = WeightedRows(scores, ratings).coefficients(np.asarray(weights), [*names])
    return dict(zip(names.values(), found, strict=True))


# golden


def letterbox(image: Image) -> NDArray[np.float32]:
    """The input of MobileSAMv2's object detector."""
    return region_boxes.letterbox(image)


def object_boxes(raw: NDArray[np.float32], network_size: Any, image_size: Any) -> Any:
    """`corners` and `scores` of the boxes in that detector's output."""
    return region_boxes.read_output(raw, network_size, image_size)


def first_boxes(path: Path, selection: Any = "bua10_100") -> Any:
    """The first boxes of a file of box features, as many as a rule keeps."""
    return FirstBoxes(boxes_of(path), selection)


def layout_problems(kind: str, header: Mapping[str, Tensor], **settings: Any) -> list[str]:
    """What is wrong with the original names and shapes of a checkpoint, whose tensors are on `meta`."""
    class_: Any = registry.network(kind)
    conversion = class_.Conversion.of("convert", settings)
    with mock.patch.object(type(conversion), "typed", lambda self, content, notes: dict(content)):
        tensors = conversion.translate(conversion.select(header, []), [])
    config = conversion.config(conversions.shapes_of(tensors), tensors, [])
    return conversions.tensor_problems(class_.empty({"encoder": kind, **config}).state_dict(), tensors)


def blip2_states(encoder: Any, image_states: Tensor, ids: Sequence[int]) -> Tensor:
    """The query tokens of a BLIP-2 after looking at images, each with the same text."""
    count = len(image_states)
    with torch.inference_mode():
        return qformer_states(encoder.model, [tuple(ids)] * count, image_states, [1] * count)


def eco_ranking(
    pools: Sequence[Sequence[str]], itm: Any, cosines: Mapping[str, Any], **options: Any
) -> Ranking:
    """What ECO makes of pools, from raw values on: cosines of each caption by member, and matches."""
    sizes = [len(pool) for pool in pools]
    return Ranking(
        np.repeat(np.arange(len(pools)), sizes),
        [caption for pool in pools for caption in pool],
        cosines,
        itm,
        np.zeros(sum(sizes), dtype=np.bool_),
        EcoOptions(**options),
    )
