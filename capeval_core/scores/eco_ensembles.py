"""Which members ECO's ensemble has: presets, names, Hub ids and folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from capeval_core.errors import did_you_mean, wrong_option
from capeval_core.scores.eco_members import MATCHER, Dual, Matcher, Member, cannot_open
from capeval_core.weights.catalogue import ECO_MEMBERS, EVA_CLIP
from capeval_core.weights.folder import WeightsError, open_weights

PRESETS: dict[str, tuple[str, ...]] = {
    "paper": ("eva-clip-18b", "metaclip-bigg", "mobileclip-b", "openclip-bigg", MATCHER),
    "small": ("eva02-l14", "metaclip-l14", "mobileclip-b", "openclip-l14", MATCHER),
    "tiny": ("pacs-tiny", "alpha-clip-tiny", MATCHER),
}
"""`small` has the paper's five families in sizes of which each fits into 8 GB of a GPU."""
_TINY = {"pacs-tiny": "pacs", "alpha-clip-tiny": "hices"}


def open_members(
    chosen: str | Sequence[str] | None, matcher: Matcher
) -> tuple[list[Member], tuple[str, ...]]:
    """The matcher that filters first, then the others; and the names of the ensemble, in its order.

    Raises:
        ValueError: no member, one twice, or one called as the option `weights`.
        WeightsError: weights that cannot be had; names the member.
    """
    names = member_names(chosen, tiny=matcher.folder.name == "tiny")
    members: list[Member] = [matcher]
    called = []
    for name in names:
        if name == MATCHER:
            called.append(MATCHER)
            continue
        try:
            members.append(_member(name))
        except WeightsError as error:
            raise cannot_open(name, error) from error
        called.append(members[-1].name)
    named = [member.name for member in members]
    if twice := sorted({name for each in (called, named) for name in each if each.count(name) > 1}):
        raise ValueError(
            f"members: {', '.join(map(repr, twice))} comes twice: name each member once (a folder is "
            "called by its last part)"
        )
    if "weights" in called:  # as the signature calls the matcher that filters
        raise ValueError("members: a folder called 'weights' cannot be told from the option: rename it")
    return members, tuple(called)


def member_names(chosen: str | Sequence[str] | None, *, tiny: bool) -> list[str]:
    """The members that an option names.

    >>> member_names("small", tiny=False)
    ['eva02-l14', 'metaclip-l14', 'mobileclip-b', 'openclip-l14', 'blip2-itc']
    >>> member_names("mobileclip-b, blip2-itc", tiny=False)
    ['mobileclip-b', 'blip2-itc']
    """
    if chosen is None:
        chosen = "tiny" if tiny else "paper"
    if isinstance(chosen, str):
        chosen = PRESETS.get(chosen) or chosen.split(",")
    names = [str(name).strip() for name in chosen]
    if not names or not all(names):
        known = ", ".join([*PRESETS, *ECO_MEMBERS, *_TINY, MATCHER])
        fix = f"expected one or more of {known}, Hub ids or folders"
        raise wrong_option("members", chosen, "it names none", fix, verb="")
    return names


def check_members(chosen: str | Sequence[str] | None) -> None:
    """Refuse members that can be none, before any weights are opened.

    Raises:
        ValueError: no name at all. WeightsError: neither a known name, nor a Hub id, nor a folder.
    """
    known = [*ECO_MEMBERS, *_TINY, MATCHER]
    for name in [] if chosen is None else member_names(chosen, tiny=False):
        if name not in known and "/" not in name and not Path(name).expanduser().is_dir():
            found = f"it is neither known ({', '.join(known)}), nor a Hub id (org/name), nor a folder"
            raise cannot_open(name, WeightsError(f"{found}{did_you_mean(name, known)}"))


def _member(name: str) -> Member:
    from capeval_core.encoders.blip2 import Blip2Encoder
    from capeval_core.encoders.dual import dual_class

    if Path(name).expanduser().is_dir():
        folder = open_weights(name, metric="eco", tiny="")
        name = _called(folder.name)
    elif name in _TINY:
        folder = open_weights("tiny", metric="eco", tiny=_TINY[name])
    elif name in ECO_MEMBERS:
        entry = ECO_MEMBERS[name]
        folder = open_weights(entry.repository, metric=EVA_CLIP if entry.checkpoint else "eco", tiny="")
    else:
        folder = open_weights(name, metric="eco", tiny="")
        name = _called(folder.name)
    if Blip2Encoder.reads(folder):
        return Matcher(name, folder)
    dual_class(folder)  # told now, not after hours
    return Dual(name, folder)


def _called(name: str) -> str:
    """A name that can stand in a signature and name a folder of rows."""
    return re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2]).lower()
