"""What this project puts on the Hub: modules (Spaces), weights (models) and their cards.

`module`, `weights` and `card` collect the files of a repository as plain values; `publish` sends them.

Nothing here ever makes a tag, or a branch named like a version: `evaluate.load("org/name")` asks a Space for
the revision `v<version of evaluate>` before `main`, so a tag `v0.4.6` would hold every user of evaluate 0.4.6
at what it points to, for ever. Versions are those of the Python package, and commits.
"""

from __future__ import annotations

from capeval_core.publishing.models import card, cards, weights
from capeval_core.publishing.publication import Publication, PublishError, Pushed, publish
from capeval_core.publishing.spaces import PYPI, module

__all__ = ["PYPI", "Publication", "PublishError", "Pushed", "card", "cards", "module", "publish", "weights"]
