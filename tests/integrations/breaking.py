"""A metric of a user's own that breaks the process it runs in, as an error of CUDA does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from capeval_core.scores.pac import PacS

BREAKS = "a caption that breaks its process"
_LOST: list[str] = []


class BreakingPacS(PacS):
    """PAC-S, until a caption breaks the process, after which every call fails."""

    def encode_all(self, samples: Any, **arguments: Any) -> pa.Table:
        if BREAKS in samples.captions:
            _LOST.append("device-side assert triggered")
        if _LOST:
            raise RuntimeError(f"CUDA error: {_LOST[0]}")
        return super().encode_all(samples, **arguments)
