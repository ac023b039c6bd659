"""Spaces on the Hub: a metric's module with its page and card."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from capeval_core._version import __version__
from capeval_core.publishing.publication import (
    CARD,
    Publication,
    PublishError,
    checked,
    in_namespace,
    others,
    own_file,
)
from capeval_core.registry import METRICS, metric_class, module_path

PYPI = "pypi"
_IN_A_CHECKOUT = re.compile(r"`metrics/\.\.\.` is [^`]*`capeval`[^`]*`pip install \.` in a checkout\.")
"""What a module's card says about loading it from a checkout."""


def module(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads the module from, with its page and card.

    Args:
        name: of the metric.
        namespace: user or organisation on the Hub.
        install_from: where the Space, and users who lack the package, install it from: `"pypi"` (the Space
            takes this very version, which must be there), or an address that pip takes, e.g.
            `git+https://host/org/capeval@<commit>`. One with a password, a token or a query is refused.
    """
    folder = Path(module_path(name))
    package = "capeval" if install_from == PYPI else install_from
    loading = f"The package must be installed: `pip install {package}`."
    files: dict[str, bytes | Path] = {}
    for file in (CARD, "app.py", f"{name}.py", "requirements.txt"):
        if path := own_file(folder, file):
            text = installing(path.read_text(encoding="utf-8"), install_from)
            if file == CARD:
                text = _IN_A_CHECKOUT.sub(lambda _: loading, text)
            files[file] = in_namespace(text, namespace, METRICS).encode()
    return Publication(
        f"{checked(namespace)}/{name}",
        "space",
        files,
        f"{metric_class(name).title}, capeval {__version__}",
        not_sent=others(folder, files),
    )


def installing(text: str, source: str) -> str:
    """A requirement or a module's import comment that installs the package from `source`.

    >>> installing("capeval[page]", "git+https://host/org/capeval@1f3c9a2b")
    'capeval[page] @ git+https://host/org/capeval@1f3c9a2b'
    >>> installing("from capeval_core import x  # From: capeval", "git+https://host/org/capeval")
    'from capeval_core import x  # From: git+https://host/org/capeval'
    """
    if source == PYPI:
        return re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1=={__version__}", text, flags=re.MULTILINE)
    if why := _secret_in(source):
        raise PublishError(
            f"install from: {why} (the address is not repeated here), and everyone would read it on the "
            "Space: give one without, of a public place"
        )
    if not re.fullmatch(r"((git\+)?https|git\+ssh)://[^\s#]+", source):
        raise PublishError(
            f"install from {source!r}: expected {PYPI!r}, or an address that pip installs from "
            "(git+https://..., git+ssh://..., or https://... of a wheel)"
        )
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1 @ {source}", text, flags=re.MULTILINE)
    return re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _secret_in(source: str) -> str | None:
    """The part of an address that is, or may be, a secret; None: there is none."""
    try:
        parts = urlsplit(source)
        user, password, _ = parts.username, parts.password, parts.port
    except ValueError:
        return "its host or port cannot be read, as where a password holds a slash"
    before = re.match(r"[^/@\s]*:[^/@\s]*@", source)
    if password is not None or before or (user is not None and not parts.scheme.endswith("ssh")):
        return "the address holds a user name, a password or a token"
    if parts.query or ";" in source or "=" in parts.path:
        return "it holds a query, as those of signed addresses, or with a token, are"
    return None
