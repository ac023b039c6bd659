"""`capeval publish`: modules, weights and cards to the Hub."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from capeval_core import publishing
from capeval_core.commands.terminal import WHOLE_LINES, Parser, first_named, flag, table
from capeval_core.errors import did_you_mean
from capeval_core.publishing import PYPI, Publication
from capeval_core.registry import METRICS
from capeval_core.weights.catalogue import NAMESPACE

KINDS = {
    "modules": "metrics, as Spaces that evaluate.load reads",
    "weights": "a folder of weights, as a model with its card",
    "cards": "cards of weights that are published already",
}
_Collect = Callable[[argparse.Namespace], list[Publication]]
_EPILOG = (
    "Log in first with `hf auth login`, or set HF_TOKEN. One commit for each repository that changes, none "
    "where nothing does; files that are only on the Hub stay, and nothing is ever tagged."
)


def run(arguments: list[str]) -> int:
    about = "Put what this package has onto the Hugging Face Hub, in any namespace."
    kind, rest = first_named(arguments, "publish", "WHAT", "[options]", about, KINDS, epilog=_EPILOG)
    if kind not in KINDS:
        raise ValueError(
            f"{kind!r} cannot be published{did_you_mean(kind, KINDS)} (known: {', '.join(KINDS)})"
        )
    usage, add_arguments = _OF_KIND[kind]
    parser = Parser(f"publish {kind}", f"{usage} [options]", f"Publish {KINDS[kind]}.", _EPILOG)
    text = f"user or organisation on the Hub; {NAMESPACE} (CAPEVAL_NAMESPACE) if it is not given"
    flag(parser, "--namespace NAME", text, default=NAMESPACE)
    flag(parser, "--branch NAME", "of the repositories, main by default", default="main")
    flag(parser, "--private", "make private repositories")
    flag(parser, "--message TEXT", "of the commits")
    flag(parser, "--dry-run", "list each file with its size, and what is not sent; send nothing")
    collect = add_arguments(parser)
    flags = parser.read(rest)
    publications = collect(flags)
    if flags.dry_run:
        print("\n".join(_planned(publication) for publication in publications))
        print("nothing was sent: this is what goes out without --dry-run")
        return 0
    sent = publishing.publish(publications, branch=flags.branch, private=flags.private, message=flags.message)
    for publication, commit, changed in sent:
        lines = [f"{publication.address}: {'commit' if changed else 'unchanged, at'} {commit}"]
        print("\n".join([*lines, *_not_sent(publication)]), flush=True)
    return 0


def _modules(parser: Parser) -> _Collect:
    flag(parser, "names NAME", f"of {', '.join(METRICS)}; all if none is given", nargs="*")
    text = (
        "where a Space installs capeval from: an address for pip, e.g. git+https://host/org/capeval@COMMIT, "
        f"or {PYPI}: this version, which has to be there"
    )
    flag(parser, "--install-from WHERE", text, required=True)
    return lambda flags: [
        publishing.module(name, flags.namespace, flags.install_from) for name in flags.names or METRICS
    ]


def _weights(parser: Parser) -> _Collect:
    flag(parser, "folder FOLDER", "of `capeval convert`, or in open_clip's format")
    flag(parser, "--name NAME", "of the repository; the folder's if it is not given")
    text = (
        "who allows to publish weights whose authors state no licence or restrict their use, and where; "
        "quoted in the commit and on the card"
    )
    flag(parser, "--permission TEXT", text)
    return lambda flags: [
        publishing.weights(flags.folder, flags.namespace, flags.name, flags.permission, flags.private)
    ]


def _cards(parser: Parser) -> _Collect:
    flag(parser, "names NAME", f"of {', '.join(publishing.cards())}", nargs="+")
    return lambda flags: [publishing.card(name, flags.namespace) for name in flags.names]


_OF_KIND: dict[str, tuple[str, Callable[[Parser], _Collect]]] = {
    "modules": ("[NAME ...] --install-from WHERE", _modules),
    "weights": ("FOLDER", _weights),
    "cards": ("NAME ...", _cards),
}
"""What each kind takes, and the function that adds its arguments."""


def _planned(publication: Publication) -> str:
    rows = []
    for path, content in sorted(publication.files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        rows.append([path, f"{size:,} bytes"])
    files = table(rows, indent="  ", width=WHOLE_LINES)
    return "\n".join([publication.address, files, *_not_sent(publication)])


def _not_sent(publication: Publication) -> list[str]:
    """One line that names the other files in the folder, where there are any."""
    names = ", ".join(name if name.isprintable() else ascii(name) for name in publication.not_sent)
    return [f"  not sent: {names}"] if names else []
