"""Where weights live, Hub repositories and the original releases, and what they were trained with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROMPT = "A photo depicts "
"""Put before every caption and reference by PAC-S."""
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MASK_MEAN, MASK_STD = 0.5, 0.26
"""How Alpha-CLIP scales masks of zeros and ones."""
LICENCE_NOT_STATED = "not stated by the original"
"""In a config, the licence of weights whose authors state none."""
NAMESPACE = os.environ.get("CAPEVAL_NAMESPACE", "capeval")
"""The Hub namespace of everything that this project publishes."""

LICENCES: Mapping[str, str | None] = {
    "Apache-2.0": None,
    "BSD-3-Clause": None,
    "MIT": None,
    "CC-BY-NC-4.0": "reproduce and Share the Licensed Material, in whole or in part, for NonCommercial "
    "purposes only",
    "apple-amlr": "to use, copy, modify, distribute, and create Model Derivatives (defined below) of the "
    "Apple Machine Learning Research Model exclusively for Research Purposes",
    "research only": "The data and checkpoint is intended and licensed for research use only.",
}
"""Every licence of listed weights, and what it restricts, word for word; None: anyone may use them for
anything and hand them on. `research only` quotes Alpha-CLIP's README."""


def restriction_of(licence: str) -> str | None:
    """What a licence restricts, in its own words; None: nothing, or it is none of `LICENCES`.

    >>> restriction_of("cc-by-nc-4.0")
    'reproduce and Share the Licensed Material, in whole or in part, for NonCommercial purposes only'
    >>> restriction_of("MIT")
    """
    return next((text for name, text in LICENCES.items() if name.lower() == licence.lower()), None)


@dataclass(frozen=True)
class WeightsEntry:
    """A Hub repository of weights.

    repository: id on the Hub.
    original: where the authors' own release lives.
    checkpoint: file name of that release, with its folder where the name alone may be any other's; None if
        the repository is the authors' or a known mirror.
    licence: one of `LICENCES`, as its authors state it; None if they state none.
    settings: values that their config must have; a repository with others is refused. They are also flags of
        `capeval convert`, for what the tensors do not show.
    metrics: names of those whose published weights these are; none where no metric here is named after them.
    architecture: how encoders describe these weights, without their activation; None: not recorded.
    """

    repository: str
    title: str
    original: str
    checkpoint: str | None
    licence: str | None
    settings: Mapping[str, str]
    metrics: tuple[str, ...] = ()
    architecture: str | None = None

    def is_another(self, described: str) -> str | None:
        """The problem of weights that have this entry's name but are described as another model.

        >>> PACS_B32.is_another("ViT/32 2x64, 64 pixels; text 2x64; 32 dimensions; gelu")
        'PAC-S, CLIP ViT-B/32 is ViT/32 12x768, ..., but these weights are ViT/32 2x64, ...; gelu'
        >>> PACS_B32.is_another(f"{PACS_B32.architecture}; quick_gelu")
        """
        if self.architecture is None or described.startswith(self.architecture):
            return None
        return f"{self.title} is {self.architecture}, but these weights are {described}"

    @property
    def folder(self) -> str:
        """The repository's name without its namespace, which is also a good name for a local folder.

        >>> PACS_B32.folder
        'pacs-clip-vit-b-32'
        """
        return self.repository.rsplit("/", 1)[-1]

    def convert_command(self, metric: str) -> str:
        """The command that makes these weights of the original checkpoint.

        >>> PACS_B32.convert_command("pacs")
        'capeval convert pacs clip_ViT-B-32.pth --activation quick_gelu --out pacs-clip-vit-b-32'
        """
        flags = "".join(f" --{name} {value}" for name, value in self.settings.items())
        return f"capeval convert {metric} {self.checkpoint}{flags} --out {self.folder}"

    def how_to_convert(self, metric: str) -> str:
        """How to get these weights where the Hub repository could not be loaded."""
        if self.checkpoint is None:
            return (
                f"Where there is a network, download it with\n"
                f"    hf download {self.repository} --local-dir {self.folder}\n"
                f"copy the folder here, "
            )
        return (
            f"The original release is {self.checkpoint} at\n"
            f"    {self.original}\n"
            f"Download it, run\n"
            f"    {self.convert_command(metric)}\n"
        )


_QUICK, _EXACT = {"activation": "quick_gelu"}, {"activation": "gelu"}

# The release's repository and the folder that its README names for the checkpoints.
_PACSCORE = (
    "https://github.com/aimagelab/pacscore and "
    "https://drive.google.com/drive/folders/15Da_nh7CYv8xfryIdETG6dPFSqcBiqpd"
)
_PLUSPLUS = "https://ailb-web.ing.unimore.it/publicfiles/pac++"
_OPEN_CLIP = "https://github.com/mlfoundations/open_clip"
_META = "https://github.com/facebookresearch/MetaCLIP"

# CLIP's published sizes (Radford et al., 2021, table 20).
_VIT_B32 = "ViT/32 12x768, 224 pixels; text 12x512; 512 dimensions"
_VIT_L14 = "ViT/14 24x1024, 224 pixels; text 12x768; 768 dimensions"


def _pac(
    name: str,
    title: str,
    checkpoint: str,
    architecture: str,
    original: str | None = None,
    settings: Mapping[str, str] = _QUICK,
) -> WeightsEntry:
    # The authors state no licence for the weights: users convert them, none are hosted again.
    original = original or f"{_PLUSPLUS}/{checkpoint}"
    metrics = ("pacs", "refpacs")
    repository = f"{NAMESPACE}/{name}"
    return WeightsEntry(repository, title, original, checkpoint, None, settings, metrics, architecture)


def _openai(repository: str, title: str) -> WeightsEntry:
    original, metrics = "https://github.com/openai/CLIP", ("clips", "refclips")
    title = f"OpenAI CLIP {title}"
    return WeightsEntry(f"timm/{repository}", title, original, None, "MIT", _QUICK, metrics)


def _openclip(repository: str, title: str) -> WeightsEntry:
    return WeightsEntry(f"laion/{repository}", f"OpenCLIP {title}", _OPEN_CLIP, None, "MIT", _EXACT)


def _meta(repository: str, title: str) -> WeightsEntry:
    return WeightsEntry(f"timm/{repository}", f"MetaCLIP {title}", _META, None, "CC-BY-NC-4.0", _QUICK)


def _alpha(name: str, title: str, checkpoint: str, base: str) -> WeightsEntry:
    original = "https://github.com/SunzeY/AlphaCLIP/blob/main/model-zoo.md"
    settings = {**_QUICK, "base": f"timm/{base}"}
    repository, title = f"{NAMESPACE}/{name}", f"Alpha-CLIP {title}"
    # The code is Apache-2.0, the checkpoints are not.
    return WeightsEntry(repository, title, original, checkpoint, "research only", settings)


def _blip2(name: str, title: str, checkpoint: str) -> WeightsEntry:
    original = f"https://storage.googleapis.com/sfr-vision-language-research/LAVIS/models/BLIP2/{checkpoint}"
    return WeightsEntry(f"Salesforce/{name}", f"BLIP-2 {title}", original, None, "BSD-3-Clause", {})


_OPENAI_B16, _OPENAI_L14 = "vit_base_patch16_clip_224.openai", "vit_large_patch14_clip_224.openai"
PACS_B32 = _pac("pacs-clip-vit-b-32", "PAC-S, CLIP ViT-B/32", "clip_ViT-B-32.pth", _VIT_B32, _PACSCORE)
CLIP_B32 = _openai("vit_base_patch32_clip_224.openai", "ViT-B/32")
ALPHA_L14 = _alpha("alpha-clip-vit-l-14", "ViT-L/14", "clip_l14_grit20m_fultune_2xe.pth", _OPENAI_L14)
BLIP2: tuple[WeightsEntry, ...] = (
    _blip2("blip2-itm-vit-g-coco", "ViT-g, COCO", "blip2_finetune_coco.pth"),
    _blip2("blip2-itm-vit-g", "ViT-g", "blip2_pretrained.pth"),
)
"""Image-text matching; the first one is what ECO uses."""
ALPHA_CLIP: tuple[WeightsEntry, ...] = (
    ALPHA_L14,
    _alpha("alpha-clip-vit-b-16", "ViT-B/16", "clip_b16_grit20m_fultune_2xe.pth", _OPENAI_B16),
    _alpha(
        "alpha-clip-vit-l-14-336",
        "ViT-L/14@336",
        "clip_l14_336_grit_20m_4xe.pth",
        "vit_large_patch14_clip_336.openai",
    ),
)

UMIC = WeightsEntry(
    f"{NAMESPACE}/umic-uniter-base",
    "UMIC, UNITER-base",
    "https://archive.org/download/umic_data/umic.pt",
    "umic.pt",
    "MIT",
    {},
    ("umic",),
    "UNITER 12x768, box features of 2048 numbers, 28996 words",
)

_VILBERT = "ViLBERT 12x768 and 6x1024, 6 co-attentions, box features of 2048 numbers, 30522 words, {} tasks"


def _vilbert(name: str, title: str, checkpoint: str, tasks: int) -> WeightsEntry:
    original = f"https://dl.fbaipublicfiles.com/vilbert-multi-task/{checkpoint}"
    repository, described = f"{NAMESPACE}/{name}", _VILBERT.format(tasks)
    return WeightsEntry(repository, title, original, checkpoint, "MIT", {}, ("vilbertscore",), described)


VILBERT = _vilbert("vilbert-12-in-1", "ViLBERT, 12-in-1", "multi_task_model.bin", 20)
"""What ViLBERTScore uses by default: tuned on twelve tasks, of which one is the retrieval of captions."""
VILBERT_PRETRAINED = _vilbert("vilbert-pretrained", "ViLBERT, pre-trained", "pretrained_model.bin", 0)

FASTER_RCNN_VG = WeightsEntry(
    f"{NAMESPACE}/faster-rcnn-vg-resnet-101",
    "Faster R-CNN ResNet-101, Visual Genome",
    # A copy: the authors' own addresses, of unc-nlp/frcnn-vg-finetuned, are gone.
    "https://huggingface.co/spaces/WwYc/explain-LXMERT/tree/main/lxmert/unc-nlp/frcnn-vg-finetuned",
    "frcnn-vg-finetuned/pytorch_model.bin",
    "Apache-2.0",
    {},
    architecture="Faster R-CNN, ResNet 3-4-23-3, width 64; 1600 classes, 400 attributes; 2048 dimensions",
)
"""What finds the boxes of networks on regions."""

X152_VG = WeightsEntry(
    f"{NAMESPACE}/faster-rcnn-vg-resnext-152",
    "Faster R-CNN ResNeXt-152 FPN, Visual Genome",
    "https://dl.fbaipublicfiles.com/vilbert-multi-task/detectron_model.pth",
    # Its authors' other detector, of MMF, has the same file name.
    "vilbert-multi-task/detectron_model.pth",
    "MIT",
    {},
    architecture="Faster R-CNN, ResNeXt 3-8-36-3, 32x8d, FPN 512; 1600 classes; 2048 dimensions",
)
"""What finds the boxes of 12-in-1's ViLBERT."""

EVA_CLIP = "eva-clip"
"""EVA-CLIP in `capeval convert`: no metric's own weights."""
FASTER_RCNN = "faster-rcnn"
"""Bottom-up attention's Faster R-CNN in `capeval convert`: no metric's own weights."""
X152 = "x152"
"""12-in-1's ResNeXt-152 FPN detector in `capeval convert`: no metric's own weights."""
CONVERTED_AS: Mapping[str, str] = {
    "clip": "pacs",
    "alpha_clip": "hices",
    "blip2": "eco",
    "uniter": "umic",
    "vilbert": "vilbertscore",
    "scene_regions": "umic",
    "open_clip": "eco",
    "eva_clip": EVA_CLIP,
    "faster_rcnn": FASTER_RCNN,
    "x152": X152,
    "sam": "regions",
}
"""Name of a network, as `encoder` in a config -> of its original releases in `capeval convert`."""
TINY_OF: Mapping[str, str] = {
    "clip": "pacs",
    "alpha_clip": "hices",
    "blip2": "blip2",
    "uniter": "umic",
    "vilbert": "vilbertscore",
    "scene_regions": "scene-regions",
}
"""Name of a network -> folder of its embedded small model."""
EVA_18B = WeightsEntry(
    f"{NAMESPACE}/eva-clip-18b",
    "EVA-CLIP-18B",
    "https://huggingface.co/BAAI/EVA-CLIP-18B",
    "EVA_CLIP_18B_psz14_s6B.fp16.pt",
    "Apache-2.0",
    {},
)
ECO_MEMBERS: dict[str, WeightsEntry] = {
    "eva-clip-18b": EVA_18B,
    "metaclip-bigg": _meta("vit_gigantic_patch14_clip_224.metaclip_2pt5b", "ViT-bigG/14"),
    "mobileclip-b": WeightsEntry(
        "apple/MobileCLIP-B-LT-OpenCLIP",
        "MobileCLIP-B (LT)",
        "https://github.com/apple/ml-mobileclip",
        None,
        "apple-amlr",
        _EXACT,
    ),
    "openclip-bigg": _openclip("CLIP-ViT-bigG-14-laion2B-39B-b160k", "ViT-bigG/14"),
    "eva02-l14": WeightsEntry(
        "timm/eva02_large_patch14_clip_224.merged2b_s4b_b131k",
        "EVA-02-CLIP ViT-L/14",
        "https://github.com/baaivision/EVA",
        None,
        "MIT",
        _EXACT,
    ),
    "metaclip-l14": _meta("vit_large_patch14_clip_224.metaclip_2pt5b", "ViT-L/14"),
    "openclip-l14": _openclip("CLIP-ViT-L-14-laion2B-s32B-b82K", "ViT-L/14"),
}
"""Dual encoders of ECO's ensemble by their names in its option `members`."""

WEIGHTS: tuple[WeightsEntry, ...] = (
    PACS_B32,
    _pac(
        "pacs-openclip-vit-l-14",
        "PAC-S, OpenCLIP ViT-L/14",
        "openClip_ViT-L-14.pth",
        _VIT_L14,
        _PACSCORE,
        _EXACT,
    ),
    _pac("pacs-plusplus-clip-vit-b-32", "PAC-S++, CLIP ViT-B/32", "PAC++_clip_ViT-B-32.pth", _VIT_B32),
    _pac("pacs-plusplus-clip-vit-l-14", "PAC-S++, CLIP ViT-L/14", "PAC++_clip_ViT-L-14.pth", _VIT_L14),
    CLIP_B32,
    _openai(_OPENAI_B16, "ViT-B/16"),
    _openai(_OPENAI_L14, "ViT-L/14"),
    _openai("resnet50_clip.openai", "RN50"),
    _openai("resnet101_clip.openai", "RN101"),
    _openai("resnet50x4_clip.openai", "RN50x4"),
    _openclip("CLIP-ViT-B-32-laion2B-s34B-b79K", "ViT-B/32"),
    *ECO_MEMBERS.values(),
    *ALPHA_CLIP,
    *BLIP2,
    UMIC,
    VILBERT,
    VILBERT_PRETRAINED,
    FASTER_RCNN_VG,
    X152_VG,
)


_OF_OTHERS: Mapping[str, tuple[WeightsEntry, ...]] = {
    "hices": ALPHA_CLIP,
    "refhices": ALPHA_CLIP,
    "eco": (*BLIP2, *ECO_MEMBERS.values()),
    FASTER_RCNN: (FASTER_RCNN_VG,),
    X152: (X152_VG,),
}


def weights_of(metric: str) -> Sequence[WeightsEntry]:
    """The entries that a metric, or a network in `capeval convert`, can use; all, where none is known of it.

    >>> weights_of("clips")[0].repository
    'timm/vit_base_patch32_clip_224.openai'
    """
    own = tuple(entry for entry in WEIGHTS if metric in entry.metrics)
    return own or _OF_OTHERS.get(metric, WEIGHTS)


def entry_known_as(name: str, original: str | None) -> WeightsEntry | None:
    """The entry by the name of a repository, in any namespace, or of a folder; else by the original's file.

    >>> entry_known_as("me/PACS-CLIP-ViT-B-32", None) is entry_known_as("x", "clip_ViT-B-32.pth") is PACS_B32
    True
    """
    folder = name.rpartition("/")[2].lower()
    named = (entry for entry in WEIGHTS if entry.folder.lower() == folder)
    converted = (entry for entry in WEIGHTS if entry.checkpoint and entry.checkpoint == original)
    return next(named, None) or next(converted, None)


def entry_of(repository: str) -> WeightsEntry | None:
    """The catalogue's entry of a Hub repository id (ids ignore case), None if it is not listed."""
    return next((entry for entry in WEIGHTS if entry.repository.lower() == repository.lower()), None)
