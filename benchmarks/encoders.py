"""What CLIP's towers compute and move, and what an H100 needs for it by that: computed, not measured.

    python -m benchmarks.encoders > benchmarks/encoders.md

`benchmarks/cuda/towers.py` measures the same ways on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks import workload
from benchmarks.cuda.flops import transformer_flops

ARCHITECTURES: dict[str, dict[str, Any]] = {
    **workload.ARCHITECTURES,
    "ViT-bigG-14": {
        "embed_dim": 1280,
        "vision": {
            **{"image_size": 224, "layers": 48, "width": 1664, "patch_size": 14},
            **{"head_width": 104, "mlp_ratio": 4.9231},
        },
        "text": {"context_length": 77, "vocab_size": 49408, "width": 1280, "heads": 20, "layers": 32},
    },
}
PEAK, BANDWIDTH, PROCESSORS = 790e12, 3.0e12, 132
"""Of an H100: bfloat16 operations of a large product and bytes of a large copy a second, both measured on one
that these towers have not run on; multiprocessors."""
OF_PEAK = 0.92
"""Of the peak that a product is taken to reach where its tiles of 128x256 fill all multiprocessors."""
ATTENTION = 300e12
"""Operations a second that attention is taken to reach."""


INTRODUCTION = f"""# Blocks of CLIP's image towers on an H100: computed, not measured

bfloat16, {PEAK / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e12:.1f} TB/s. Products are taken to reach
{OF_PEAK:.0%} of the peak, less what the last wave of their tiles leaves idle; attention
{ATTENTION / 1e12:.0f} TFLOP/s; other
passes the bandwidth. Launches, patches and the shortcut in the last block are left out.
`python -m benchmarks.encoders` prints this.

What keeps open_clip's steps below the goals are passes over memory: QuickGELU takes three kernels, a norm of
16 bits three, a residual sum one. A product that applies its activation itself is what the goals need.
"""


def vision_flops(architecture: Mapping[str, Any], read: int | None = 1) -> float:
    """Operations for one image; `read` rows of the last block, None for all of them."""
    vision = architecture["vision"]
    width, patch = vision["width"], vision["patch_size"]
    cells = (vision["image_size"] // patch) ** 2
    tower = transformer_flops(cells + 1, width, _hidden(vision), vision["layers"], read=read)
    return 6 * cells * patch**2 * width + tower + 2 * width * architecture["embed_dim"]


def text_flops(architecture: Mapping[str, Any], lengths: Iterable[int], shared: int = 0) -> float:
    """Operations for texts of these many tokens, the first `shared` of which run once."""
    text = architecture["text"]
    width, total = text["width"], 0.0
    for length in lengths:
        own = length - shared
        total += transformer_flops(own, width, _hidden(text), text["layers"], read=1)
        total += 4 * width * shared * ((text["layers"] - 1) * own + 1)  # what they see of the shared ones
    return total


def _hidden(tower: Mapping[str, Any]) -> int:
    return int(tower["width"] * tower.get("mlp_ratio", 4.0))


def block_seconds(vision: Mapping[str, Any], batch: int, quick: bool) -> dict[str, list[float]]:
    """Of one block of an image tower: products, attention and other passes over memory, of each way."""
    width, hidden = vision["width"], _hidden(vision)
    tokens = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    rows = batch * tokens
    shapes = ((3 * width, width), (width, width), (hidden, width), (width, hidden))
    products = sum(_product(rows, columns, depth) for columns, depth in shapes)
    attention = max(4 * rows * tokens * width / ATTENTION, 8 * rows * width / BANDWIDTH)
    activation = 14 if quick else 4  # bytes of a number: three kernels, or one
    passes = {
        # Two norms, each with a cast to float32 and back; two sums.
        "open_clip's steps": (2 * 20 + 2 * 6) * width + activation * hidden,
        "compiled": 2 * 8 * width + 4 * hidden,
        "our passes": (2 * 4 + 2 * 2) * width + 4 * hidden,
        "our passes and product": (2 * 4 + 2 * 2) * width,
    }
    return {way: [products, attention, rows * moved / BANDWIDTH] for way, moved in passes.items()}


def _product(rows: int, columns: int, depth: int) -> float:
    waves = math.ceil(rows / 128) * math.ceil(columns / 256) / PROCESSORS
    return 2 * rows * columns * depth / (PEAK * OF_PEAK) * math.ceil(waves) / waves


def main() -> None:
    print(INTRODUCTION)
    print("| tower | batch | way | products, ms | attention | other passes | share of the peak |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, architecture in ARCHITECTURES.items():
        vision = architecture["vision"]
        tokens = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
        flops = transformer_flops(tokens, vision["width"], _hidden(vision), 1)
        for batch in (256, 1024):
            for way, seconds in block_seconds(vision, batch, name != "ViT-bigG-14").items():
                cells = " | ".join(f"{1e3 * part:.2f}" for part in seconds)
                share = flops * batch / sum(seconds) / PEAK
                print(f"| {name} | {batch} | {way} | {cells} | {share:.0%} |")


if __name__ == "__main__":
    main()
