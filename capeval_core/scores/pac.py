"""PAC-S and RefPAC-S: cosines in a positive-augmented CLIP space.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.ragged import Ragged
from capeval_core.result import Published, Values
from capeval_core.rows import column, common_columns, nullable, row_schema
from capeval_core.weights.catalogue import PACS_B32, PROMPT

if TYPE_CHECKING:
    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.encoders.engine import ImageFeatures
    from capeval_core.encoders.texts import TextFeatures
    from capeval_core.encoders.tokenizers import ClipTokenizer

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


def pac_score(cosine: Doubles, w: float = 2.0) -> Doubles:
    """Eq. 1: Score(t, v) = w max(cos(t, v), 0), in [0, w], for cosines of any shape.

    >>> pac_score(np.array([0.4, -0.1]))
    array([0.8, 0. ])
    """
    return w * np.maximum(cosine, 0)


def ref_pac_score(pac: Doubles, reference_cosine: Doubles, *, released: bool = False) -> Doubles:
    """Eq. 4: harmonic mean of `pac` and max(0, `reference_cosine`), the cosine of the nearest reference.

    The released script leaves out the max(0, .), so a negative cosine can make the score negative or
    exceed both of its parts: `released=True`. Where it divides zero by zero, both give 0.

    >>> ref_pac_score(np.array([0.8, 0.8]), np.array([0.8, -0.2]))
    array([0.8, 0. ])
    """
    return harmonic_mean(pac, reference_cosine if released else np.maximum(reference_cosine, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PacOptions(CommonOptions):
    """Options of PAC-S and RefPAC-S."""

    w: float = option(2.0, "scale of the score, w of eq. 1", sign="w", minimum=0)
    prompt: str | None = option(
        None,
        "put before captions and references; None: the weights' own, else the paper's",
        sign="prompt",
        encodes=True,
    )
    decoders: int | None = option(
        None,
        "processes that decode image files, for many cores and a fast GPU; None: threads of this process",
        minimum=1,
    )


_COSINE = column("cosine", pa.float32(), "cosine of caption and image, null where the image failed")


def _table_7(captions: str, value: float) -> Published:
    return Published(captions, value, "COCO, Karpathy test split", PACS_B32.repository, "the paper's table 7")


class PacS(CaptionMetric):
    """PAC-S: w max(cos(caption, image), 0), eq. 1, without references."""

    name = "pacs"
    title = "PAC-S"
    key = "pac_s"
    summary = "Cosine of caption and image in a CLIP space tuned with generated positives."
    paper = (
        "Sarto et al., Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation, "
        "CVPR 2023, https://arxiv.org/abs/2303.12112"
    )
    bibtex = """\
@inproceedings{sarto2023positive,
  title     = {Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation},
  author    = {Sarto, Sara and Barraco, Manuele and Cornia, Marcella and Baraldi, Lorenzo and Cucchiara,
               Rita},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}"""
    range = (0.0, 2.0)
    PROMPT: ClassVar[str] = PROMPT
    """Put before captions and references where neither option nor weights state another."""
    default_weights = PACS_B32
    network = "clip"
    tiny = "pacs"
    Options: ClassVar[type[CommonOptions]] = PacOptions
    ROW = row_schema(_COSINE)
    published: ClassVar[tuple[Published, ...]] = (
        _table_7("Show and Tell", 0.772),
        _table_7("Up-Down", 0.794),
        _table_7("M² Transformer", 0.806),
        _table_7("people", 0.818),
        _table_7("VinVL", 0.821),
    )

    options: PacOptions

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        super().check_options(options)
        if isinstance(options, PacOptions) and options.prompt is not None:
            from capeval_core.encoders.clip_model import context_length
            from capeval_core.encoders.tokenizers import ClipTokenizer

            weights = cls.default_weights.repository if options.weights is None else options.weights
            if (length := context_length(weights, tiny=cls.tiny)) is not None:
                _check_prompt(options.prompt, ClipTokenizer(length))

    @classmethod
    def decoders(cls, options: CommonOptions) -> int | None:
        return options.decoders if isinstance(options, PacOptions) else None

    @property
    def extent(self) -> tuple[float, float]:
        return 0.0, self.options.w

    def open_models(self) -> dict[str, Model]:
        folder = self.weights_folder()
        self.encoder: ClipEncoder = self.encoder_class().open(
            folder, device=self.options.device, dtype=self.options.dtype
        )
        if self.options.prompt is None:
            prompt = folder.config.get("constants", {}).get("prompt", self.PROMPT)
            self.options = dataclasses.replace(self.options, prompt=prompt)
        _check_prompt(str(self.options.prompt), self.encoder.tokenizer)
        fingerprint = self.encoder.fingerprint
        return {"weights": Model(folder.label(fingerprint), fingerprint)}

    @property
    def run(self) -> dict[str, Any]:
        """Keywords of the encoder: the cache, and the size of a batch."""
        return {"cache": self.cache, "batch_size": self.options.batch_size}

    def text_features(self, texts: Sequence[str]) -> TextFeatures:
        """Features (n, d) of texts behind the prompt."""
        return self.encoder.encode_texts([f"{self.options.prompt}{text}" for text in texts], **self.run)

    def image_features(self, images: Sequence[InputImage]) -> Iterator[ImageFeatures]:
        """Features (n, ...) of images, in order, some at a time: what `columns` takes of them."""
        return self.encoder.encode_images(images, decoders=self.options.decoders, **self.run)

    def columns(self, images: Floats, captions: Floats) -> dict[str, Any]:
        """The metric's columns of n captions (n, d) beside their images (n, ...), NaN where an image failed.

        Columns of references come from `encode`.
        """
        return {"cosine": nullable(paired_cosine(images, captions))}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        references = batch.references if self.needs_references else None
        counts = np.array([len(row) for row in references or [[]] * len(batch)], dtype=np.int64)
        ends = len(batch) + np.cumsum(counts)
        texts = batch.captions + [text for row in references or [] for text in row]
        text_features = self.text_features(texts)
        truncated = np.array(text_features.truncated)
        start = 0
        for images in self.image_features(batch.images):
            part = slice(start, start + len(images.keys))
            of_references = slice(ends[start] - counts[start], ends[part.stop - 1])
            captions = text_features.features[part]
            columns = self.columns(images.features, captions)
            if references is not None:
                cosines = grouped_cosine(captions, text_features.features[of_references], counts[part])
                offsets = np.concatenate([[0], np.cumsum(counts[part])]).astype(np.int32)
                columns["reference_cosines"] = pa.ListArray.from_arrays(offsets, cosines)
            captions_of_references = np.repeat(np.arange(len(images.keys)), counts[part])
            common = common_columns(
                batch,
                part,
                groups=images.keys,
                errors=images.errors,
                truncated=truncated[part]
                + np.bincount(captions_of_references, truncated[of_references], len(images.keys)),
            )
            yield pa.table({**common, **columns}, schema=self.ROW)
            start = part.stop

    def aggregate(self, rows: pa.Table) -> Values:
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        return Values(pac_score(cosine, self.options.w), {"cosine": cosine})


class RefPacS(PacS):
    """RefPAC-S: harmonic mean of PAC-S and the nearest reference's cosine, eq. 4."""

    name = "refpacs"
    title = "RefPAC-S"
    key = "refpac_s"
    summary = "Harmonic mean of PAC-S and the cosine of the caption with its nearest reference."
    range = (0.0, 4 / 3)  # w = 2 and cosines of 1: 2 * 2 * 1 / (2 + 1)
    needs_references = True
    free_key = PacS.key
    """Name of the reference-free score among the parts."""
    ROW = row_schema(
        _COSINE,
        column(
            "reference_cosines", pa.list_(pa.float32()), "cosine of the caption with each of its references"
        ),
    )
    reference_columns = ("reference_cosines",)
    published: ClassVar[tuple[Published, ...]] = (
        _table_7("Show and Tell", 0.826),
        _table_7("Up-Down", 0.847),
        _table_7("M² Transformer", 0.854),
        _table_7("people", 0.857),
        _table_7("VinVL", 0.869),
    )

    @property
    def extent(self) -> tuple[float, float]:
        return 0.0, 2 * self.options.w / (self.options.w + 1)

    def aggregate(self, rows: pa.Table) -> Values:
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        nearest = Ragged.of(rows["reference_cosines"]).max()
        pac = pac_score(cosine, self.options.w)
        score = ref_pac_score(pac, nearest, released=self.options.compat == "released")
        parts = {"cosine": cosine, self.free_key: pac, "reference_cosine": nearest}
        return Values(score, parts)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        shown = super().evidence_of(samples, rows, parts)
        cosines = rows["reference_cosines"].to_pylist()
        for row, references in enumerate(samples.references or []):
            shown[row]["references"] = dict(zip(references, cosines[row], strict=True))
        return shown


def _check_prompt(prompt: str, tokenizer: ClipTokenizer) -> None:
    ids = tokenizer.encode([prompt]).ids[0]
    if len(ids) >= tokenizer.context_length:
        shown = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        found = f"all {tokenizer.context_length} token ids that the text encoder reads"
        fix = "it leaves no room for a caption, shorten it"
        raise wrong_option("prompt", shown, found, fix, verb="fills")
