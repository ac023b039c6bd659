from __future__ import annotations

import pytest

from tests.inputs.photographs import encoded, photograph


@pytest.fixture
def jpeg() -> bytes:
    return encoded(photograph())
