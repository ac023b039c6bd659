"""What a Python user reads where no network is: a short traceback, whose end says what to do."""

from __future__ import annotations

import pytest

from tests.hub import ask

LOAD = "import capeval_core; capeval_core.load({})"
CASES = {
    "to convert": (LOAD.format("'pacs'"), ["Connection refused", "capeval convert pacs", 'weights="tiny"']),
    "on the Hub": (LOAD.format("'clips'"), ["Connection refused", "hf download timm/", 'weights="tiny"']),
    "a member": (
        LOAD.format("'eco', weights='tiny', members=['timm/vit_base_patch16_clip_224.openai']"),
        ["members: 'timm/vit_base_patch16_clip_224.openai'", "Connection refused"],
    ),
    "no such user": (
        LOAD.format("'pacs', weights='~nosuchuser/x'"),
        ["weights='~nosuchuser/x' is neither a folder, nor a Hub id"],
    ),
    "a judged set": (
        "from capeval_core.judgements.sets import load_set; load_set('nebula', 'org/nebula')",
        ["org/nebula: the data set could not be loaded from the Hub"],
    ),
    "a dataset": (
        "from capeval_core.training.captioned import load_rows; load_rows('org/captions', 'train', {})",
        ["dataset='org/captions' could not be loaded"],
    ),
    "publish": (
        "from capeval_core.publishing.publication import Publication, publish; "
        "list(publish([Publication('me/mine', 'model', {'README.md': b''}, 'first')]))",
        ["me/mine: http://127.0.0.1:9 cannot be reached", "Connection refused: try again later"],
    ),
}
"""What a user runs, and parts of the message."""
RUN = """
import json, traceback
found = {}
for name, code in %r.items():
    try:
        exec(code)
    except Exception:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tracebacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each case prints without a network, in a process of its own."""
    home = tmp_path_factory.mktemp("home")
    codes = {name: code for name, (code, _) in CASES.items()}
    found: dict[str, str] = ask(RUN % codes, "http://127.0.0.1:9", home, HF_TOKEN="hf_none")
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_traceback_without_a_network_is_short_and_ends_with_the_cause(
    name: str, tracebacks: dict[str, str]
) -> None:
    text = tracebacks[name]
    assert len(text.splitlines()) <= 40 and text.count("Traceback") == 1, text
    assert all(part in text for part in CASES[name][1]), text
    assert "httpx" not in text and "urllib3" not in text
