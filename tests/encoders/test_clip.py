"""The encoders against open_clip's own: every shortcut must leave every number as it is."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from open_clip.model import CLIP
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.texts import common_prefix
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import paired_cosine
from capeval_core.models.batching import count_forwards
from capeval_core.models.device import exact_float32
from tests.support.counting import counted
from tests.support.seeded import HEADS, encoder, release

Floats = NDArray[np.float32]
EVERY = pytest.mark.parametrize("case", HEADS)
PROMPT = "A photo depicts "

WORDS = ["a", "the", "dog", "cat", "man", "horse", "street", "running", "red", "circle", "of", "hippopotamus"]
WORDS += ["café", "犬", "😺", "isn't", "1234", "#!?", "unbelievable"]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """open_clip's own model of each case, with the same tensors."""
    models: dict[str, CLIP] = {}

    def build(case: str) -> CLIP:
        if case not in models:
            found = release(case)
            architecture = found.config["architecture"]
            model = CLIP(
                architecture["embed_dim"],
                architecture["vision"],
                architecture["text"],
                quick_gelu=found.config["activation"] == "quick_gelu",
            )
            model.load_state_dict(found.tensors)
            models[case] = model.eval()
        return models[case]

    return build


def texts_of(model: CLIP, clip: ClipEncoder, texts: list[str]) -> Floats:
    """open_clip's features of ids padded with zeros."""
    rows = clip.tokenizer.encode(texts).ids
    padded = torch.zeros(len(rows), 77, dtype=torch.long)
    for i, ids in enumerate(rows):
        padded[i, : len(ids)] = torch.tensor(ids)
    with torch.no_grad():
        return np.asarray(torch.cat([model.encode_text(part) for part in padded.split(32)]))


def ours(clip: ClipEncoder, texts: list[str], **more: Any) -> Floats:
    return clip.encode_texts(texts, cache=FeatureCache(0), **more).features


def agree(found: Floats, expected: Floats, relative: float = 1e-5) -> bool:
    """Rows that are equal, relative to the length of a row."""
    off = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return bool((off <= relative).all())


def texts_of_all_lengths(prefix: str = "") -> list[str]:
    chance = random.Random(5)
    return [f"{prefix}{' '.join(chance.choices(WORDS, k=length))}" for length in range(1, 91)]


@EVERY
def test_texts_of_all_lengths(case: str, theirs: Any) -> None:
    step = 1 if case == "pacs-vit-tiny" else 4
    alone, prompted = texts_of_all_lengths()[::step], texts_of_all_lengths(PROMPT)[::step]
    texts = [*prompted, *alone, "", " "]
    clip = encoder(case)
    expected = texts_of(theirs(case), clip, texts)
    assert agree(ours(clip, texts), expected)
    assert agree(ours(clip, prompted), expected[: len(prompted)])  # with a shared prefix
    for row in (0, len(prompted) - 1, len(prompted) + 5, len(texts) - 1):
        assert agree(ours(clip, [texts[row]]), expected[row : row + 1])


@EVERY
def test_tokens_of_texts_of_all_lengths(case: str, theirs: Any) -> None:
    """Each token's feature is that of open_clip's own modules over padded ids; the last is the text's."""
    alone, prompted = texts_of_all_lengths()[::9], texts_of_all_lengths(PROMPT)[::9]
    clip, model = encoder(case), theirs(case)
    for texts in ([*alone, *prompted, ""], prompted, [""], prompted[:1] * 2):
        found = clip.encode_tokens(texts, cache=FeatureCache(0))
        assert found.ids == clip.tokenizer.encode(texts).ids
        padded = torch.zeros(len(texts), 77, dtype=torch.long)
        for i, ids in enumerate(found.ids):
            padded[i, : len(ids)] = torch.tensor(ids)
        with torch.no_grad():
            states = model.token_embedding(padded) + model.positional_embedding
            states = model.transformer(states, attn_mask=model.attn_mask)
            expected = np.asarray(model.ln_final(states) @ model.text_projection)
        for ids, rows, other in zip(found.ids, found.features, expected, strict=True):
            assert agree(rows, other[: len(ids)])
        assert agree(np.stack([rows[-1] for rows in found.features]), ours(clip, texts))


def test_tokens_of_equal_texts_run_once_and_are_not_taken_for_sentences() -> None:
    clip, cache = encoder("pacs-vit-tiny"), FeatureCache()
    texts = ["a dog", "a cat", "A  dog", "dog " * 90]
    with count_forwards() as forwards:
        found = clip.encode_tokens(texts, cache=cache)
        again = clip.encode_tokens(texts[::-1], cache=cache)
        sentences = clip.encode_texts(texts[:2], cache=cache).features
    assert forwards.items == 3 + 2 and sentences.shape == (2, clip.dimension)
    assert found.truncated == again.truncated[::-1] == [0, 0, 0, 15]
    for one, other in zip(found.features, again.features[::-1], strict=True):
        assert np.array_equal(one, other)


SPECIAL = [
    ["a dog", "a dog", "a dog"],
    ["a dog", "a dog runs", "a dog runs on"],  # one is the beginning of the other
    ["", "a"],
    ["", ""],
    ["<|endoftext|>", "a dog <|endoftext|> hidden words", "a dog <|endoftext|> other words", "a dog"],
    ["<|startoftext|>", "<|startoftext|> a dog", "<|startoftext|> a cat"],
    ["dog " * 200, "dog " * 200 + "cat", "cat " * 76, "dog " * 75, "dog " * 74],
    ["!", "!!", "!a", "a!b"],  # one of their ids is 0, which pads
    ["A PHOTO", "a photo", " a  photo "],
    ["\x00", "a\nb\tc", "&lt;b&gt;", "ﬁne", "\u200b"],
]


@EVERY
@pytest.mark.parametrize("texts", SPECIAL)
def test_special_texts(case: str, texts: list[str], theirs: Any) -> None:
    clip = encoder(case)
    for given_texts in (texts, texts[::-1], texts[:1], [PROMPT + text for text in texts]):
        assert agree(ours(clip, given_texts), texts_of(theirs(case), clip, given_texts))


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=12))
@settings(max_examples=15)
def test_any_texts_together(theirs: Any, texts: list[str]) -> None:
    clip = encoder()
    assert agree(ours(clip, texts), texts_of(theirs("pacs-vit-tiny"), clip, texts))


def test_what_stands_behind_an_end_marker_is_not_encoded_again() -> None:
    clip = encoder()
    with counted(clip) as count:
        found = ours(clip, ["a dog <|endoftext|> one", "a dog <|endoftext|> two", "a dog"])
    assert count.texts == 1
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_truncated_ids_are_counted() -> None:
    found = encoder().encode_texts(["dog " * 75, "dog " * 76, "dog " * 90, ""], cache=FeatureCache(0))
    assert found.truncated == [0, 1, 15, 0]


def test_no_texts_and_no_images() -> None:
    clip = encoder()
    assert ours(clip, []).shape == (0, 32)
    assert list(clip.encode_images([])) == []


@pytest.mark.parametrize("batch_size", [1, 2, 7, 1000])
def test_the_batch_size_of_texts(batch_size: int) -> None:
    texts = texts_of_all_lengths(PROMPT)[:12]
    assert agree(ours(encoder(), texts, batch_size=batch_size), ours(encoder(), texts), 1e-6)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6))
def test_the_common_prefix(sequences: list[tuple[int, ...]]) -> None:
    found = common_prefix(sequences)
    if len(set(sequences)) > 1:
        assert len({sequence[:found] for sequence in sequences}) == 1
    assert all(len(sequence) > found for sequence in sequences)
    if len(sequences) > 1 and all(len(sequence) > found + 1 for sequence in sequences):
        assert len({sequence[: found + 1] for sequence in sequences}) > 1


@EVERY
def test_images(case: str, theirs: Any, images: list[Path]) -> None:
    clip = encoder(case)
    shown = [InputImage.of(path) for path in images]
    pixels = torch.from_numpy(np.stack([clip.preprocess(image.load()) for image in shown]))
    with torch.no_grad():
        expected = np.asarray(theirs(case).encode_image(pixels))
    (found,) = clip.encode_images(shown, cache=FeatureCache(0))
    assert agree(found.features, expected)
    assert found.features.dtype == np.float32 and found.errors == [None] * len(shown)
    alone = np.concatenate(
        [next(clip.encode_images([image], cache=FeatureCache(0))).features for image in shown]
    )
    assert agree(alone, expected)


@EVERY
def test_the_batch_hardly_moves_a_cosine(case: str, images: list[Path]) -> None:
    clip = encoder(case)
    rng = np.random.default_rng(3)
    shown = [InputImage.of(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(20)]
    texts = [*texts_of_all_lengths(PROMPT)[:10], *texts_of_all_lengths()[:10]]

    def features(batch_size: int | None) -> tuple[Floats, Floats]:
        cache = FeatureCache(0)
        parts = list(clip.encode_images(shown, cache=cache, batch_size=batch_size))
        return (
            np.concatenate([part.features for part in parts]),
            clip.encode_texts(texts, cache=cache, batch_size=batch_size).features,
        )

    expected = paired_cosine(*features(None))
    for batch_size in (1, 7):
        assert np.abs(paired_cosine(*features(batch_size)) - expected).max() < 1e-6


@EVERY
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_near(case: str, dtype: str, images: list[Path]) -> None:
    wide, narrow = encoder(case), encoder(case, dtype)
    texts = texts_of_all_lengths(PROMPT)[:20]
    shown = [InputImage.of(path) for path in images]
    for a, b in (
        (ours(wide, texts), ours(narrow, texts)),
        *[
            (first.features, second.features)
            for first, second in zip(
                wide.encode_images(shown, cache=FeatureCache(0)),
                narrow.encode_images(shown, cache=FeatureCache(0)),
                strict=True,
            )
        ],
    ):
        assert b.dtype == np.float32
        assert paired_cosine(a, b).min() > 0.999


def own_encoder() -> ClipEncoder:
    """An encoder that no other test sees, so that it may keep its hooks and its batch sizes."""
    found = release()
    return ClipEncoder(found.config, found.tensors, checksum="own", device="cpu")


class OutOfMemory:
    """A hook that raises what CUDA's allocator raises, for batches of more than `most`."""

    def __init__(self, most: int, error: BaseException | None = None) -> None:
        self.most = most
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.refused: list[int] = []

    def __call__(self, module: Any, inputs: Any) -> None:
        if len(inputs[0]) > self.most:
            self.refused.append(len(inputs[0]))
            raise self.error


def allocation_that_fails() -> RuntimeError:
    """What the CPU's allocator says in truth."""
    try:
        torch.empty(10**15)
    except RuntimeError as error:
        return error
    raise AssertionError("a petabyte was allocated")


@pytest.mark.parametrize("error", [None, allocation_that_fails()], ids=["cuda", "cpu"])
def test_automatic_batches_shrink_until_they_fit(error: RuntimeError | None) -> None:
    clip = own_encoder()
    rng = np.random.default_rng(4)
    shown = [InputImage.of(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)) for _ in range(40)]
    texts = ["dog " * n + word for word in WORDS for n in range(2)]
    expected = np.concatenate([p.features for p in clip.encode_images(shown, cache=FeatureCache(0))])
    expected_texts = ours(clip, texts)
    image_limit, text_limit = OutOfMemory(3, error), OutOfMemory(2, error)
    clip.model.visual.conv1.register_forward_pre_hook(image_limit)
    clip.model.transformer.resblocks[0].ln_1.register_forward_pre_hook(text_limit)
    again = np.concatenate([p.features for p in clip.encode_images(shown, cache=FeatureCache(0))])
    assert agree(again, expected, 1e-6)
    assert (
        image_limit.refused == sorted(image_limit.refused, reverse=True) and 0 < len(image_limit.refused) < 6
    )
    assert agree(ours(clip, texts), expected_texts, 1e-6)
    refused = len(image_limit.refused), len(text_limit.refused)
    assert refused[1] > 0
    list(clip.encode_images(shown, cache=FeatureCache(0)))  # the size that fits is remembered
    ours(clip, texts)
    assert (len(image_limit.refused), len(text_limit.refused)) == refused


def test_a_batch_size_of_ones_own_is_kept() -> None:
    clip = own_encoder()
    rng = np.random.default_rng(4)
    shown = [InputImage.of(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)) for _ in range(9)]
    clip.model.visual.conv1.register_forward_pre_hook(OutOfMemory(3))
    clip.model.transformer.resblocks[0].ln_1.register_forward_pre_hook(OutOfMemory(3))
    with pytest.raises(MemoryError, match=r"batch_size=8 does not fit into memory: lower it"):
        list(clip.encode_images(shown, cache=FeatureCache(0), batch_size=8))
    with pytest.raises(MemoryError, match=r"batch_size=4 does not fit"):
        ours(clip, ["a", "b", "c", "d", "e"], batch_size=4)
    assert len(list(clip.encode_images(shown, cache=FeatureCache(0), batch_size=3))) >= 1
    ours(clip, ["a", "b", "c", "d", "e"], batch_size=3)


def test_one_item_that_does_not_fit() -> None:
    clip = own_encoder()
    clip.model.visual.conv1.register_forward_pre_hook(OutOfMemory(0))
    clip.model.ln_final.register_forward_pre_hook(OutOfMemory(0))
    shown = [InputImage.of(np.full((9, 9, 3), i, np.uint8)) for i in range(5)]
    with pytest.raises(MemoryError, match="single item"):
        list(clip.encode_images(shown, cache=FeatureCache(0)))
    with pytest.raises(MemoryError, match="single item"):
        ours(clip, ["a", "b", "c"])


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    clip = own_encoder()
    hook = OutOfMemory(0, RuntimeError("device-side assert"))
    clip.model.visual.conv1.register_forward_pre_hook(hook)
    with pytest.raises(RuntimeError, match="device-side assert"):
        list(clip.encode_images([InputImage.of(np.zeros((9, 9), np.uint8))], cache=FeatureCache(0)))
    assert len(hook.refused) == 1


def precision() -> list[Any]:
    backends: Any = torch.backends
    places = [backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv]
    return [place.fp32_precision for place in places]


needs_new_switches = pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this torch has only the older switches"
)


@needs_new_switches
@pytest.mark.parametrize("allow", ["highest", "high", "medium"])
def test_float32_is_exact_inside_and_as_it_was_outside(allow: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(allow)
    try:
        found = precision()
        with pytest.raises(KeyError), exact_float32(torch.device("cpu")):
            assert set(precision()) <= {"none", "ieee"}
            raise KeyError
        assert precision() == found
        assert torch.get_float32_matmul_precision() == allow
    finally:
        torch.set_float32_matmul_precision(before)


@needs_new_switches
def test_the_switches_wait_for_the_last_thread() -> None:
    backends: Any = torch.backends
    before = backends.mkldnn.matmul.fp32_precision
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with exact_float32(torch.device("cpu")):
            inside.set()
            leave.wait(600)

    try:
        backends.mkldnn.matmul.fp32_precision = "tf32"
        thread = threading.Thread(target=first)
        thread.start()
        inside.wait(600)
        with exact_float32(torch.device("cpu")):
            leave.set()
            thread.join(600)
            assert backends.mkldnn.matmul.fp32_precision == "ieee"
        assert backends.mkldnn.matmul.fp32_precision == "tf32"
    finally:
        backends.mkldnn.matmul.fp32_precision = before


@needs_new_switches
def test_the_newer_switches_of_a_program_are_respected() -> None:
    backends: Any = torch.backends
    places = [backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv]
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "tf32"
        found = precision()
        ours(encoder(), ["a dog"])
        assert precision() == found and found.count("tf32") >= 3
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


def test_autocast_goes_on_outside() -> None:
    clip = encoder()
    expected = ours(clip, ["a dog"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert agree(ours(clip, ["a dog"]), expected, 1e-6)
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_features_of_training_carry_no_gradient() -> None:
    clip = encoder()
    with torch.enable_grad():
        found = ours(clip, ["a dog"])
    assert isinstance(found, np.ndarray)
    assert not any(p.requires_grad for p in clip.model.parameters()) and not clip.model.training


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "'gpu' is not a device"),
        ("cuda0", "did you mean 'cuda:0'"),
        ("cpuu", "did you mean 'cpu'"),
        ("", "is not a device"),
        ("meta", "cannot run the encoders"),
        ("cuda:99", "CUDA GPU"),
        ("xpu:77", "Intel GPU"),
        ("mps:0", "Apple GPU"),
    ],
)
def test_devices_that_are_none(name: str, message: str) -> None:
    found = release()
    with pytest.raises(ValueError, match="device=") as caught:
        ClipEncoder(found.config, found.tensors, device=name)
    assert message in str(caught.value) and repr(name) in str(caught.value)


def test_a_loaded_encoder_is_shared_and_let_go(seeded_weights: Path) -> None:
    first = ClipEncoder.from_pretrained(str(seeded_weights), device="cpu", dtype="bfloat16")
    assert ClipEncoder.from_pretrained(seeded_weights, device="cpu", dtype="bfloat16") is first
    assert ClipEncoder.from_pretrained(seeded_weights, device="cpu") is not first
    model = weakref.ref(first.model)
    del first
    gc.collect()
    assert model() is None


def test_extreme_images() -> None:
    clip = encoder()
    shapes = [(2, 2), (2, 400), (400, 2), (1000, 5), (63, 64), (64, 65)]
    shown = [InputImage.of(np.full((*shape, 3), 100, np.uint8)) for shape in shapes]
    (found,) = clip.encode_images(shown, cache=FeatureCache(0))
    assert np.isfinite(found.features).all()
    assert agree(found.features[1:], np.repeat(found.features[:1], len(shapes) - 1, axis=0), 1e-5)


def test_one_image_object_may_be_shared_by_threads() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8))
    shown = [InputImage.of(image, f"images[{i}]") for i in range(40)]
    with counted(encoder()) as count:
        found = list(encoder().encode_images(shown, cache=FeatureCache(0)))
    assert count.images == 1
    assert len({row.tobytes() for part in found for row in part.features}) == 1
