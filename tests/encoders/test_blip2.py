"""BLIP-2: against transformers' own forward, images counted, other formats, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder, Matches
from capeval_core.encoders.tokenizers import WordPiece
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import best_query_cosine
from capeval_core.models.batching import BatchSize
from capeval_core.weights.folder import WeightsError
from tests.golden import blip2_itm
from tests.golden.case import Case, words
from tests.hub import Repository, ask, serving
from tests.support.seeded import write_config

CASE = Case(Path(__file__).parents[1] / "golden" / "cases" / "blip2-itm")


def convert(folder: Path, checkpoint: Path | None = None, **settings: Any) -> Any:
    """The seeded checkpoint, in LAVIS's format unless another is given, converted."""
    settings = blip2_itm.settings(CASE, folder) | settings
    return Blip2Encoder.convert(checkpoint or blip2_itm.lavis(CASE, folder), **settings)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder of the seeded model; not to be changed."""
    place = tmp_path_factory.mktemp("blip2")
    release = convert(place)
    Blip2Encoder(release.config, release.tensors, device="cpu").save_pretrained(place / "weights")
    return place / "weights"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded model in transformers' format; not to be changed."""
    return blip2_itm.transformers(CASE, tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def encoder(weights: Path) -> Blip2Encoder:
    return Blip2Encoder.from_pretrained(weights, device="cpu")


def image(seed: int, height: int = 40, width: int = 56) -> InputImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return InputImage.of(pixels, where=f"images[{seed}]")


def captions(count: int, seed: int = 0) -> list[str]:
    """Distinct texts of one to ten words."""
    rng = np.random.default_rng([seed, 3])
    return [
        " ".join(f"w{word}" for word in rng.integers(1, 99, rng.integers(1, 11))) + f" w{index % 99 + 1}"
        for index in range(count)
    ]


def match(encoder: Blip2Encoder, *arguments: Any, **more: Any) -> list[Matches]:
    return list(encoder.match(*arguments, **{"cache": FeatureCache(0), **more}))


@contextmanager
def towers(encoder: Blip2Encoder) -> Iterator[dict[str, int]]:
    """Rows that run through the vision tower, and through the Q-Former."""
    count = {"vision": 0, "qformer": 0}

    def hook(name: str) -> Callable[..., None]:
        def add(module: Any, inputs: Any, output: Any) -> None:
            count[name] += len(output)

        return add

    hooks = [
        encoder.model.vision_model.embeddings.register_forward_hook(hook("vision")),
        encoder.model.qformer.layernorm.register_forward_hook(hook("qformer")),
    ]
    try:
        yield count
    finally:
        for handle in hooks:
            handle.remove()


def itc(matches: Matches) -> NDArray[np.float32]:
    """Cosine of each caption with the image's best query token."""
    return best_query_cosine(matches.queries, matches.text_features)


@torch.inference_mode()
def plain_loop(encoder: Blip2Encoder, shown: InputImage, texts: list[str]) -> tuple[Any, Any]:
    """Cosines and logits by transformers' own forward, image and caption by caption."""
    pixels = torch.from_numpy(encoder.preprocess(shown.load()))[None]
    contrast, logits = [], []
    for ids in encoder.tokenizer.encode(texts).ids:
        given = {
            "pixel_values": pixels,
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        }
        contrast.append(encoder.model(**given).logits_per_image[0, 0])
        logits.append(encoder.model(**given, use_image_text_matching_head=True).logits_per_image[0])
    return torch.stack(contrast).numpy(), torch.stack(logits).numpy()


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_it_is_transformers_own_forward(encoder: Blip2Encoder, batch_size: int | None) -> None:
    shown = [image(seed, 40 + 9 * seed, 90 - 11 * seed) for seed in range(4)]
    pools = [captions(7, 1), captions(7, 2), captions(2, 3), captions(1, 4)]
    for one, texts, found in zip(
        shown, pools, match(encoder, shown, pools, batch_size=batch_size), strict=True
    ):
        contrast, logits = plain_loop(encoder, one, texts)
        assert np.allclose(itc(found), contrast, atol=2e-6) and np.allclose(found.logits, logits, atol=1e-5)
        assert np.allclose(found.itm, torch.from_numpy(logits).softmax(-1)[:, 1], atol=2e-6)
        assert (found.key, found.error, found.truncated) == (one.key, None, [0] * len(texts))
    assert found.itm.dtype == itc(found).dtype == np.float32


def test_a_image_runs_once_for_sixty_captions(encoder: Blip2Encoder) -> None:
    kept, texts = FeatureCache(), captions(60)
    with towers(encoder) as count:
        (first,) = match(encoder, [image(0)], [texts], cache=kept)
    assert count == {"vision": 1, "qformer": 1 + 60 + 60}  # alone; with each caption; each caption alone
    with towers(encoder) as count:
        (again,) = match(encoder, [image(0)], [texts[::-1]], cache=kept)
        (features,) = encoder.encode_images([image(0)], cache=kept)
        text_features = encoder.encode_texts(texts, cache=kept).features
    assert count == {"vision": 0, "qformer": 0}
    assert np.array_equal(again.logits, first.logits[::-1]) and np.array_equal(itc(again), itc(first)[::-1])
    assert np.array_equal(best_query_cosine(features.features[0], text_features), itc(first))
    with towers(encoder) as count:  # states are not kept, so a further caption costs the image again
        match(encoder, [image(0)], [[*texts, "w5 w4 w3"]], cache=kept)
    assert count == {"vision": 1, "qformer": 3}


def test_equal_images_and_captions_run_once(encoder: Blip2Encoder) -> None:
    texts = captions(3)
    with towers(encoder) as count:
        found = match(encoder, [image(1), image(2), image(1)], [texts, texts, [texts[0], *texts]])
    assert count == {"vision": 2, "qformer": 2 + 6 + 3}
    assert found[2].logits.tolist() == [found[0].logits[i].tolist() for i in (0, 0, 1, 2)]


def test_more_images_than_are_read_at_a_time(encoder: Blip2Encoder) -> None:
    shown = [image(seed) for seed in range(7)]
    pools = [captions(seed, seed) for seed in range(7)]
    one_by_one = [match(encoder, [one], [pool])[0] for one, pool in zip(shown, pools, strict=True)]
    for batch_size in (2, None):
        found = match(encoder, iter(shown), iter(pools), batch_size=batch_size)
        for part, expected in zip(found, one_by_one, strict=True):
            assert np.allclose(part.logits, expected.logits, atol=1e-5)
            assert np.allclose(itc(part), itc(expected), atol=2e-6)
    assert itc(found[0]).shape == (0,) and found[0].logits.shape == (0, 2) and found[0].itm.shape == (0,)


def test_running_out_of_memory_halves_the_batch(
    encoder: Blip2Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    forward = Blip2Encoder.match_logits

    def limited(self: Blip2Encoder, states: Any, texts: Any) -> Any:
        sizes.append(len(texts))
        if len(texts) > 3:
            raise torch.OutOfMemoryError("no")
        return forward(self, states, texts)

    (expected,) = match(encoder, [image(3)], [captions(12)])
    monkeypatch.setattr(Blip2Encoder, "match_logits", limited)
    monkeypatch.setattr(encoder, "_automatic_texts", BatchSize(2048, automatic=True))
    (found,) = match(encoder, [image(3)], [captions(12)])
    assert np.allclose(found.logits, expected.logits, atol=1e-5) and sizes[:3] == [12, 6, 3]
    with pytest.raises(MemoryError, match="batch_size=8 does not fit into memory"):
        match(encoder, [image(3)], [captions(12)], batch_size=8)


def test_long_captions_are_cut_at_32_ids_and_counted(encoder: Blip2Encoder) -> None:
    long = " ".join(f"w{index % 99 + 1}" for index in range(40))
    cut = " ".join(long.split()[:30])
    (found,) = match(encoder, [image(4)], [[long, cut, long + " w7"]])
    assert found.truncated == [10, 0, 11]
    assert np.array_equal(found.logits[0], found.logits[1]) and itc(found)[0] == itc(found)[2]
    assert encoder.encode_texts([long, cut]).truncated == [10, 0]


def test_a_image_that_cannot_be_read_costs_its_own_captions(encoder: Blip2Encoder, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    broken = [
        InputImage.of(tmp_path / name, where=f"images[{place}]")
        for place, name in ((1, "broken.png"), (2, "none.png"))
    ]
    shown = [image(5), *broken, image(6)]
    texts = captions(2)
    with towers(encoder) as count:
        found = match(encoder, shown, [texts] * 4)
    assert count["vision"] == 2
    assert [part.error is None for part in found] == [True, False, False, True]
    assert "images[1]" in str(found[1].error) and "broken.png" in str(found[1].error)
    assert "images[2]" in str(found[2].error) and found[2].key == ""
    for part in found[1:3]:
        assert np.isnan(itc(part)).all() and np.isnan(part.itm).all() and part.logits.shape == (2, 2)
    assert np.allclose(itc(found[3]), itc(match(encoder, [shown[3]], [texts])[0]), atol=2e-6)
    (features,) = encoder.encode_images(shown[:2], cache=FeatureCache(0))
    assert features.features.shape == (2, 6, 16) and np.isnan(features.features[1]).all()


def test_every_image_needs_its_list(encoder: Blip2Encoder) -> None:
    with pytest.raises(ValueError, match="there are 1 lists of captions but more images: give every"):
        match(encoder, [image(0), image(1)], [["w1"]])
    with pytest.raises(ValueError, match="there are 1 images but more lists of captions"):
        match(encoder, [image(0)], [["w1"], ["w2"]])
    with pytest.raises(ValueError, match=r"captions\[0\] is one text, expected a list.*\['w1 w2'\]"):
        match(encoder, [image(0)], ["w1 w2"])


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision_is_near(weights: Path, encoder: Blip2Encoder, dtype: str, tolerance: float) -> None:
    half = Blip2Encoder.from_pretrained(weights, device="cpu", dtype=dtype)
    shown, texts = [image(seed) for seed in range(3)], captions(9)
    for a, b in zip(match(half, shown, [texts] * 3), match(encoder, shown, [texts] * 3), strict=True):
        assert np.abs(itc(a) - itc(b)).max() < tolerance and np.abs(a.itm - b.itm).max() < tolerance
    assert half.fingerprint == encoder.fingerprint
    assert half.pair_key("x", (1,)) != encoder.pair_key("x", (1,))


def test_a_probability_never_overflows() -> None:
    logits = np.float32([[3e4, -3e4], [-3e4, 3e4], [1, 1]])
    found = Matches(np.empty((2, 4), np.float32), np.empty((3, 4), np.float32), logits, "", None, [0, 0, 0])
    assert found.itm.tolist() == [0, 1, 0.5]


@pytest.mark.parametrize(("size", "first"), [((60, 62), "width"), ((60, 70), "height"), ((80, 40), "width")])
def test_the_order_of_the_two_resizes(encoder: Blip2Encoder, size: tuple[int, int], first: str) -> None:
    """Rounding between them makes pixels depend on it: tall images are made lower first."""
    pixels = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    made = {}
    for name, middle in (("width", (56, size[1])), ("height", (size[0], 56))):
        image = Image.fromarray(pixels)
        for sides in (middle, (56, 56)):
            image = image.resize(sides, Image.Resampling.BICUBIC)
        made[name] = np.asarray(image).transpose(2, 0, 1)
    assert not np.array_equal(made["width"], made["height"])
    assert np.array_equal(encoder.prepare_visual(Image.fromarray(pixels)), made[first])


def test_images_are_squares_of_rgb(encoder: Blip2Encoder) -> None:
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50), dtype=np.uint8))
    found = encoder.prepare_visual(grey.convert("RGBA"))
    assert found.shape == (3, 56, 56) and np.array_equal(found[0], found[1])
    palette = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) % 2 * 255).convert("P")
    assert len(np.unique(encoder.prepare_visual(palette))) > 2  # interpolated: converted before it is resized


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "run", "##ning", "cafe", ",", ".",
         "'", "[", "]", "sep", "犬", "!", "s"]  # fmt: skip


def test_ids_are_those_of_berts_tokenizer(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    original = BertTokenizer(str(tmp_path / "vocab.txt"))
    texts = [
        "A dog's running, DOGS run.",
        "Café\t a\x00\u200b dog!",
        "犬a",
        "",
        "x" * 101 + " dog",
        "a  dog " * 20,
    ]
    ours = WordPiece(WORDS, 32).encode(texts)
    expected = [tuple(original(text, truncation=True, max_length=32)["input_ids"]) for text in texts]
    assert ours.ids == expected
    assert ours.truncated == [0, 0, 0, 0, 0, 10]


def test_marks_inside_a_text_are_words() -> None:
    tokens = WordPiece(WORDS, 32).encode(["a [SEP] dog", "<image>"])
    assert tokens.ids[0] == (2, 5, 14, 16, 15, 6, 3) and set(tokens.ids[1][1:-1]) == {1}


def test_saved_weights_are_the_same(weights: Path, encoder: Blip2Encoder) -> None:
    names = sorted(path.name for path in weights.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "vocab.txt"]
    config = json.loads((weights / "config.json").read_text())
    assert config["vocabulary"]["file"] == "vocab.txt" and len(config["canary"]["cosines"][0]) == 6
    assert config["source"]["licence"] == "BSD-3-Clause" and config["context_length"] == 32
    assert (weights / "vocab.txt").read_text().split("\n")[:-1] == encoder.config["vocabulary"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "vocab.txt").write_text("[PAD]\n"), "vocab.txt is not the one that these weights"),
        (lambda f: (f / "vocab.txt").unlink(), "vocab.txt cannot be read"),
        (lambda f: edit(f, lambda c: c.pop("context_length")), "lacks context_length"),
        (lambda f: edit(f, lambda c: c["architecture"]["vision"].update(hidden_size=40)), "another shape"),
        (lambda f: edit(f, lambda c: c["architecture"]["qformer"].pop("hidden_size")), "do not belong toge"),
        (
            lambda f: edit(f, lambda c: c["architecture"]["vision"].update(num_attention_heads=8)),
            "the canary cosines are off",
        ),
        (
            lambda f: edit(f, lambda c: c["preprocessing"].update(mean=[0, 0, 0])),
            "the canary cosines are off",
        ),
        (
            lambda f: edit(f, lambda c: c.update(encoder="clip")),
            "weights of encoder 'clip', expected 'blip2'",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    weights: Path, tmp_path: Path, change: Callable[[Path], Any], message: str
) -> None:
    folder = Path(shutil.copytree(weights, tmp_path / "changed"))
    change(folder)
    with pytest.raises(WeightsError, match=message):
        Blip2Encoder.from_pretrained(folder, device="cpu")


def edit(folder: Path, change: Callable[[Any], Any], file: str = "config.json") -> None:
    config = json.loads((folder / file).read_text())
    change(config)
    write_config(folder, config, file)


def test_a_repository_of_transformers_itself(encoder: Blip2Encoder, tmp_path: Path) -> None:
    """Saved by transformers' own code, the words in tokenizer.json alone, marks added for images."""
    from transformers import BertTokenizerFast

    encoder.model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    (tmp_path / "words.txt").write_text("\n".join(words(CASE.config["qformer_config"]["vocab_size"])))
    tokenizer = BertTokenizerFast(str(tmp_path / "words.txt"))
    tokenizer.add_tokens(["[DEC]", "<image>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    edit(tmp_path, lambda config: config.update(image_token_index=119))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"resample": 3}}))
    direct = Blip2Encoder.from_pretrained(tmp_path, device="cpu")
    (ours,), (found,) = (match(e, [image(7)], [captions(4)]) for e in (encoder, direct))
    assert np.allclose(found.logits, ours.logits, atol=1e-5) and np.allclose(itc(found), itc(ours), atol=2e-6)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "config.json",
            lambda c: c.update(architectures=["Blip2ForConditionalGeneration"]),
            "expected a Blip2",
        ),
        ("config.json", lambda c: c.update(model_type="clip"), "not one of ours"),
        ("config.json", lambda c: c.update(vision_config=3), "config.json cannot be understood"),
        ("preprocessor_config.json", lambda c: c.update(resample=2), "by method 2, expected 3 .bicubic."),
        ("vocab.txt", None, "has neither vocab.txt nor a tokenizer.json"),
        ("preprocessor_config.json", None, "has no preprocessor_config.json"),
    ],
)
def test_other_repositories_are_refused(
    theirs: Path, tmp_path: Path, file: str, change: Callable[[Any], Any] | None, message: str
) -> None:
    folder = Path(shutil.copytree(theirs, tmp_path / "changed"))
    if change is None:
        (folder / file).unlink()
    else:
        edit(folder, change, file)
    with pytest.raises(WeightsError, match=message):
        Blip2Encoder.from_pretrained(folder, device="cpu")


@pytest.mark.system
def test_from_the_hub(theirs: Path, tmp_path: Path) -> None:
    code = """
import json
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
found = {"good": Blip2Encoder.from_pretrained("org/itm", device="cpu").describe(
    Blip2Encoder.from_pretrained("org/itm", device="cpu").config)}
for name, encoder in (("Salesforce/blip2-itm-vit-g-coco", Blip2Encoder), ("org/itm", ClipEncoder)):
    try:
        encoder.from_pretrained(name)
    except ValueError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
    with serving({"org/itm": Repository.of({"main": theirs})}) as hub:
        found = ask(code, hub.address, tmp_path)
    assert found["good"] == "ViT/14 3x32, 56 pixels; Q-Former 4x48, 6 queries"
    assert "hf download Salesforce/blip2-itm-vit-g-coco" in found["Salesforce/blip2-itm-vit-g-coco"]
    assert "weights of encoder 'blip-2', expected 'clip'" in found["org/itm"]


def test_what_matching_does_not_use_is_left_out(encoder: Blip2Encoder, tmp_path: Path) -> None:
    path = blip2_itm.lavis(CASE, tmp_path)
    content = torch.load(path, weights_only=True)
    content["model"] |= {
        "temp": torch.zeros(()),
        "Qformer.cls.predictions.bias": torch.zeros(120),
        "Qformer.bert.embeddings.position_ids": torch.arange(64)[None],
    }
    content["epoch"] = 3
    torch.save(content, path)
    release = convert(tmp_path, path)
    assert any("left out 3 tensors" in note for note in release.notes)
    for name, tensor in encoder.model.state_dict().items():
        assert torch.equal(release.tensors[name], tensor)


def test_the_frozen_tower_lies_in_a_file_of_its_own(encoder: Blip2Encoder, tmp_path: Path) -> None:
    path = blip2_itm.lavis(CASE, tmp_path)
    content = torch.load(path, weights_only=True)["model"]
    tower = {
        name.removeprefix("visual_encoder."): t for name, t in content.items() if "visual_encoder" in name
    }
    last = {name.replace("blocks.2.", "blocks.3."): t for name, t in tower.items() if "blocks.2." in name}
    torch.save({**tower, **last, "head.weight": torch.zeros(3, 32)}, tmp_path / "eva.pth")
    torch.save({"model": {n: t for n, t in content.items() if "visual_encoder" not in n}}, path)
    with pytest.raises(ValueError, match=r"holds no image tower.*pass it as vision"):
        convert(tmp_path, path)
    release = convert(tmp_path, path, vision=str(tmp_path / "eva.pth"))
    assert any("without its last block" in note for note in release.notes)
    for name, tensor in encoder.model.state_dict().items():
        assert torch.equal(release.tensors[name], tensor)
    with pytest.raises(ValueError, match="its own image tower, tuned with the rest"):
        convert(tmp_path, vision=str(tmp_path / "eva.pth"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": None}, "holds no words: pass vocabulary"),
        ({"vision_heads": None}, "share the width 32: pass vision_heads"),
        ({"qformer_heads": 7}, "share the width 48: pass qformer_heads"),
    ],
)
def test_what_the_checkpoint_does_not_hold_is_asked_for(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        convert(tmp_path, **settings)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save({"visual.conv1.weight": torch.zeros(3, 3)}, tmp_path / "clip.pth")
    with pytest.raises(ValueError, match=r"clip.pth: no BLIP-2 .*: expected Qformer.bert.embeddings.word_"):
        convert(tmp_path, tmp_path / "clip.pth")
    path = blip2_itm.lavis(CASE, tmp_path)
    content = torch.load(path, weights_only=True)["model"]
    del content["itm_head.weight"], content["visual_encoder.blocks.1.attn.proj.bias"]
    torch.save(content, path)
    with pytest.raises(
        ValueError, match=r"2 tensors are missing: .*vision_model.encoder.layers.1.self_attn.proj"
    ):
        convert(tmp_path, path)
    (tmp_path / "short.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(ValueError, match="has 2 words, but the model has 120"):
        convert(tmp_path, vocabulary=str(tmp_path / "short.txt"))


def test_tensors_of_another_size_are_refused(theirs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(theirs, tmp_path / "changed"))
    tensors = load_file(folder / "model.safetensors")
    tensors["itm_head.weight"] = tensors["itm_head.weight"][:1]
    tensors["more"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        WeightsError, match=r"1 tensors are not part .*: 'more'; 1 tensors have another shape"
    ):
        Blip2Encoder.from_pretrained(folder, device="cpu")
