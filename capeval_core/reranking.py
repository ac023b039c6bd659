"""The contract of metrics that choose among candidate captions of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.inputs.samples import Pools, Samples, check_pools
from capeval_core.metric import CaptionMetric
from capeval_core.options import Options as CommonOptions
from capeval_core.result import Values


@dataclass(frozen=True)
class Choices(Values):
    """Scores of the candidates that were chosen, one per image.

    rows: (images,) the position of each chosen candidate among all rows.
    """

    rows: NDArray[np.int64]

    def scored(self, rows: pa.Table) -> pa.Table:
        """The rows of the chosen candidates."""
        return rows.take(pa.array(self.rows, pa.int64()))


class Reranker(CaptionMetric):
    """A metric that takes a pool of candidates per image, and chooses and scores one of them.

    A row is a candidate, a score belongs to an image. `aggregate` returns `Choices`. Scores compare the
    candidates of one set, so `Result.interval` and `Result.compare` are undefined.
    """

    crops = False

    @classmethod
    def check_input(cls, options: CommonOptions, *inputs: Any, progress: bool = False) -> Samples:
        captions, images = inputs[:2]
        return check_pools(
            captions,
            images,
            on_error=options.on_error,
            empty=options.empty,
            media=cls.media,
            progress=progress,
        )

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        """What `Result.explain` returns for each image: its name and its parts."""
        starts = pools_of(samples).starts
        return {
            image: {"image": samples.images[start].label}
            | {name: part[image] for name, part in parts.items()}
            for image, start in enumerate(starts)
        }


def pools_of(samples: Samples) -> Pools:
    """Samples of a `Reranker`, which come in pools."""
    if not isinstance(samples, Pools):
        raise TypeError("expected pools of candidates, as check() of a Reranker returns them")
    return samples
