"""Options of ECO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.phrases.consensus import Documents
from capeval_core.scores.eco_formulas import CONSENSUS_WEIGHT, ENSEMBLE_WEIGHT, THRESHOLD


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
    documents: Documents = option(
        "doc_caption_within_pool",
        "what a document is where CIDEr weighs n-grams by rarity: a caption, all captions of an image, or "
        "the other captions; within a pool or over all pools",
        sign="documents",
    )

    @property
    def comparison(self) -> Literal["cider", "cider_d", "tfidf"]:
        """How captions of a pool are compared, also where `consensus` leaves it to `compat`."""
        return self.consensus or ("tfidf" if self.compat == "released" else "cider")

    def signed(self) -> list[str]:
        """As for all options, with the comparison spelt out, and documents only where one reads them."""
        told = super(EcoOptions, replace(self, consensus=self.comparison)).signed()
        return [sign for sign in told if self.comparison != "tfidf" or not sign.startswith("documents:")]
