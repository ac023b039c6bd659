"""Spaces on the Hub: a metric's module with its page and card."""

from __future__ import annotations

import re

from capeval_core._version import __version__
from capeval_core.publishing.publication import (
    CARD,
    Publication,
    PublishError,
    checked,
    in_namespace,
    shipped,
)
from capeval_core.registry import METRICS, metric_class

PYPI = "pypi"
_IN_A_CHECKOUT = re.compile(r"(?<=<!-- part loading -->\n).*?(?=\n\n|\n<!-- /part loading -->)", re.DOTALL)
"""The paragraph of a module's card that says how to load it from a checkout."""


def module(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads the module from, with its page and card.

    Args:
        name: of the metric.
        namespace: user or organisation on the Hub.
        install_from: where the Space, and users who lack the package, install it from: `"pypi"` (the Space
            takes this very version, which must be there), or an address that pip takes, e.g.
            `git+https://host/org/capeval@<commit>`.
    """
    metric_class(name)
    folder = shipped("hub_metrics", "metrics") / name
    if not folder.is_dir():
        raise PublishError(f"metric {name!r} has no module folder: {folder} does not exist")
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".pyc":
            content = path.read_bytes()
            if path.suffix in (".md", ".py", ".txt"):
                text = installing(content.decode(), install_from)
                if path.name == CARD:
                    text = _IN_A_CHECKOUT.sub(lambda _: _from_the_hub(install_from), text)
                content = in_namespace(text, namespace, METRICS).encode()
            found[path.name] = content
    title = metric_class(name).title
    return Publication(f"{checked(namespace)}/{name}", "space", found, f"{title}, capeval {__version__}")


def installing(text: str, source: str) -> str:
    """A requirement or a module's import comment that installs the package from `source`.

    >>> installing("capeval[page]", "git+https://host/org/capeval@1f3c9a2b")
    'capeval[page] @ git+https://host/org/capeval@1f3c9a2b'
    >>> installing("from capeval_core import x  # From: capeval", "git+https://host/org/capeval")
    'from capeval_core import x  # From: git+https://host/org/capeval'
    """
    if source == PYPI:
        return re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1=={__version__}", text, flags=re.MULTILINE)
    if not re.fullmatch(r"(git\+)?https://[^\s#]+", source):
        raise PublishError(
            f"install from {source!r}: expected {PYPI!r}, or an address that pip installs from "
            "(git+https://..., or https://... of a wheel)"
        )
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1 @ {source}", text, flags=re.MULTILINE)
    return re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _from_the_hub(install_from: str) -> str:
    package = "capeval" if install_from == PYPI else install_from
    return (
        f"The package must be installed: `pip install {package}`. "
        '`weights="tiny"` is a small packaged model that\n'
        "knows drawn shapes only: leave it out for photographs."
    )
