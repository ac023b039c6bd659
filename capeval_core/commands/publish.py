"""`capeval publish`: modules, weights and cards to the Hub."""

from __future__ import annotations

from capeval_core import publishing
from capeval_core.commands.terminal import WHOLE_LINES, Parser, first_named, flag, table
from capeval_core.publishing import PYPI, Publication
from capeval_core.registry import METRICS
from capeval_core.weights.catalogue import NAMESPACE

KINDS = {
    "modules": "metrics, as Spaces that evaluate.load reads",
    "weights": "a folder of weights, as a model with its card",
    "cards": "cards of weights that are published already",
}
_USAGE = {"modules": "[NAME ...] --install-from WHERE", "weights": "FOLDER", "cards": "NAME ..."}
_EPILOG = (
    "Log in first with `hf auth login`, or set HF_TOKEN. One commit for each repository that changes, none "
    "where nothing does; files that are only on the Hub stay, and nothing is ever tagged."
)


def run(arguments: list[str]) -> int:
    about = "Put what this package has onto the Hugging Face Hub, in any namespace."
    kind, rest = first_named(arguments, "publish", "KIND", "[options]", about, KINDS, epilog=_EPILOG)
    parser = Parser(f"publish {kind}", f"{_USAGE[kind]} [options]", f"Publish {KINDS[kind]}.", _EPILOG)
    text = f"user or organisation on the Hub; {NAMESPACE} (CAPEVAL_NAMESPACE) if it is not given"
    flag(parser, "--namespace NAME", text, default=NAMESPACE)
    flag(parser, "--branch NAME", "of the repositories, main by default", default="main")
    flag(parser, "--private", "make private repositories")
    flag(parser, "--message TEXT", "of the commits")
    flag(parser, "--dry-run", "list each file with its size, and what is not sent; send nothing")
    if kind == "modules":
        flag(parser, "names NAME", f"of {', '.join(METRICS)}; all if none is given", nargs="*")
        text = (
            "where a Space installs capeval from: an address for pip, e.g. "
            f"git+https://host/org/capeval@COMMIT, or {PYPI}: this version, which has to be there"
        )
        flag(parser, "--install-from WHERE", text, required=True)
    elif kind == "cards":
        flag(parser, "names NAME", f"of {', '.join(publishing.cards())}", nargs="+")
    else:
        flag(parser, "folder FOLDER", "of `capeval convert`, or in open_clip's format")
        flag(parser, "--name NAME", "of the repository; the folder's if it is not given")
        text = (
            "who allows to publish weights whose authors state no licence or restrict their use, and where; "
            "quoted in the commit and on the card"
        )
        flag(parser, "--permission TEXT", text)
    flags = parser.read(rest)
    space = flags.namespace
    if kind == "modules":
        publications = [publishing.module(name, space, flags.install_from) for name in flags.names or METRICS]
    elif kind == "cards":
        publications = [publishing.card(name, space) for name in flags.names]
    else:
        publications = [publishing.weights(flags.folder, space, flags.name, flags.permission, flags.private)]
    if flags.dry_run:
        print("\n".join(map(_planned, publications)))
        print("nothing was sent: this is what goes out without --dry-run")
        return 0
    sent = publishing.publish(publications, branch=flags.branch, private=flags.private, message=flags.message)
    for publication, commit, changed in sent:
        lines = [f"{publication.address}: {'commit' if changed else 'unchanged, at'} {commit}"]
        print("\n".join([*lines, *_not_sent(publication)]), flush=True)
    return 0


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
