"""The towers' CUDA kernels, compiled for three generations of GPUs without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from capeval_core.models.device import triton_version

SCRIPT = """
import json
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capeval_core.encoders.cuda_kernels import (
    activation_kernel, attention_kernel, attention_options, embed_kernel, norm_kernel, norm_options,
    patch_kernel,
)

TENSORS = dict.fromkeys(("x", "out", "patches", "query", "keys", "values"), "*bf16")
TENSORS |= dict.fromkeys(("shift", "weight", "bias", "first", "positions"), "*fp32")
TENSORS |= dict.fromkeys(("firsts", "lengths"), "*i64") | {"pixels": "*u8"}
FLOATS = {"epsilon", "scale", "mean_r", "mean_g", "mean_b", "std_r", "std_g", "std_b"}
constants = {
    norm_kernel: norm_options(1664),
    embed_kernel: norm_options(1024),
    activation_kernel: {"QUICK": False, "BLOCK": 4096, "num_warps": 8},
    patch_kernel: {"SIZE": 224, "PATCH": 14, "PADDED": 592, "BLOCK": 1024, "num_warps": 4},
    attention_kernel: attention_options(64, 64, 4, False, torch.bfloat16),
}
found = {}
for architecture in (80, 90, 100):
    for kernel, given in constants.items():
        options = {name: value for name, value in given.items() if name.islower()}
        fixed = {name: value for name, value in given.items() if not name.islower()}
        types = {name: TENSORS.get(name, "fp32" if name in FLOATS else "i32") for name in kernel.arg_names}
        types |= dict.fromkeys(fixed, "constexpr")
        source = ASTSource(kernel, signature=types, constexprs=fixed)
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        words = ("mma.sync", "wgmma", "tcgen05.mma", ".local")
        ptx = compiled.asm["ptx"]
        name = f"{architecture} {kernel.fn.__name__}"
        found[name] = [len(compiled.asm["cubin"]) > 0, *(word for word in words if word in ptx)]
print(json.dumps(found))
"""


@pytest.mark.system
@pytest.mark.skipif(triton_version() is None, reason="triton is not installed")
def test_kernels_compile_without_a_gpu(tmp_path: object) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    products = {"80": "mma.sync", "90": "wgmma", "100": "tcgen05.mma"}
    passes = ("norm_kernel", "embed_kernel", "activation_kernel", "patch_kernel")
    assert found == {
        **{f"{architecture} {name}": [True] for architecture in products for name in passes},
        **{f"{architecture} attention_kernel": [True, word] for architecture, word in products.items()},
    }
