"""The CUDA kernels, compiled for three generations of GPUs without one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capeval_core.matching.triton_kernels import INTERPRETED, launch_options, match_kernel

assert not INTERPRETED
found = {}
for architecture in (80, 90, 100):
    for name, block, split in (("bf16", 64, True), ("fp32", 16, False)):
        options = launch_options(torch.bfloat16 if split else torch.float32, block, block)
        constants = {"BLOCK_X": block, "BLOCK_Y": block, "BLOCK_D": options.pop("BLOCK_D"), "SPLIT": split}
        types = dict.fromkeys(match_kernel.arg_names, "*i64")
        types |= dict.fromkeys(("x", "y"), f"*{name}") | dict.fromkeys(("x_scale", "y_scale"), "*fp32")
        types["width"] = "i32"
        types |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(match_kernel, signature=types, constexprs=constants)
        kernel = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        ptx = kernel.asm["ptx"]
        words = ("mma.sync", "wgmma", "tcgen05.mma", "atom.", "tf32")
        present = [word for word in words if word in ptx]
        found[f"{architecture} {name}"] = [len(kernel.asm["cubin"]) > 0, *present]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
def test_kernels_compile_without_a_gpu(tmp_path: object) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # Tensor cores for 16 bits; full float32 products, no TF32; atomic maxima only where a set is split.
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "80 bf16": [True, "mma.sync", "atom."],
        "80 fp32": [True],
        "90 bf16": [True, "wgmma", "atom."],
        "90 fp32": [True],
        "100 bf16": [True, "tcgen05.mma", "atom."],
        "100 fp32": [True],
    }
