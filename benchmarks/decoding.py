"""Pictures that one core decodes and resizes per second, for three sizes of a photograph.

    python -m benchmarks.decoding [--rounds 7]

Each is a JPEG of quality 90 of scikit-learn's photograph (`pip install "capeval[dev]"`), which `ImageDecoder`
brings to the size of its network, with CLIP's 224 pixels instead of the small one's 48. Processor seconds of
the best round count, which other programs move little.
"""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import replace
from importlib import resources

from PIL import Image

from capeval_core.integrations.ray import ImageDecoder

SIZES = ((640, 427), (512, 341), (384, 256))
_BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    photograph = resources.files("sklearn") / "datasets" / "images" / "china.jpg"
    decoder = ImageDecoder("pacs", weights="tiny")
    decoder._preprocessing = replace(decoder._preprocessing, image_size=224)
    with photograph.open("rb") as file:
        image = Image.open(file).convert("RGB")
    for size in SIZES:
        encoded = io.BytesIO()
        image.resize(size, Image.Resampling.LANCZOS).save(encoded, "JPEG", quality=90)
        batch = {"image": [encoded.getvalue()] * _BATCH}
        seconds = []
        for _ in range(arguments.rounds + 1):
            start = time.process_time()
            decoder(batch)
            seconds.append(time.process_time() - start)
        rate = _BATCH / min(seconds[1:])
        print(f"{size[0]}x{size[1]}, {len(encoded.getvalue()) / 1e3:.0f} KB: {rate:.0f} pictures/s and core")


if __name__ == "__main__":
    main()
