"""Checked folders of weights: local ones, embedded ones, and their errors."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.errors import renamed
from capeval_core.inputs.visual import InputImage
from capeval_core.weights.catalogue import PACS_B32, WEIGHTS, entry_of
from capeval_core.weights.folder import WeightsError, WeightsFolder, file_checksum, open_weights
from tests.hub import commit
from tests.support.seams import LIMITS
from tests.support.seeded import encoder, write_config

Config = dict[str, Any]


def opened(weights: str | Path) -> WeightsFolder:
    return open_weights(weights, metric="pacs", tiny="pacs")


def loaded(weights: str | Path) -> ClipEncoder:
    """As a metric does it: checksum, strict tensors, canary."""
    return ClipEncoder.open(opened(weights), device="cpu")


@pytest.fixture
def folder(seeded_weights: Path, tmp_path: Path) -> Path:
    """A copy of the seeded weights, to be damaged."""
    return Path(shutil.copytree(seeded_weights, tmp_path / "weights"))


def edit(folder: Path, change: Callable[[Config], Any], file: str = "config.json") -> None:
    config = json.loads((folder / file).read_text())
    change(config)
    write_config(folder, config, file)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], checksum: bool = True) -> None:
    """Change the tensors, and by default the checksum with them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    new = file_checksum(folder / "model.safetensors")
    if checksum:
        edit(folder, lambda config: config["checksum"].update({"model.safetensors": new}))


def test_a_saved_encoder_comes_back(seeded_weights: Path) -> None:
    weights = opened(seeded_weights)
    assert weights.revision is None and weights.name == "weights"
    again = loaded(seeded_weights)
    assert re.fullmatch(r"weights@[0-9a-f]{8}", weights.label(again.fingerprint))
    # Without a cache: a feature kept from another batch may differ in its last digits.
    first, second = (
        clip.encode_texts(["a dog"], cache=FeatureCache(0)).features for clip in (encoder(), again)
    )
    assert first == pytest.approx(second, rel=1e-5, abs=1e-6)
    assert loaded(seeded_weights) is again  # shared in the process while it is in use
    assert ClipEncoder.from_pretrained(seeded_weights, device="cpu") is again
    modes = {(seeded_weights / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1  # whoever can read one can read the other


def test_a_config_that_is_not_as_it_was_saved_is_refused(folder: Path) -> None:
    file = folder / "config.json"
    text = file.read_text()
    config = json.loads(text)
    mean = repr(config["preprocessing"]["mean"][1])
    changed = mean[:-1] + ("1" if mean[-1] == "0" else "0")  # the last digit: no canary would show it
    file.write_text(text.replace(mean, changed))
    with pytest.raises(WeightsError, match=r"config\.json is not as it was saved"):
        opened(folder)
    file.write_text(json.dumps(config, indent=3, sort_keys=True))  # the same in another form
    assert opened(folder).config == config
    config["preprocessing"]["mean"][1] = float(changed)
    del config["checksum"]["config.json"]
    file.write_text(json.dumps(config))
    assert opened(folder).config["preprocessing"]["mean"][1] == float(changed)


def test_a_home_folder_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert opened("~/weights").path == folder


def test_encoders_open_by_any_name_that_weights_have() -> None:
    with pytest.raises(WeightsError, match="did you mean 'tiny'"):
        ClipEncoder.from_pretrained("tinny")
    with pytest.raises(TypeError, match="force_download"):
        ClipEncoder.from_pretrained("tiny", force_download=True)  # type: ignore[call-arg]


def test_float16_and_bfloat16_tensors_are_read(folder: Path) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].half()
        tensors["ln_final.bias"] = tensors["ln_final.bias"].bfloat16()

    rewrite(folder, narrow)
    edit(folder, lambda config: config.pop("canary"))
    narrowed = loaded(folder)
    assert next(narrowed.model.parameters()).dtype.is_floating_point
    wide = encoder().encode_texts(["a dog"]).features
    assert narrowed.encode_texts(["a dog"]).features == pytest.approx(wide, abs=0.02)
    narrowed.save_pretrained(folder.parent / "again")
    kinds = {str(t.dtype) for t in load_file(folder.parent / "again" / "model.safetensors").values()}
    assert kinds == {"torch.float16", "torch.bfloat16"}
    direct = ClipEncoder(opened(folder).config, opened(folder).tensors(), device="cpu")
    assert np.array_equal(direct.encode_texts(["a cat"]).features, narrowed.encode_texts(["a cat"]).features)


def test_a_rounded_encoder_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float32"):
        encoder(dtype="bfloat16").save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("TINY", "did you mean 'tiny'"),
        ("pacs-clip-vit-b32", f"did you mean '{PACS_B32.repository}'"),
        ("no such folder", "neither a folder, nor a Hub id"),
        ("./weights", "neither a folder"),
        ("../a/b", "neither a folder"),
        ("/no/such/folder", "neither a folder"),
        ("~/weights/of/mine", "neither a folder"),
        ("", "neither a folder"),
        ("a/b/c", "neither a folder"),
        ("a/b@", "neither a folder"),
        ("a/b@c d", "neither a folder"),
        ("https://huggingface.co/a/b", "neither a folder"),
        ("a--b/c..d", "neither a folder"),
        ("-a/b.", "neither a folder"),
    ],
)
def test_strings_that_name_no_weights(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError) as caught:
        opened(name)
    assert message in str(caught.value) and repr(name) in str(caught.value)


def test_an_error_in_the_words_of_another_door() -> None:
    """Every door names the argument; the error survives pickling."""
    with pytest.raises(WeightsError) as caught:
        opened("tinny")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(error).startswith("weights='tinny' is neither a folder")
        with pytest.raises(WeightsError, match="base='tinny' is neither a folder"), renamed(weights="base"):
            raise error


def test_a_checkpoint_is_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "clip.pth").write_bytes(b"checkpoint")
    with pytest.raises(WeightsError, match=r"is a file: convert it with `capeval convert pacs \S+clip.pth"):
        opened(tmp_path / "clip.pth")


@pytest.mark.parametrize("name", ["config.json", "open_clip_config.json"])
def test_a_config_that_is_no_regular_file_is_named_so(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(WeightsError, match=rf"{name} cannot be read \(it is no regular file\)"):
        opened(tmp_path)


def test_an_empty_folder_and_one_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no config.json.*it holds nothing"):
        opened(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(WeightsError, match=r"no config.json.*pytorch_model.bin"):
        opened(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(WeightsError, match="not one of ours"):
        opened(tmp_path)


def test_a_config_without_tensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"has no model.safetensors"):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"format": 1'])
def test_an_unreadable_config(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(WeightsError, match=r"weights 'weights': config.json"):
        opened(folder)


DAMAGE: list[tuple[Callable[[Config], Any], str]] = [
    (lambda c: c.update(format=2), "format"),
    (lambda c: c.pop("architecture"), "architecture"),
    (lambda c: c["architecture"].pop("text"), "text"),
    (lambda c: c["architecture"].pop("embed_dim"), "embed_dim"),
    (lambda c: c.update(architecture="ViT-B/32"), "architecture"),
    (lambda c: c["architecture"]["vision"].update(width="wide"), "architecture"),
    (lambda c: c["architecture"]["vision"].update(timm_model_name="x"), "timm_model_name"),
    (lambda c: c["architecture"]["text"].update(hf_model_name="x"), "hf_model_name"),
    (lambda c: c["architecture"]["text"].update(vocab_size=100), "vocab_size"),
    (lambda c: c["architecture"]["vision"].update(layers=3), "are missing"),
    (lambda c: c["architecture"]["vision"].update(layers=1), "not part of the architecture"),
    (lambda c: c["architecture"].update(embed_dim=16), "another shape"),
    (lambda c: c.pop("activation"), "activation"),
    (lambda c: c.update(activation="relu"), "activation"),
    (lambda c: c.pop("preprocessing"), "preprocessing"),
    (lambda c: c["preprocessing"].pop("image_size"), "image_size"),
    (lambda c: c["preprocessing"].update(image_size=96), "image_size"),
    (lambda c: c["preprocessing"].update(image_size="64"), "image_size"),
    (lambda c: c["preprocessing"].update(mean=[0.5]), "mean"),
    (lambda c: c["preprocessing"].update(std=[0.5, 0.5, 0]), "std"),
    (lambda c: c["preprocessing"].update(interpolation="lanczos"), "interpolation"),
    (lambda c: c["preprocessing"].update(crop=True), "crop"),
    (lambda c: c["checksum"].update({"model.safetensors": "0" * 64}), "sha256"),
    (lambda c: c.update(checksum="abc"), "checksum"),
    (lambda c: c.update(canary={"cosines": [[1, 2]]}), "canary"),
    (lambda c: c.update(canary="yes"), "canary"),
    (lambda c: c.update(constants={"prompt": 5}), "prompt"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_a_damaged_config_is_refused(folder: Path, change: Callable[[Config], Any], message: str) -> None:
    edit(folder, change)
    with pytest.raises(WeightsError) as caught:
        loaded(folder)
    assert message in str(caught.value) and "weights 'weights'" in str(caught.value)


CANARY: list[Callable[[Config], Any]] = [
    lambda c: c.update(activation="gelu"),
    lambda c: c["preprocessing"].update(mean=[0.5, 0.5, 0.5]),
    lambda c: c["preprocessing"].update(std=[0.5, 0.5, 0.5]),
    lambda c: c["architecture"]["vision"].update(head_width=32),
    lambda c: c["architecture"]["text"].update(heads=4),
]


@pytest.mark.parametrize("change", CANARY)
def test_the_canary_shows_what_tensors_cannot(folder: Path, change: Callable[[Config], Any]) -> None:
    edit(folder, change)
    with pytest.raises(WeightsError, match="canary cosines are off by"):
        loaded(folder)


def test_without_a_canary_the_fingerprint_shows_it(folder: Path) -> None:
    edit(folder, lambda config: config.pop("canary"))
    fingerprints = {loaded(folder).fingerprint}
    for change in CANARY:
        edit(folder, change)
        fingerprints.add(loaded(folder).fingerprint)
    assert len(fingerprints) == 1 + len(CANARY)
    edit(folder, lambda config: config.update(source={"name": "other"}))
    assert loaded(folder).fingerprint in fingerprints


def test_the_canary_shows_exchanged_tensors(folder: Path) -> None:
    def exchange(tensors: dict[str, Any]) -> None:
        blocks = "transformer.resblocks.0.mlp.c_fc.weight", "transformer.resblocks.1.mlp.c_fc.weight"
        tensors[blocks[0]], tensors[blocks[1]] = tensors[blocks[1]], tensors[blocks[0]]

    rewrite(folder, exchange)
    with pytest.raises(WeightsError, match="canary"):
        loaded(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("text_projection"), "1 tensors are missing: 'text_projection'"),
        (lambda t: t.update(extra=t["visual.proj"].clone()), "not part of the architecture: 'extra'"),
        (
            lambda t: t.update({"visual.proj": t["visual.proj"].T.contiguous()}),
            "visual.proj (32, 128) instead of (128, 32)",
        ),
    ],
)
def test_tensors_are_read_strictly(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(WeightsError) as caught:
        loaded(folder)
    assert message in str(caught.value) and "convert the weights again" in str(caught.value)


def test_unreadable_tensors(folder: Path) -> None:
    edit(folder, lambda config: config.pop("checksum"))
    tensors = folder / "model.safetensors"
    whole = tensors.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\0" * 100, whole[:8] + b"?" * 100):
        tensors.write_bytes(content)
        with pytest.raises(WeightsError, match=r"model.safetensors cannot be read"):
            loaded(folder)


def test_one_flipped_bit_is_noticed(folder: Path) -> None:
    opened(folder)
    tensors = folder / "model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1000] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(WeightsError, match=r"has sha256.*damaged or was changed"):
        opened(folder)


def restamp(file: Path, seconds_ago: float) -> None:
    """Say that a file was last changed so long ago."""
    then = time.time() - seconds_ago
    os.utime(file, (then, then))


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where checksums are remembered."""
    monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path / "memory"))
    return tmp_path / "memory" / "checksums"


def test_tensors_do_not_lie_where_the_file_puts_them(folder: Path) -> None:
    """A product of the same numbers has other last bits where a factor begins elsewhere."""
    assert {tensor.data_ptr() % 64 for tensor in opened(folder).tensors().values()} == {0}


@pytest.mark.parametrize("stamp", [1_000_000_000, None])
def test_changes_within_one_tick_of_the_file_systems_clock_are_noticed(
    stamp: int | None, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "settled_seconds", 3600.0)  # however busy this machine is
    file = tmp_path / "file"
    seconds = int(time.time()) if stamp is None else stamp
    for i in range(300):
        content = f"{i:03}".encode()
        file.write_bytes(content)
        os.utime(file, (seconds, seconds))  # no time that anyone can set tells one content from the next
        assert file_checksum(file) == hashlib.sha256(content).hexdigest()
    assert not memory.exists()  # the checksum of a file that changed just now is not kept


def test_a_change_in_place_is_noticed_although_size_and_time_are_put_back(
    folder: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "settled_seconds", 0.0)  # as if seconds had passed each time
    tensors = folder / "model.safetensors"
    restamp(tensors, 3600)
    before = tensors.stat()
    opened(folder)
    assert len(list(memory.iterdir())) == 1  # so the next opening would trust it
    time.sleep(0.05)  # ticks of the clock
    with tensors.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1000, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(tensors, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = tensors.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    with pytest.raises(WeightsError, match=r"model.safetensors has sha256.*damaged or was changed"):
        opened(folder)


def test_another_file_in_the_place_is_noticed(
    folder: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "settled_seconds", 0.0)
    tensors = folder / "model.safetensors"
    content, before = bytearray(tensors.read_bytes()), tensors.stat()
    opened(folder)
    content[-1000] ^= 1
    beside = folder / "copy"
    beside.write_bytes(content)
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(tensors)
    with pytest.raises(WeightsError, match=r"model.safetensors has sha256"):
        opened(folder)


def test_checksums_of_settled_files_are_remembered(memory: Path) -> None:
    file = Path(json.__file__)  # nobody has touched it for a while
    first = file_checksum(file)
    assert first == hashlib.sha256(file.read_bytes()).hexdigest()
    (note,) = memory.iterdir()
    assert note.read_text() == first
    note.write_text("0" * 64)
    assert file_checksum(file) == "0" * 64  # it was not read again
    assert file_checksum(file, remembered=False) == first
    for damaged in ("half", "?" * 64, "\xff" * 64):
        note.write_text(damaged, encoding="latin-1")
        assert file_checksum(file) == first


def test_a_damaged_memory_does_not_condemn_weights(
    folder: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "settled_seconds", 0.0)
    first = opened(folder).checksum
    (note,) = memory.iterdir()
    note.write_text("0" * 64)
    assert opened(folder).checksum == first and note.read_text() == first


def test_a_memory_that_can_not_be_written_costs_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("CAPEVAL_CACHE", str(folder.parent / "file" / "below"))
    opened(folder)


def test_open_clips_own_format_gives_the_same_features(open_clip_folder: Path, images: list[Path]) -> None:
    theirs, ours = loaded(open_clip_folder), encoder("pacs-openclip-tiny")
    texts = ["a dog", "two red circles on a white ground"]
    a, b = (clip.encode_texts(texts).features for clip in (theirs, ours))
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    shown = [InputImage.of(path) for path in images]
    a, b = (next(clip.encode_images(shown)).features for clip in (theirs, ours))
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("preprocess_cfg"), "preprocess_cfg"),
        (lambda c: c["model_cfg"].pop("text_cfg"), "text_cfg"),
        (lambda c: c["preprocess_cfg"].pop("mean"), "mean"),
        (lambda c: c.update(model_cfg=3), "open_clip_config.json"),
        (lambda c: c["model_cfg"].update(vision_cfg="ViT"), "open_clip_config.json"),
        (lambda c: c["preprocess_cfg"].update(resize_mode="squash"), "resize_mode 'squash'"),
        (lambda c: c["preprocess_cfg"].update(interpolation="lanczos"), "lanczos"),
        (lambda c: c["preprocess_cfg"].update(size=[64, 32]), "size"),
        (lambda c: c["model_cfg"]["vision_cfg"].update(attentional_pool=True), "attentional_pool"),
    ],
)
def test_open_clip_configs_of_other_models_are_refused(
    open_clip_folder: Path, tmp_path: Path, change: Callable[[Config], Any], message: str
) -> None:
    folder = Path(shutil.copytree(open_clip_folder, tmp_path / "copy"))
    edit(folder, change, "open_clip_config.json")
    with pytest.raises(WeightsError) as caught:
        loaded(folder)
    assert message in str(caught.value) and "weights 'copy'" in str(caught.value)


def test_the_catalogues_activation_is_kept(open_clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capeval_core.weights.folder import _read

    edit_me = json.loads((open_clip_folder / "open_clip_config.json").read_text())
    assert "quick_gelu" not in edit_me["model_cfg"]
    with pytest.raises(WeightsError, match="activation is 'quick_gelu', but their config says 'gelu'"):
        ClipEncoder.open(_read(open_clip_folder, "timm/vit_base_patch32_clip_224.openai", commit("main")))


def test_the_catalogue_is_sound() -> None:
    assert len({entry.repository for entry in WEIGHTS}) == len(WEIGHTS)
    for entry in WEIGHTS:
        assert entry_of(entry.repository.upper()) is entry
        assert entry.settings.get("activation", "gelu") in ("gelu", "quick_gelu")
        assert entry.original.startswith("https://")
        steps = "".join(map(str, entry.how_to_convert("pacs")))
        if entry.checkpoint is None:
            assert f"hf download {entry.repository} --local-dir" in steps
        else:
            assert entry.original in steps
            assert f"capeval convert pacs {entry.checkpoint}" in steps
