"""Messages of the library, which speak of arguments, in the words of someone who looks at a page."""

from __future__ import annotations

import os
import re
from pathlib import Path

_PLACES = [
    (re.compile(r"\breferences\[\d+\]\[(\d+)\]"), lambda found: f"reference {int(found[1]) + 1}"),
    (re.compile(r"\breferences(\[\d+\])?(?= is empty)"), lambda found: "the list of references"),
    (re.compile(r"\bcaptions\[\d+\]\[(\d+)\]"), lambda found: f"line {int(found[1]) + 1}"),
    (re.compile(r"\bcaptions\[\d+\](?= is empty: every)"), lambda found: "the list of captions"),
    (re.compile(r"\bcaptions\[\d+\]"), lambda found: "the caption"),
    (re.compile(r"\bimages\[\d+\]"), lambda found: "the image"),
]
# What only a program can do is left out, as is an option that the page does not have.
_ONLY_IN_CODE = re.compile(r",? or (?:pass \w+=|raise PIL\.)[^;,:\n]*")
# What Pillow says of a damaged file may quote some of it.
_QUOTING = re.compile(r"\(truncated or damaged: .*\)")
_BEGINNING = re.compile(r"\A[a-z]|^  [a-z]", re.MULTILINE)  # of the message, and of each line of a list
_WEIGHTS = re.compile(r"""pass weights=(?P<quote>['"])(?P<name>.+?)(?P=quote)""")


def in_words_of_the_page(message: str, image: str | None = None) -> str:
    """A message of the library about one caption; `image` is the path that the user knows by its last part.

    >>> in_words_of_the_page('captions[0] is empty: write a caption or pass empty="score"')
    'The caption is empty: write a caption'
    >>> in_words_of_the_page("images[0]: cannot decode '/a/b/x.jpg' (truncated)", "/a/b/x.jpg")
    "The image: cannot decode 'x.jpg' (truncated)"
    >>> in_words_of_the_page("images[0] is None: every caption needs an image")
    'The image is missing: every caption needs an image'
    """
    if image:
        message = message.replace(image, Path(image).name)
    for place, name in _PLACES:
        message = place.sub(name, message)
    message = _QUOTING.sub("(truncated or damaged)", message)
    message = _ONLY_IN_CODE.sub("", message).replace(" is None", " is missing")
    message = _WEIGHTS.sub(_weights, message)
    return _BEGINNING.sub(lambda found: found[0].upper(), message)


def _weights(found: re.Match[str]) -> str:
    if found["name"] == "tiny":
        return "choose tiny"
    if "SPACE_ID" in os.environ:  # on the Hub, where nobody types commands
        return f"start this page with CAPEVAL_WEIGHTS={found['name']}"
    return f"start `capeval page` with --weights {found['name']}"
