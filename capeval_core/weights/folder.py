"""Folders of weights, checked: a local one, an embedded `tiny` one, or a commit of a Hub repository."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capeval_core.errors import InputError, Problem, expanded_path, setting, wrong_option
from capeval_core.limits import LIMITS
from capeval_core.store import cache_home, write_whole
from capeval_core.weights.catalogue import WeightsEntry, entry_known_as, entry_named, entry_of, weights_of
from capeval_core.weights.hub import download

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
TENSORS = "model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_TENSORS = "open_clip_model.safetensors"
VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
TINY = Path(__file__).parent / "tiny"
_AGAIN = "download or convert the weights again"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


class WeightsError(InputError):
    """Weights that could not be loaded or trusted; the message says which, why, and what to do."""


@contextmanager
def naming_weights(name: str) -> Iterator[None]:
    """Let errors about weights say which, unless they do."""
    try:
        yield
    except WeightsError as error:
        if repr(name) in str(error):
            raise
        raise WeightsError(f"weights {name!r}: {error}") from error


@dataclass(frozen=True)
class WeightsFolder:
    """A folder of weights, its config read and checked. name: a repository id, a folder's name, or `tiny`.
    revision: commit on the Hub, None for a local folder. checksum: of the tensors, for `verify`."""

    path: Path
    name: str
    revision: str | None
    config: dict[str, Any]
    tensor_file: Path
    checksum: str

    @property
    def original(self) -> str | None:
        """File name of the checkpoint that they were converted from, where that is noted."""
        source = self.config.get("source")
        return source.get("file") if isinstance(source, dict) else None

    @property
    def entry(self) -> WeightsEntry | None:
        """Their entry in the catalogue, by their name or by the file that they were converted from."""
        return entry_known_as(self.name, self.original)

    def label(self, fingerprint: str) -> str:
        """Name and version: the commit on the Hub, else the fingerprint, which also covers the config."""
        return f"{self.name}@{(self.revision or fingerprint)[:8]}"

    def verify(self) -> None:
        """Refuse a file of tensors that does not have the checksum; what was read is remembered."""
        # Gigabytes are hashed once per file and not at each start.
        checksum = file_checksum(self.tensor_file)
        if checksum != self.checksum:  # or what is remembered is wrong
            checksum = sha256_of(self.tensor_file)
        if checksum == self.checksum:
            return
        fix = "download or convert it again"
        if self.revision:
            # Without this flag the client's cache would give the same file again.
            file = f"{self.name} {self.tensor_file.name} --revision {self.revision}"
            fix = f"run `hf download {file} --force-download`"
        elif entry_named(self.name) is not None:
            fix = f"delete {self.path}, and run `capeval fetch {self.name}`"
        raise WeightsError(
            f"{self.tensor_file.name} has sha256 {checksum[:12]}..., but {CONFIG} has "
            f"{self.checksum[:12]}...: the file is damaged or was changed; {fix}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the folder, on the CPU, as stored; finite."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        with naming_weights(self.name):
            self.verify()
            try:
                tensors = load_file(self.tensor_file)
            except (SafetensorError, OSError, KeyError) as error:
                raise WeightsError(f"{self.tensor_file.name} cannot be read ({error}): {_AGAIN}") from error
            check_finite(tensors, f"download or convert {self.tensor_file.name} again")
        for name, tensor in tensors.items():
            # Last bits of products differ by where in memory a tensor begins: not where the file puts it.
            if tensor.data_ptr() % 64:
                tensors[name] = tensor.clone()
        return dict(tensors)


def check_finite(tensors: Mapping[str, Tensor], fix: str = _AGAIN) -> None:
    """Refuse tensors that hold NaN or infinity, which would make scores NaN."""
    import torch

    for name, tensor in sorted(tensors.items()):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # NaN comes through, and no copy of a large tensor is made; types of 8 bits have no such function.
        low, high = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
        if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
            raise WeightsError(f"tensor {name} holds NaN or infinity: {fix}")


def open_weights(weights: str | os.PathLike[str], *, metric: str, tiny: str) -> WeightsFolder:
    """The folder that `weights` means: a local one, a Hub repository (`org/name[@revision]`), or `"tiny"`.
    metric: what `capeval convert` calls such weights, for messages. tiny: folder of the embedded small
    model."""
    name = os.fspath(weights)
    path = expanded_path(name)
    if name == "tiny":
        return read_folder(TINY / tiny, "tiny")
    # A folder before a Hub id of the same name: what lies here is what the user sees.
    if name and path.is_dir():
        return read_folder(path, path.resolve().name, metric)
    if path.is_file():
        raise wrong_option("weights", name, "is a file", _how_to_convert(path, metric), kind=WeightsError)
    if not _may_be_on_the_hub(name):
        expected = "a folder, nor a Hub id (org/name[@revision]), nor 'tiny'"
        problem = f"is neither {expected}{_did_you_mean(name, metric)}"
        raise wrong_option("weights", name, problem, kind=WeightsError)

    # Never tiny or a plain CLIP instead: a number would come out, and nobody would ask from what.
    def unavailable(repository: str, reason: str) -> Exception:
        tiny = setting("weights", "tiny", "pass ")
        fix = f"To try the library without real weights, {tiny} (trained on synthetic scenes only)."
        hint = _did_you_mean(repository, metric)
        entry = entry_of(repository)
        if entry is not None:
            fix = f"{_elsewhere(entry)}\n{fix}"
            hint = ""
        return WeightsError(Problem("", f"weights {repository!r} could not be loaded ({reason}){hint}", fix))

    path = download(
        name,
        f"weights {name!r}",
        # Small files first: they show which format the tensors have.
        ["*config.json", VOCABULARY, TOKENIZER],
        lambda path: [OPEN_CLIP_TENSORS if (path / OPEN_CLIP_CONFIG).exists() else TENSORS],
        error=unavailable,
    )
    return read_folder(path, name.partition("@")[0], metric, path.name)


def _elsewhere(entry: WeightsEntry) -> str:
    """The way in which listed weights come here where the Hub does not give them."""
    advice = setting("weights", entry.folder, "pass ")
    if entry.files:
        return f"They come from their authors: run\n    capeval fetch {entry.folder}\nand {advice}."
    command = f"hf download {entry.repository} --local-dir {entry.folder}"
    return f"Where there is a network, download it with\n    {command}\ncopy the folder here, and {advice}."


def _how_to_convert(file: Path, metric: str) -> str:
    """The command that makes a folder of an original file: with the flags that the catalogue's need."""
    quoted = shlex.quote(str(file))
    entry = entry_known_as("", file.name)
    if entry is not None:
        command = f"capeval fetch {entry.folder} --from {quoted}"
        return f"convert it with `{command}` and {setting('weights', entry.folder, 'pass ')}"
    settings: list[str] = []
    for entry in weights_of(metric):
        for name, value in entry.settings.items():
            flag = f"`--{name} {value}`"
            if flag not in settings:
                settings.append(flag)
    flags = " or ".join(settings)
    more = f", with {flags} if it says that this is needed," if flags else ""
    return f"convert it with `capeval convert {metric} {quoted} --out FOLDER`{more} and pass the folder"


def _how_to_convert_clip(folder: Path, config: dict[str, Any], metric: str) -> str:
    """The command that converts a CLIP in transformers' format, with what its tensors do not show."""
    file = shlex.quote(str(folder / TENSORS))
    text = config.get("text_config") or {}
    vision = config.get("vision_config") or {}
    flags = f"--activation {shlex.quote(str(text.get('hidden_act', 'quick_gelu')))}"
    # Heads are 64 wide unless the config says otherwise.
    if text.get("hidden_size") and text.get("num_attention_heads"):
        flags += f" --text-heads {text['num_attention_heads']}"
    if vision.get("hidden_size") and vision.get("num_attention_heads"):
        flags += f" --head-width {vision['hidden_size'] // vision['num_attention_heads']}"
    return f"convert it with `capeval convert {metric} {file} {flags} --out FOLDER` and pass the folder"


def open_unless_on_the_hub(weights: str | os.PathLike[str], *, metric: str, tiny: str) -> None:
    """Raise the errors of `open_weights` that need no Hub."""
    name = os.fspath(weights)
    if expanded_path(name).exists() or not _may_be_on_the_hub(name):
        open_weights(name, metric=metric, tiny=tiny)


def _may_be_on_the_hub(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith((".", "~"))


def _did_you_mean(name: str, metric: str) -> str:
    """The nearest of the metric's weights, by folder or by the name of the model, such as `ViT-B/32`."""

    def plain(text: str) -> str:
        return re.sub(r"patch|[^a-z0-9]", "", re.sub("(b)ase|(l)arge", r"\1\2", text.lower()))

    # `ViT-B/32`, `vit_base_patch32` and `vit-b-32` are one: papers, timm and Hub ids spell it differently.
    names = {"tiny": "tiny"}  # of weights, by what they are called in plain letters
    for entry in weights_of(metric):
        names.setdefault(plain(entry.folder), entry.name)
        names.setdefault(plain(entry.title), entry.name)
    last_part = plain(name.rpartition("/")[2])
    close: list[str] = []
    for text in (plain(name), last_part):
        if len(text) > 3:  # `vit` alone is in the name of nearly all
            for letters in names:
                if text in letters:
                    close.append(letters)
    close += difflib.get_close_matches(last_part, names, n=1)
    return f": did you mean {names[close[0]]!r}?" if close else ""


def read_folder(path: Path, name: str, metric: str = "", revision: str | None = None) -> WeightsFolder:
    """A folder of weights under a name, its config read and its checksum verified."""
    from_convert = "pass a folder made by `capeval convert`, or an open_clip repository"
    of_open_clip = (path / OPEN_CLIP_CONFIG).exists()
    config_file = OPEN_CLIP_CONFIG if of_open_clip else CONFIG
    tensor_file = OPEN_CLIP_TENSORS if of_open_clip else TENSORS
    with naming_weights(name):
        # From the cheap to the costly: a wrong folder is refused before gigabytes are hashed.
        if not (path / config_file).exists():
            content = sorted(os.listdir(path)) if path.is_dir() else []  # noqa: PTH208
            names = ", ".join(content[:5]) or "nothing"
            raise WeightsError(f"{path} has no {CONFIG} (it holds {names}): {from_convert}")
        config = read_config(path / config_file)
        networks = [entry.network for entry in weights_of(metric)]
        # Their tensors have other names, and what these do not show, heads and activation, are flags there.
        if config.get("model_type") == "clip" and "clip" in networks:
            advice = _how_to_convert_clip(path, config, metric)
            raise WeightsError(f"a CLIP in transformers' format: {advice}")
        if not of_open_clip and config.get("format") != 1 and config.get("model_type") != "blip-2":
            problem = f'{CONFIG} is not one of ours (it lacks "format": 1)'
            raise WeightsError(f"{problem}: {from_convert}{_did_you_mean(name, metric)}")
        if not (path / tensor_file).is_file():
            raise WeightsError(f"{path} has no {tensor_file}: {_AGAIN}")
        # open_clip's repositories state none: they are compared by the lock.
        stated = _stated_checksums(config).get(tensor_file)
        # Tensors are read where they are needed: kept rows of these weights are recognised without.
        checksum = file_checksum(path / tensor_file) if stated is None else str(stated)
    return WeightsFolder(path, name, revision, config, path / tensor_file, checksum)


def config_checksum(config: dict[str, Any]) -> str:
    """sha256 of a config without this sum itself."""
    sums = dict(config.get("checksum", {}))
    sums.pop(CONFIG, None)
    # Of the content and not of the file: an editor may write it with other blanks.
    text = json.dumps({**config, "checksum": sums}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _stated_checksums(config: dict[str, Any]) -> dict[str, Any]:
    """The sha256 of files by name that a config states, whose own is compared."""
    expected = config.get("checksum", {})
    if not isinstance(expected, dict):
        raise WeightsError("in the config, checksum is not an object of file names and sha256")
    if expected.get(CONFIG, config_checksum(config)) != config_checksum(config):
        raise WeightsError(
            f"{CONFIG} is not as it was saved (its sha256 is another): it is damaged or was edited; download "
            f'or convert it again, or, if the edit is meant, take "{CONFIG}" out of its "checksum"'
        )
    return expected


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config, an object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise WeightsError(f"{path.name} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path.name} holds a {type(config).__name__}, expected an object")
    return config


def file_checksum(path: Path) -> str:
    """sha256 of a file, remembered while path, inode, size and times stay as they are. A file that changed
    just now is always read, since a second change may not show in the times."""
    stat = path.stat()
    if time.time() - max(stat.st_mtime, stat.st_ctime) < LIMITS.settled_seconds:
        return sha256_of(path)
    # The time of change (ctime) shows what was copied over with its old time of modification.
    identity = [path.resolve(), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    key = hashlib.sha256(repr(identity).encode("utf-8", "surrogateescape")).hexdigest()
    note = cache_home() / "checksums" / key
    with suppress(OSError, ValueError):
        noted_checksum = note.read_text(encoding="ascii")
        if re.fullmatch(r"[0-9a-f]{64}", noted_checksum):
            return noted_checksum
    checksum = sha256_of(path)
    with suppress(OSError):  # a read-only home costs a second hashing, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, checksum)
    return checksum


def sha256_of(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_words(file: Path) -> list[str]:
    """The words of a vocab.txt, or of a tokenizer.json."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.name != TOKENIZER:
            # Not splitlines, for which other characters end a line, too: a word each in large vocabularies.
            return text.removesuffix("\n").split("\n")
        words = json.loads(text)["model"]["vocab"]
        return sorted(words, key=words.__getitem__)  # by their ids
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{file} cannot be read ({error}): it holds the words of the token ids") from error


def open_foreign(
    model: str,
    what: str,
    files: Sequence[str],
    required: Sequence[Sequence[str]],
    *,
    default: str,
    without: str = "",
    tensors: Sequence[str] = (TENSORS,),
) -> tuple[Path, str, str | None]:
    """A model in transformers' format: its folder, its name, and its commit on the Hub (None: it is local).
    files: patterns of the files beside `tensors`. required: of each alternative one file must be there.
    default: a repository that fits. without: how to work without the model."""
    without = without and f" {without}"

    def unavailable(repository: str, why: str) -> Exception:
        advice = "" if repository == default else f" The default is {default}."
        return WeightsError(
            f"{what} {model!r} could not be loaded ({why}).{advice} Check the id and the connection, or "
            f"download it elsewhere (`hf download {repository} --local-dir FOLDER`) and pass the folder."
            f"{without}"
        )

    path = expanded_path(model)
    name = path.resolve().name
    commit = None
    if not path.is_dir():
        if not _may_be_on_the_hub(model):
            raise WeightsError(
                f"{what} {model!r} is neither a folder nor a Hub id (org/name[@revision]).{without}"
            )
        path = download(model, f"{what} {model!r}", list(files), lambda _: tensors, error=unavailable)
        name = model.partition("@")[0]
        commit = path.name
    for patterns in required:
        files_of_patterns = chain.from_iterable(map(path.glob, patterns))
        if not any(map(Path.is_file, files_of_patterns)):
            raise WeightsError(
                f"{what} {name!r} has no {' or '.join(patterns)} in {path}: pass a folder in "
                f"transformers' format with safetensors, such as {default} from the Hub.{without}"
            )
    return path, name, commit


def open_foreign_weights(
    weights: str | os.PathLike[str], what: str, model_type: str, *, default: str, without: str
) -> WeightsFolder:
    """The weights of a model in transformers' format of this type, or those that `capeval convert` made."""
    model = os.fspath(weights)
    if expanded_path(model).is_file():
        fix = f"convert it with `capeval convert regions {model} --out FOLDER` and pass the folder"
        raise WeightsError(f"{what} {model!r} is a file: {fix}")
    path, name, commit = open_foreign(
        model, what, ["*config.json"], [[CONFIG], [TENSORS]], default=default, without=without
    )
    config = read_config(path / CONFIG)
    converted = config.get("format") == 1  # by `capeval convert`, whose configs say so
    kind = config.get("encoder" if converted else "model_type")
    if kind != model_type:
        expected = f"expected {model_type!r}, such as {default}"
        raise WeightsError(f"{what} {model!r} is a model of type {kind!r}, {expected}")
    if converted:  # its config holds the checksum, which `open_weights` checks
        return open_weights(f"{name}@{commit}" if commit else path, metric="regions", tiny="regions")
    return WeightsFolder(path, name, commit, config, path / TENSORS, file_checksum(path / TENSORS))
