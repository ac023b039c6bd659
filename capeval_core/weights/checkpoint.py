"""Checkpoint files, one or an index and its shards, opened without running anything that they contain."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

INDEX = ".index.json"
"""How the name of an index ends: `model.safetensors.index.json`, `pytorch_model.bin.index.json`."""
_EXTRACT = (
    "python -c \"import torch; m = torch.jit.load('{0}', map_location='cpu'); torch.save({{'state_dict': "
    "m.state_dict()}}, '{0}.pth')\""
)


def read_checkpoint(path: str | Path, *, in_place: bool = False) -> dict[str, Any]:
    """What a checkpoint file holds under its names, in the order in which they were written. Pickles are read
    with ``torch.load(weights_only=True)`` and nothing else, so a file that would run code is refused. The
    first bytes, not the name, show the kind. A state dict is accepted bare, as ``{"state_dict": {...}}``, or
    in parts, as ``{"model": {...}, "epoch": 3}``, whose tensors are then named `model.` and so on. With
    `in_place` tensors stay in the file, mapped into memory, where its format allows that."""
    from safetensors.torch import load_file

    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the checkpoint file inside it")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: download the original checkpoint first")
    with path.open("rb") as file:
        head = file.read(24)
    # Since PyTorch 1.6 `torch.save` writes a zip around its pickle; before, a bare pickle (0x80).
    zipped = head.startswith(b"PK\x03\x04")
    # A safetensors file starts with the length of its header in 8 bytes, then JSON.
    safe = head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size
    if not zipped and not safe and not head.startswith(b"\x80"):
        problem = f"is not a checkpoint, or damaged (it begins with {head!r})" if head else "is empty"
        raise ValueError(f"{path} {problem}: expected a file of tensors, no web page or Git LFS pointer")
    try:
        if safe:
            return dict(load_file(path))
        names = zipfile.ZipFile(path).namelist() if zipped else []
        # TorchScript holds code, which `torch.load` would hand to `torch.jit.load`: it is never opened here.
        script = any(name.endswith("/constants.pkl") for name in names)
        with warnings.catch_warnings():
            # Of the pickle's protocol, with the advice to file an issue: the error below says what to do.
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
            mapped = in_place and zipped
            content = script or torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        # torch's own message advises weights_only=False, which nobody should do here: hence from None.
        code = re.search(r"(?:GLOBAL|Unsupported (?:global|class)) ([\w.]+)", str(error))
        problem = "it is damaged, or no file of tensors"
        if code is not None:
            problem = f"reading it would run code (it asks for {code[1]})"
        raise ValueError(
            f"{path} is refused: {problem}. Nothing was executed. Fetch it again, or ask its author for a "
            "plain state dict or a .safetensors file"
        ) from None
    except Exception as error:  # a damaged file raises whatever its reader raises
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise ValueError(f"{path} is damaged or incomplete: download it again ({reason})") from error
    if script:
        raise ValueError(
            f"{path} is a TorchScript archive (a program with its weights, as OpenAI distributes CLIP), "
            "not a state dict. Extract the tensors first, then convert the result:\n"
            f"    {_EXTRACT.format(path)}"
        )
    return _state_dict(content, path)


def read_shards(index: Path) -> tuple[dict[str, Any], list[Path]]:
    """All tensors of the shards beside an index, left in their files; the index and these files."""
    if not index.exists():
        raise FileNotFoundError(f"{index} does not exist: download the original checkpoint first")
    try:
        shard_of: dict[str, str] = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        names_of_shard: dict[str, list[str]] = {}
        for name, shard in shard_of.items():
            names_of_shard.setdefault(str(shard), []).append(name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is no index of shards ({error}): download it again") from error
    # An index of a stranger could name any file of this machine, `../../secret`.
    shards = sorted(names_of_shard)
    elsewhere = [shard for shard in shards if Path(shard).name != shard]
    if elsewhere:
        names = name_some(elsewhere, 2)
        raise ValueError(f"{index} names files elsewhere ({names}): they must lie beside it")
    files = [index]
    content: dict[str, Any] = {}
    for shard in shards:
        file = index.parent / shard
        files.append(file)
        # Mapped: the shards of EVA-CLIP-18B, for whose size there is an index, need not fit into memory.
        tensors = read_checkpoint(file, in_place=True)
        lacking = [name for name in names_of_shard[shard] if name not in tensors]
        if lacking:
            raise ValueError(f"{file} lacks {name_some(lacking, 3)}: download it again")
        for name in names_of_shard[shard]:
            content[name] = tensors[name]
    return content, files


def _state_dict(content: object, path: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by name, wrapped or in parts."""
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if isinstance(content, Mapping) and not _holds_tensors(content):
        content = _parts_as_one(content) or content
    if _holds_tensors(content) and all(isinstance(name, str) for name in content):
        return dict(content)
    kind = name_some(content) if isinstance(content, Mapping) else f"a {type(content).__name__}"
    expected = "expected names of tensors, bare or under 'state_dict'"
    raise ValueError(f"{path} holds no state dict: {expected}, found {kind}")


def _parts_as_one(content: Mapping[str, object]) -> dict[str, object]:
    """The tensors of the parts of a model, `{"encoder": {...}, "epoch": 3}`, under the names of both."""
    tensors: dict[str, object] = {}
    for name, part in content.items():
        if _holds_tensors(part):  # an epoch and the settings of a run hold none
            for key, tensor in part.items():
                tensors[f"{name}.{key}"] = tensor
    return tensors


def _holds_tensors(content: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(content, Mapping):
        return False
    return any(isinstance(value, torch.Tensor) for value in content.values())


def name_some(names: Iterable[object], most: int = 6) -> str:
    """The first few names of many, for a message: ``'a', 'b' and 7 more``."""
    quoted = list(map(repr, names))
    if not quoted:
        return "nothing"
    more = f" and {len(quoted) - most} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + more
