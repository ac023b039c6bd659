"""What the compiler makes of the matching kernels, read from the machine code; no GPU is needed.

    python -m benchmarks.matching_kernels [--width 512] [--dtype bfloat16] [--architecture 90] [--tile 64x32]

One line per variant: registers a thread, spilled bytes, shared memory, programs that fit a multiprocessor at
once and the bytes of rows that they have in flight, which instruction multiplies, and how many bytes a load
of rows takes at once. By Little's law an H100 needs about 16 KB in flight on each multiprocessor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from capeval_core.matching.triton_kernels import INTERPRETED, SIZES, Tile, match_kernel

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
PRODUCTS = ("HGMMA", "UTCHMMA", "UTCQMMA", "HMMA", "FFMA")
# Registers and shared memory of a multiprocessor, threads, programs (of sm_80, 90 and 100 alike or less).
REGISTERS, SHARED, THREADS, PROGRAMS = 65536, {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}, 2048, 32


@dataclass(frozen=True)
class Variant:
    """One way of compiling the kernel."""

    tile: Tile
    width: int
    dtype: torch.dtype = torch.bfloat16
    architecture: int = 90
    measured: bool = False
    indices: bool = False
    split: bool = False


@dataclass(frozen=True)
class Report:
    """What was read from a variant's machine code."""

    variant: Variant
    registers: int
    stack: int
    spills: int
    shared: int
    products: dict[str, int]
    copied: dict[int, int]
    loaded: dict[int, int]
    shared_loads: int
    lines: int

    @property
    def programs(self) -> int:
        """Programs at once on a multiprocessor."""
        threads = self.variant.tile.warps * 32
        of_registers = REGISTERS // (threads * -(-self.registers // 8) * 8)
        of_shared = SHARED[self.variant.architecture] // (self.shared + 1024)
        return min(PROGRAMS, THREADS // threads, of_registers, of_shared)

    @property
    def in_flight(self) -> int:
        """Bytes of rows on their way at once to a multiprocessor, of full tiles."""
        tile, size = self.variant.tile, self.variant.dtype.itemsize
        stages = tile.stages - 1 if self.copied else 1
        return self.programs * stages * (tile.x + tile.y) * tile.depth * size

    def __str__(self) -> str:
        tile, variant = self.variant.tile, self.variant
        words = [f"{tile.x}x{tile.y}x{tile.depth} w{tile.warps} s{tile.stages}", f"D {variant.width}"]
        words += [f"sm_{variant.architecture}", NAMES[variant.dtype], tile.precision]
        words += [name for name in ("measured", "indices", "split") if getattr(variant, name)]
        found = f"{self.registers:3} registers, {self.spills} spills, {self.shared / 1024:.0f} KB shared, "
        found += f"{self.programs} programs, {self.in_flight / 1024:.0f} KB in flight, products "
        found += " ".join(f"{name} {count}" for name, count in self.products.items())
        found += f", copies {self.copied}, loads {self.loaded}, {self.shared_loads} LDS of {self.lines}"
        return f"{' '.join(words)}: {found}"


def compiled(variant: Variant) -> Any:
    """The variant as Triton compiles it for pointers that are divisible by 16, as torch allocates them."""
    assert not INTERPRETED, "unset TRITON_INTERPRET"
    options = variant.tile.options()
    constants = {name: options.pop(name) for name in ("BLOCK_X", "BLOCK_Y", "BLOCK_D", "PRECISION")}
    constants |= {"WIDTH": variant.width, "MEASURED": variant.measured, "INDICES": variant.indices}
    constants |= {"SPLIT": variant.split}
    types = dict.fromkeys(match_kernel.arg_names, "*fp32")
    types |= dict.fromkeys(("x", "y"), f"*{NAMES[variant.dtype]}") | {"work": "*i32", "odd": "*i32"}
    types |= dict.fromkeys(("x_index", "y_index", "x_codes", "y_codes"), "*i64") | dict.fromkeys(
        constants, "constexpr"
    )
    if not variant.measured:
        types |= dict.fromkeys(("x_scale", "y_scale"), f"*{NAMES[variant.dtype]}")
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if kind[0] == "*"
    }
    source = ASTSource(match_kernel, signature=types, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", variant.architecture, 32), options=options)


def read(variant: Variant) -> Report:
    """Compile a variant and read its machine code."""
    kernel = compiled(variant)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        code = _tool("nvdisasm", "-c", str(cubin))
    words = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", code, re.MULTILINE)
    assert words, "no machine code was read"
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Report(
        variant,
        registers=numbers["REG"],
        stack=numbers["STACK"],
        spills=sum(word.startswith(("STL", "LDL")) for word in words),
        shared=kernel.metadata.shared,
        products={name: count for name in PRODUCTS if (count := _count(words, name))},
        copied=_sizes(words, "LDGSTS"),
        loaded=_sizes(words, "LDG"),
        shared_loads=_count(words, "LDS") + _count(words, "LDSM"),
        lines=len(words),
    )


def _tool(name: str, *arguments: str) -> str:
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    return subprocess.run([str(folder / name), *arguments], capture_output=True, text=True, check=True).stdout


def _count(words: list[str], name: str) -> int:
    return sum(word.split(".")[0] == name for word in words)


def _sizes(words: list[str], name: str) -> dict[int, int]:
    """How many instructions of that name move so many bytes each."""
    found: dict[int, int] = {}
    for word in words:
        first, *rest = word.split(".")
        if first == name:
            bits = next((int(part) for part in rest if part in ("128", "64")), 32)
            bits = next((int(part[1:]) for part in rest if part in ("U8", "U16", "S16")), bits)
            found[bits // 8] = found.get(bits // 8, 0) + 1
    return dict(sorted(found.items()))


def variants(width: int, dtype: torch.dtype, architecture: int) -> Iterator[Variant]:
    """All that a call may take, without indices."""
    sizes = SIZES[dtype.itemsize]
    for x in sizes:
        for y in (size for size in sizes if size <= x):
            yield Variant(Tile.of(x, y, width, dtype.itemsize), width, dtype, architecture)
    largest = Tile.of(sizes[-1], sizes[-1], width, dtype.itemsize)
    yield Variant(largest, width, dtype, architecture, split=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, nargs="+", default=[512])
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), nargs="+", default=["bfloat16"]
    )
    parser.add_argument("--architecture", type=int, nargs="+", default=[90], choices=SHARED)
    parser.add_argument("--tile", help="only this one, as 64x32[xDEPTHxWARPSxSTAGES[xPRECISION]]")
    given = parser.parse_args()
    for architecture in given.architecture:
        for dtype in (getattr(torch, name) for name in given.dtype):
            for width in given.width:
                chosen = variants(width, dtype, architecture)
                if given.tile:
                    x, y, *rest = given.tile.split("x")
                    tile = Tile.of(int(x), int(y), width, dtype.itemsize)
                    if rest:
                        tile = Tile(int(x), int(y), *map(int, rest[:3]), *rest[3:])
                    chosen = iter([Variant(tile, width, dtype, architecture)])
                for variant in chosen:
                    print(read(variant), flush=True)


if __name__ == "__main__":
    main()
