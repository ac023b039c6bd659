"""PAC-S and CLIP-S, and both with references: cosines in a positive-augmented CLIP space, and in OpenAI's.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112
Hessel, Holtzman, Forbes, Le Bras, Choi: CLIPScore: A Reference-free Evaluation Metric for Image Captioning,
EMNLP 2021, https://arxiv.org/abs/2104.08718
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import harmonic_mean, paired_cosine
from capeval_core.metric import CaptionMetric, CommonOptions, Evidence, Model
from capeval_core.options import option
from capeval_core.ragged import Ragged
from capeval_core.registry import facts
from capeval_core.result import Values
from capeval_core.rows import COVERAGE, FLOATS, Texts, column, nullable, row_schema
from capeval_core.weights.catalogue import PROMPT

if TYPE_CHECKING:
    from capeval_core.encoders.dual import DualEncoder, TextTokenizer

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


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(CommonOptions):
    """The scale of a score."""

    w: float = option(2.0, "scale of the score, w of eq. 1", sign="w", minimum=0)


@dataclass(frozen=True, kw_only=True)
class PromptOptions(CommonOptions):
    """The prompt before captions, and the decoding of images."""

    prompt: str | None = option(
        None,
        "put before captions and references; None: the weights' own, else the paper's",
        sign="prompt",
        encodes=True,
        none_means=PROMPT,  # the papers of PAC-S and CLIP-S have the same
    )
    decoders: int | None = option(
        None,
        "processes that decode image files, for many cores and a fast GPU; None: threads of this process",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class PacOptions(PromptOptions, ScaleOptions):
    """Options of PAC-S and RefPAC-S; CLIP-S inherits what is added here, SPECS what `PromptOptions` has."""


@dataclass(frozen=True, kw_only=True)
class ClipsOptions(PacOptions):
    """Options of CLIP-S and RefCLIP-S."""

    w: float = option(2.5, "scale of the score, w of section 3", sign="w", minimum=0)


class ClipCosine(CaptionMetric):
    """A metric on the cosine of a caption behind a prompt and an image; `aggregate` makes the score of it."""

    languages = ("English",)
    any_dual_encoder = True
    ROW = row_schema(
        COVERAGE, column("cosine", pa.float32(), "cosine of caption and image, null where the image failed")
    )

    options: PromptOptions

    @classmethod
    def check_options(cls, options: Any) -> None:
        super().check_options(options)
        # Where the tokenizer is known without opening weights, a prompt is refused at once; others by
        # `check_encoder`, once they are open.
        if options.prompt is not None and cls.default_weights and cls.tiny:
            from capeval_core.encoders.clip import known_tokenizer

            weights = options.weights or cls.default_weights.repository
            tokenizer = known_tokenizer(weights, tiny=cls.tiny)
            if tokenizer is not None:
                _check_prompt(options.prompt, tokenizer)

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, **settings: Any) -> Samples:
        # The check decodes every image, by the same processes as encoding.
        return super().check_input(options, *inputs, decoders=options.decoders, **settings)

    def open_models(self) -> dict[str, Model]:
        if self.options.prompt is None:  # set here, so that signature and stamp have the prompt itself
            usual_prompt = self.options.description("prompt").none_means
            prompt = self.folder.config.get("constants", {}).get("prompt", usual_prompt)
            self.options = replace(self.options, prompt=prompt)
        return super().open_models()

    def check_encoder(self, encoder: DualEncoder) -> None:
        # Once more, of weights that are not listed.
        _check_prompt(str(self.options.prompt), encoder.tokenizer)

    def text_features(self, texts: Sequence[str]) -> Any:
        """Features (n, d) of texts behind the prompt, as `TextFeatures`."""
        return self.encoder.encode_texts([f"{self.options.prompt}{text}" for text in texts], **self.run)

    def image_features(self, images: Sequence[InputImage]) -> Any:
        """`ImageFeatures` (n, ...) of images, in order, some at a time: what `columns` takes of them."""
        return self.encoder.encode_images(images, decoders=self.options.decoders, **self.run)

    def columns(self, images: Floats, captions: Floats) -> dict[str, Any]:
        """The metric's own columns of pairs of an image and a caption, without those of references."""
        return {"cosine": nullable(paired_cosine(images, captions))}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        texts = Texts(batch, with_references=self.needs_references)
        # All texts first: equal ones run once, and their features are small next to images.
        encoded = self.text_features(texts.all)
        start = 0
        for images in self.image_features(batch.images):
            part = slice(start, start + len(images.keys))
            columns = texts.columns(
                part,
                images.keys,
                images.errors,
                encoded.truncated,
                tokenizer=self.encoder.tokenizer,
                prompt=str(self.options.prompt),
            )
            columns |= self.columns(images.features, encoded.features[part])
            if self.needs_references:
                columns["reference_cosines"] = texts.cosines(part, encoded.features)
            yield pa.table(columns, schema=self.ROW)
            start = part.stop


@facts("pacs")
class PacS(ClipCosine):
    """PAC-S: w max(cos(caption, image), 0), eq. 1, without references."""

    Options: ClassVar[type[CommonOptions]] = PacOptions
    options: PacOptions

    def aggregate(self, rows: pa.Table) -> Values:
        w = self.options.w
        # Rows hold float32, as networks compute; formulas in float64 add no rounding of their own.
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        return Values(pac_score(cosine, w), {"cosine": cosine}, range=(0.0, w))


@facts("refpacs")
class RefPacS(PacS):
    """RefPAC-S: harmonic mean of PAC-S and the nearest reference's cosine, eq. 4."""

    needs_references = True
    free_key = PacS.key  # of the score without references, among the parts
    ROW = PacS.ROW.append(
        column("reference_cosines", FLOATS, "cosine of the caption with each of its references")
    )
    reference_columns = ("reference_cosines",)

    def aggregate(self, rows: pa.Table) -> Values:
        w = self.options.w
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        nearest = Ragged.of(rows["reference_cosines"]).max()  # NaN of a row that failed
        pac = pac_score(cosine, w)
        score = ref_pac_score(pac, nearest, released=self.options.compat == "released")
        parts = {"cosine": cosine, self.free_key: pac, "reference_cosine": nearest}
        return Values(score, parts, range=(0.0, 2 * w / (w + 1)))  # of a cosine of 1 with both

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        explained = super().evidence_of(samples, rows, parts)
        pairs = zip(samples.references or [], rows["reference_cosines"].to_pylist(), strict=True)
        for row, (references, cosines) in enumerate(pairs):
            # Equal references have one cosine, so that a text can be the key.
            explained[row]["references"] = dict(zip(references, cosines, strict=True))
        return explained


@facts("clips")
class ClipS(PacS):
    """CLIP-S: w max(cos(caption, image), 0), without references."""

    Options = ClipsOptions


@facts("refclips")
class RefClipS(RefPacS):
    """RefCLIP-S: harmonic mean of CLIP-S and the nearest reference's cosine."""

    free_key = ClipS.key
    Options = ClipsOptions


def _check_prompt(prompt: str, tokenizer: TextTokenizer) -> None:
    """Refuse a prompt behind which the text encoder reads nothing of a caption."""
    # Every caption would have the same score, which looks like a bad model.
    if len(tokenizer.encode([prompt]).ids[0]) >= tokenizer.context_length:
        excerpt = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        problem = f"fills all {tokenizer.context_length} token ids that the text encoder reads"
        fix = "it leaves no room for a caption, shorten it"
        raise wrong_option("prompt", excerpt, problem, fix)
