"""The only file of the tests that imports internals of the package: what moves is mended here.

Everything else in `tests/` uses the public modules and `tests.support`. At most 60 names.
"""

from __future__ import annotations

from capeval_core.limits import LIMITS

__all__ = ["LIMITS"]
