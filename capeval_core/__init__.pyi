# Generated from the options of every metric by `python -m tools.documents`: do not edit.
# mypy: disable-error-code="overload-overlap"
# A call of a known metric that fits none of its overloads returns a type that nothing accepts, so that type
# checkers refuse its use; every other name is a metric of another package, with options of its own.

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, overload

from typing_extensions import Unpack, deprecated

from capeval_core._version import __version__ as __version__
from capeval_core.cache import FeatureCache
from capeval_core.integrations.evaluate_module import module as module
from capeval_core.metric import CaptionMetric
from capeval_core.options import CorpusStatistics
from capeval_core.phrases.source import PhraseSource
from capeval_core.regions.features import RegionEncoder
from capeval_core.regions.regions import RegionSource
from capeval_core.registry import list_metrics as list_metrics
from capeval_core.registry import module_path as module_path
from capeval_core.result import Result as Result
from capeval_core.scores.clips import ClipS, RefClipS
from capeval_core.scores.eco.metric import Eco
from capeval_core.scores.hice.metric import HiceS, RefHiceS
from capeval_core.scores.ngram.bleu import Bleu
from capeval_core.scores.ngram.cider import Cider, CiderD
from capeval_core.scores.ngram.rouge import RougeL
from capeval_core.scores.pac import PacS, RefPacS
from capeval_core.scores.umic import Umic
from capeval_core.scores.video import VideoPacS, VideoRefPacS
from capeval_core.scores.vilbert import VilbertScore

__all__ = ["Result", "__version__", "list_metrics", "load", "module", "module_path"]

_T = TypeVar("_T")

class _Options(TypedDict, total=False):
    weights: str | PathLike[str] | None
    """Hub repository id (`@revision` pins it), folder, or `tiny`; None: the metric's published weights"""
    device: str | None
    """torch device, e.g. `cpu`, `cuda:1`; None: CUDA where there is a GPU"""
    dtype: Literal["float32", "bfloat16", "float16"]
    """numeric type of the encoders"""
    batch_size: int | None
    """images or texts per forward pass; None: as many as fit into memory"""
    cache: str | PathLike[str] | FeatureCache | None
    """folder that keeps features on disk; None: only in memory, 512 MB shared by all metrics"""
    rows: str | PathLike[str] | None
    """folder that keeps each caption's row, so that an interrupted run goes on where it stopped"""
    on_error: Literal["raise", "nan"]
    """what to do with an unreadable image: `raise` before any model runs, or `nan` for its captions alone"""
    empty: Literal["error", "score"]
    """how to treat an empty caption: as an `error`, or `score` the bare prompt (and count it)"""
    compat: Literal["released"] | None
    """`released`: as the released script where it differs from the paper"""
    evidence: bool
    """keep the evidence behind each score, for `result.explain(i)` and the command line's --json"""

class _PacOptions(_Options, total=False):
    w: float
    """scale of the score, w of eq. 1"""
    prompt: str | None
    """put before captions and references; None: the weights' own, else the paper's"""
    decoders: int | None
    """processes that decode image files, for many cores and a fast GPU; None: threads of this process"""

class _ClipsOptions(_PacOptions, total=False): ...

class _HiceOptions(_Options, total=False):
    w: float
    """scale of cosines between image and text; the ranking by HICE-S does not depend on it"""
    regions: str | PathLike[str] | Mapping[str, Any] | RegionSource | None
    """source of regions: `objects`, `everything`, `rectangles` (each also with weights after a colon;
    `objects:threshold=0.2` sets the least objectness of a box, 0.1 by default), `colours`, masks by image id
    (a JSON file or a mapping), or a `RegionSource`; None: the one that the weights name, else `objects`"""
    max_regions: int | None
    """regions of an image at most, the best ones; None: all"""
    phrases: str | PathLike[str] | Mapping[str, Any] | PhraseSource | None
    """source of phrases: `factual`, another parser of its kind, `chunks`, phrases by caption (a JSON file or
    a mapping), or a `PhraseSource`; None: the one that the weights name, else `factual`"""
    phrase_style: Literal["triplet", "soft-spice"]
    """how a scene graph becomes phrases: the paper's `triplet`s, or as Soft-SPICE does"""
    mask_transform: Literal[
        "square_crop",
        "released",
        "released_no_antialias",
    ]
    """how images and masks are cropped: alike, or as Alpha-CLIP's documented usage, where they do not line up
    (`no_antialias`: with torchvision before 0.17)"""
    include_whole_image: bool
    """appendix A's reading: the whole image is one more region; then every phrase can match it"""

class _RefHiceOptions(_HiceOptions, total=False):
    reference_reduction: Literal["joint", "best", "mean", "pooled"]
    """of several references: the one with the best harmonic mean of gTTC and lTTC (`joint`), the `best` of
    each term, their `mean`, or all their phrases `pooled` and the best gTTC"""

class _RegionOptions(_Options, total=False):
    regions: str | PathLike[str] | RegionEncoder | None
    """box features: weights of a region encoder (Hub id, folder, `tiny`), or features that were made before
    (a folder of .npz files, UNITER's LMDB, a bottom-up-attention .tsv), and then `images` are ids and none is
    opened; None: the region encoder that the weights name"""

class _UmicOptions(_RegionOptions, total=False):
    selection: Literal["bua10_100", "lxmert36"]
    """boxes of an image: those more confident than 0.2, 10 to 100 of them, as UMIC was trained with, or
    LXMERT's 36"""

class _CorpusOptions(_Options, total=False):
    statistics: CorpusStatistics | None
    """statistics of a corpus, made by `prepare`; None: of the texts that are scored, all of them at once"""

class _VilbertOptions(_CorpusOptions, _RegionOptions, total=False):
    layer: int
    """co-attention block after which words are compared, counted from 0 or from the end; the paper's is the
    sixth, the last one"""
    idf: Literal["corpus"] | None
    """weights of words: `corpus` for their inverse document frequency among the references, as in BERTScore,
    or among the texts that `statistics` were made of; None: all words count alike, unless there are
    `statistics`"""

class _EcoOptions(_Options, total=False):
    members: str | Sequence[str] | None
    """the ensemble: `paper`, `small`, `tiny`, or names, Hub ids and folders (comma-separated or a list);
    `blip2-itc` is the contrast of `weights`; None: `paper`, with the weights `tiny` `tiny`"""
    ensemble_weight: float
    """weight of the ensembled CLIP score"""
    consensus_weight: float
    """weight of the consensus score"""
    threshold: float
    """gap between the best two below which the shorter is chosen"""
    consensus: Literal["cider", "cider_d", "tfidf"] | None
    """how captions of a pool are compared: by CIDEr as the paper says, CIDEr-D, or the released code's TF-
    IDF; None: `cider`, with compat `released` `tfidf`"""
    consensus_documents: Literal[
        "doc_caption_within_pool",
        "doc_caption_all_pools",
        "doc_image_all_pools",
        "doc_leave_one_out_within_pool",
        "doc_leave_one_out_all_pools",
    ]
    """what a document is where CIDEr weighs n-grams by rarity: a caption, all captions of an image, or the
    other captions; within a pool or over all pools"""

class _NgramOptions(_Options, total=False): ...
class _NgramCorpusOptions(_NgramOptions, _CorpusOptions, total=False): ...

class _VideoOptions(_Options, total=False):
    fps: float | None
    """frames per second to take of each video; None: every frame"""
    max_frames: int | None
    """frames to take of each video, evenly spread; None: every frame. A shorter video repeats some"""
    idf: bool
    """weigh words by their inverse document frequency among the references, or among the captions where there
    are none, or in `statistics`; False: all words count alike"""
    statistics: CorpusStatistics | None
    """inverse document frequencies of a corpus, made by `prepare`; None: of the texts scored together"""

class UnknownOptionOrWrongType(Generic[_T]): ...

_Known: TypeAlias = Literal[
    "pacs",
    "refpacs",
    "clips",
    "refclips",
    "hices",
    "refhices",
    "umic",
    "vilbertscore",
    "eco",
    "bleu",
    "rougel",
    "cider",
    "ciderd",
]

@overload
def load(
    name: Literal["pacs"], *, media: Literal["video"], **options: Unpack[_VideoOptions]
) -> VideoPacS: ...
@overload
def load(
    name: Literal["refpacs"], *, media: Literal["video"], **options: Unpack[_VideoOptions]
) -> VideoRefPacS: ...
@overload
def load(
    name: Literal["pacs"], *, media: Literal["image", None] = None, **options: Unpack[_PacOptions]
) -> PacS: ...
@overload
def load(
    name: Literal["refpacs"], *, media: Literal["image", None] = None, **options: Unpack[_PacOptions]
) -> RefPacS: ...
@overload
def load(
    name: Literal["clips"], *, media: Literal["image", None] = None, **options: Unpack[_ClipsOptions]
) -> ClipS: ...
@overload
def load(
    name: Literal["refclips"], *, media: Literal["image", None] = None, **options: Unpack[_ClipsOptions]
) -> RefClipS: ...
@overload
def load(
    name: Literal["hices"], *, media: Literal["image", None] = None, **options: Unpack[_HiceOptions]
) -> HiceS: ...
@overload
def load(
    name: Literal["refhices"], *, media: Literal["image", None] = None, **options: Unpack[_RefHiceOptions]
) -> RefHiceS: ...
@overload
def load(
    name: Literal["umic"], *, media: Literal["image", "boxes", None] = None, **options: Unpack[_UmicOptions]
) -> Umic: ...
@overload
def load(
    name: Literal["vilbertscore"],
    *,
    media: Literal["image", "boxes", None] = None,
    **options: Unpack[_VilbertOptions],
) -> VilbertScore: ...
@overload
def load(
    name: Literal["eco"], *, media: Literal["image", None] = None, **options: Unpack[_EcoOptions]
) -> Eco: ...
@overload
def load(name: Literal["bleu"], *, media: Literal[None] = None, **options: Unpack[_NgramOptions]) -> Bleu: ...
@overload
def load(
    name: Literal["rougel"], *, media: Literal[None] = None, **options: Unpack[_NgramOptions]
) -> RougeL: ...
@overload
def load(
    name: Literal["cider"], *, media: Literal[None] = None, **options: Unpack[_NgramCorpusOptions]
) -> Cider: ...
@overload
def load(
    name: Literal["ciderd"], *, media: Literal[None] = None, **options: Unpack[_NgramCorpusOptions]
) -> CiderD: ...
@overload
@deprecated("the metric has no such option, or the value is of the wrong type")
def load(name: _Known, **options: Any) -> UnknownOptionOrWrongType[_T]: ...
@overload
def load(name: str, **options: Any) -> CaptionMetric: ...
