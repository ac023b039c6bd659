__version__ = "0.1.0"

LICENCE = "Apache-2.0"
"""SPDX name of the package's licence, as in setup.cfg."""
ADDRESS: str | None = None
"""Where the project's source is, for cards and modules; None: it has no public address yet."""
