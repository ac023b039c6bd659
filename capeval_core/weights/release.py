"""What converting an original checkpoint gives, and the settings of a conversion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capeval_core.options import Settings


@dataclass(frozen=True)
class Release:
    """An original checkpoint in plain form.

    Attributes:
        config: the weights folder's config.json, without checksum and canary.
        tensors: as its encoder names them, contiguous, float32 or integers, complete and nothing else;
            those of very large models as they are stored.
        notes: what was inferred, merged, ignored or dropped, and why; also in ``config["source"]["notes"]``.
    """

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    notes: list[str]


class Conversion(Settings, ABC):
    """Settings of a conversion, each a flag of `capeval convert`, and the conversion itself."""

    @abstractmethod
    def read(self, path: Path) -> Release:
        """The checkpoint at `path`, by these settings.

        Raises:
            FileNotFoundError, ValueError: there is no such file, or it cannot be read by these settings.
        """
