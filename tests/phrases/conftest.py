from __future__ import annotations

from pathlib import Path

import pytest

from tests.phrases import tiny_parser


@pytest.fixture(scope="session")
def parser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parser in transformers' format that knows the sentences of `tiny_parser.GRAPHS`."""
    folder = tmp_path_factory.mktemp("parser")
    tiny_parser.save(folder)
    return folder
