from __future__ import annotations

import pytest
from PIL import Image

from tests.inputs.photographs import encoded, photograph


@pytest.fixture
def jpeg() -> bytes:
    return encoded(photograph())


@pytest.fixture
def grey() -> Image.Image:
    return Image.new("RGB", (48, 48), "grey")
