"""Attention within packed sequences: in groups, in one launch, and one sequence at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from capeval_core.encoders import cuda_blocks, packed
from capeval_core.encoders.cuda_blocks import PYTORCH
from capeval_core.encoders.packed import Packing, attend, groups_of, starts_of
from capeval_core.encoders.uniter_model import Uniter, build_uniter
from capeval_core.encoders.vilbert_model import Vilbert, build_vilbert
from capeval_core.models import copies
from capeval_core.models.copies import arrays_of, indices_on_device, rows_on_device
from tests.support.seeded import uniter, vilbert

LENGTHS = [2, 3, 3, 9, 10, 40]
OTHERS = [2, 5, 4, 12, 10, 41]
"""At least as long, each."""
HEADS, WIDTH = 2, 16


def packing(lengths: Sequence[int]) -> Packing:
    return Packing(lengths, groups_of(LENGTHS), torch.from_numpy(starts_of(lengths)).int())


def rows(lengths: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), HEADS * WIDTH, generator=generator, dtype=torch.float64)


def one_by_one(query: Tensor, keys: Tensor, values: Tensor, own: Any, other: Any, causal: bool) -> Tensor:
    """Attention in (rows, heads, width), a sequence at a time, by offsets alone."""
    attended = []
    for i in range(len(own) - 1):
        q, k, v = (
            part[int(at[i]) : int(at[i + 1])].transpose(0, 1)
            for part, at in ((query, own), (keys, other), (values, other))
        )
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        weights = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        weights = weights.masked_fill(~mask, -torch.inf) if causal else weights
        attended.append((weights.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(attended)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """CUDA's two kernels as they are documented, on the CPU; the names of those that have run."""
    ran: list[str] = []

    def flash(q: Any, k: Any, v: Any, own: Any, other: Any, longest: int, *more: Any, **_: Any) -> Any:
        ran.append("flash")
        assert own.dtype == other.dtype == torch.int32 and longest == int(own.diff().max())
        nothing = torch.empty(0)
        return one_by_one(q, k, v, own, other, more[2]), nothing, nothing, nothing, nothing

    def efficient(q: Any, k: Any, v: Any, bias: Any, own: Any, other: Any, longest: int, *more: Any) -> Any:
        ran.append("efficient")
        assert bias is None and len(q) == len(k) == len(v) == 1 and more[2] in (0, 2)
        nothing = torch.empty(0)
        attended = one_by_one(q[0], k[0], v[0], own, other, more[2] == 2)[None]
        return attended, nothing, nothing, nothing, longest, more[0]

    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", flash, "CPU")
    library.impl("_efficient_attention_forward", efficient, "CPU")
    yield ran
    library._destroy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("firsts", [False, True])
@pytest.mark.parametrize("kernel", [None, "flash", "efficient"])
def test_all_ways_agree_with_one_sequence_at_a_time(
    kernel: Any, firsts: bool, causal: bool, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "kernel_of", lambda *_: kernel)
    own = packing(LENGTHS).firsts if firsts else packing(LENGTHS)
    other = packing(OTHERS)
    query, keys, values = rows(own.lengths, 0), rows(OTHERS, 1), rows(OTHERS, 2)
    with torch.inference_mode():
        found = attend(query, keys, values, HEADS, own, other, causal=causal)
    parts = [part.view(-1, HEADS, WIDTH) for part in (query, keys, values)]
    expected = one_by_one(*parts, starts_of(own.lengths), starts_of(OTHERS), causal).flatten(1)
    assert torch.allclose(found, expected, atol=1e-12)
    assert kernels == ([] if kernel is None else [kernel])


def test_attention_drops_weights_out() -> None:
    """With values of one, attention gives one: dropped weights take from it, the others are scaled up."""
    own = packing(LENGTHS)
    query, keys = rows(LENGTHS, 0), rows(LENGTHS, 1)
    torch.manual_seed(0)
    drawn = [attend(query, keys, torch.ones_like(keys), HEADS, own, own, dropout=0.5) for _ in range(200)]
    assert (drawn[0] != drawn[1]).any()
    assert torch.stack(drawn).mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_a_kernel_that_does_something_else_is_not_taken(
    kernel: Any, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = kernel, torch.device("cpu"), torch.float32, 16
    packed._usable.cache_clear()
    assert packed._usable(*settings) and kernels == [kernel]
    packed._usable.cache_clear()
    monkeypatch.setitem(globals(), "one_by_one", lambda query, *_: query)
    with pytest.warns(UserWarning, match=r"one launch cannot be used on cpu in torch.float32.* off by"):
        assert not packed._usable(*settings)
    packed._usable.cache_clear()


def test_causal_attention_is_that_of_torch() -> None:
    """`one_by_one` has a mask of its own, which this one pins."""
    query, keys, values = (rows([7], seed).view(7, HEADS, WIDTH) for seed in range(3))
    expected = scaled_dot_product_attention(
        *(part.transpose(0, 1) for part in (query, keys, values)), is_causal=True
    )
    found = one_by_one(query, keys, values, [0, 7], [0, 7], True)
    assert torch.allclose(found, expected.transpose(0, 1), atol=1e-12)


def test_networks_agree_in_one_launch_and_in_groups(
    kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of CUDA through whole networks: offsets, order and first rows."""
    of_uniter, of_vilbert = uniter().model, vilbert().model
    found = []
    for kernel in (None, "efficient"):
        monkeypatch.setattr(packed, "kernel_of", lambda *_, kernel=kernel: kernel)
        with torch.inference_mode():
            found.append([ranked(of_uniter), *matched(of_vilbert)])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    # UNITER's 2 layers; ViLBERT's 3 of texts and 2 of boxes up to the last block, 3 sides of 2 blocks
    assert len(kernels) == 2 + 3 + 2 + 3


TEXTS = [(2, 5, 3), (2, 3), (2, 5, 6, 7, 8, 3), (2, 9, 3)]
COUNTS = [1, 7, 36]


def ranked(model: Uniter) -> Tensor:
    weight = model.pooler.weight
    regions = [weight.new_full((count, weight.shape[1]), 0.1 * count) for count in COUNTS]
    return model.ranking_logits([regions[i % 3] for i in range(4)], TEXTS)


def matched(model: Vilbert) -> list[Tensor]:
    weight = model.region_embeddings.feature.weight
    features = [weight.new_full((count, weight.shape[1]), 0.1 * count) for count in COUNTS]
    locations = weight.new_full((sum(COUNTS), 5), 0.5)
    texts = model.lower_texts(TEXTS, 7)
    regions = model.lower_regions(torch.cat(features), locations, COUNTS)
    return model.text_states(texts, regions, [(i, i % 3) for i in range(4)], len(model.co_layers) - 1)


class Counted(TorchDispatchMode):
    """Operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [(torch.bfloat16, "_flash_attention_forward"), (torch.float32, "_efficient_attention_forward")],
)
def test_on_cuda_layers_attend_once_and_the_host_reads_nothing(
    dtype: torch.dtype, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors without memory, for which devices must fit, and which raise where the host reads one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(packed, "_usable", lambda *_: True)
    monkeypatch.setattr(cuda_blocks, "usable_kernels", lambda *_: PYTORCH)
    copied: list[int] = []

    def rows_without_memory(device: torch.device, arrays: Any, dtype: Any = None) -> Tensor:
        copied.append(sum(map(len, arrays)))
        return torch.empty(copied[-1], dtype=torch.int64, device=device)

    monkeypatch.setattr(copies, "rows_on_device", rows_without_memory)
    networks: list[tuple[Any, Any, Any, int, int]] = [
        (build_uniter, uniter(), ranked, 2, 1),
        (build_vilbert, vilbert(), matched, 3 + 2 + 3, 4),
    ]
    with FakeTensorMode():
        for build, encoder, run, attentions, most in networks:
            shapes = {name: tensor.shape for name, tensor in encoder.model.named_parameters()}
            tensors = {name: torch.empty(shape, device="cuda") for name, shape in shapes.items()}
            model = build(encoder.config["architecture"], tensors, str(dtype).removeprefix("torch."))
            with torch.inference_mode(), Counted() as counted:
                found = run(model)
            assert {rows.device.type for rows in found} == {"cuda"} and found[0].dtype == dtype
            assert counted.operations[kernel] == attentions
            assert not counted.operations.keys() & {
                "nonzero",
                "_local_scalar_dense",
                "_to_copy",
                "lift_fresh",
            }
            assert len(copied) == most
            copied.clear()


def test_copies_keep_every_row() -> None:
    halves = [np.float16([[1, 2]]), np.float16([[3, 4], [5, 6]])]
    copied = rows_on_device(torch.device("cpu"), halves, torch.float32)
    assert copied.tolist() == [[1, 2], [3, 4], [5, 6]] and copied.dtype == torch.float32
    lists = indices_on_device(torch.device("cpu"), [3, 1], np.arange(0), [2])
    assert [own.tolist() for own in lists] == [[3, 1], [], [2]]
    back = arrays_of(torch.split(copied.bfloat16(), [1, 0, 2])).values()
    assert [array.tolist() for array in back] == [[[1, 2]], [], [[3, 4], [5, 6]]]


def test_pinned_copies_are_one_and_keep_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of CUDA, to torch's device without memory."""
    monkeypatch.setattr(copies, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    sent: list[Tensor] = []
    monkeypatch.setattr(Tensor, "to", lambda self, *_, **__: sent.append(self) or self)
    lists = indices_on_device(torch.device("cuda"), [3, 1], np.arange(0), [2])
    assert [own.tolist() for own in lists] == [[3, 1], [], [2]]
    assert [own.tolist() for own in sent] == 2 * [[3, 1, 2]], "to the device, and its dtype"
