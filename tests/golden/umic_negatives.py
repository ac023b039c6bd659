"""Negative captions of UMIC: rates and invariants of every kind, the shares of images, the order of a group.

A case is a folder with captions.json, outputs.json and config.json. Only laws are compared, not random
streams: a quantity is the largest difference of a share among many draws from the share that the
original's rule gives, or the number of negatives that break a rule. Where the original never returns, draws
the original caption again or writes an empty one, ours is the same law without that ("ok (defined)").
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.training.groups import KINDS, NegativeSampler
from capeval_core.training.negatives import WordTable, repetition_removal, substitution, word_order
from tests.golden.comparison import Comparison, UnreadableCaseError

TOLERANCE = 0.03
"""Of a share in 4000 draws."""
WORD_TOLERANCE = 0.015
"""Of a word's share in 20000 draws."""
SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
SEED = 20210614
Tokens = list[str]


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    return {
        *(f"substitution_{name}" for name in ("rate_released", "rate_paper", "form", "words", "equal")),
        "substitution_without_eligible", "word_frequency",
        *(f"repeat_remove_{name}" for name in ("repeated", "removed", "form", "empty", "without_eligible")),
        *(f"non_fluent_{name}" for name in ("shuffled", "kept", "form", "equal", "empty")),
        "random_negative", "hard_negative", "hard_negative_captions",
        "item_rows", "item_order", "item_image", "item_special_tokens",
    }  # fmt: skip


def run_case(folder: Path) -> Iterator[Comparison]:
    captions, outputs, config = (_read(folder / f"{n}.json") for n in ("captions", "outputs", "config"))
    try:
        draws = outputs["draws_per_caption_and_generator"]
        yield from _substitution(captions, config, draws)
        yield _word_frequency(captions, outputs["word_sampling_by_frequency"])
        yield from _repeat_remove(captions["captions"], config["repeat_remove"], draws)
        yield from _non_fluent(captions["captions"], config["non_fluent"], draws)
        yield from _other_images(outputs["hard_negative_toy"])
        yield from _items(captions["captions"], outputs["training_item_composition"])
    except (KeyError, TypeError) as error:
        raise UnreadableCaseError(f"{folder}: {error!r} is missing or of another kind") from error


class Largest:
    """The largest difference of a quantity, and how often ours is defined where the original is not."""

    def __init__(self, quantity: str, tolerance: float = TOLERANCE) -> None:
        self.quantity, self.tolerance = quantity, tolerance
        self.error, self.defined = 0.0, 0

    def add(self, ours: Any, theirs: Any, *, defined: bool = False) -> None:
        difference = np.abs(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))
        self.error = max(self.error, float(difference.max(initial=0.0)))
        self.defined += defined

    def comparison(self) -> Comparison:
        return Comparison(self.quantity, self.error, self.tolerance, self.defined)


def _substitution(captions: dict[str, Any], config: dict[str, Any], draws: int) -> Iterator[Comparison]:
    counts, settings = captions["tag_word_counter"], config["substitution"]
    table, rng = WordTable(counts), np.random.default_rng(SEED)
    released, paper = Largest("substitution_rate_released"), Largest("substitution_rate_paper")
    form, words = Largest("substitution_form", 0), Largest("substitution_words")
    equal, never = Largest("substitution_equal", 0), Largest("substitution_without_eligible", 0)
    for caption in captions["captions"]:
        tokens, tags, eligible = caption["tokens"], caption["pos"], caption["eligible_positions"]
        theirs = caption["substitution"]
        if not eligible:
            wrong = substitution(tokens, tags, table, rng) is not None
            never.add(wrong, 0, defined=theirs["original_never_returns"])
            continue
        for rates, probability in (
            (released, settings["probability_in_code"]),
            (paper, settings["probability_in_paper"]),
        ):
            negatives = [
                substitution(tokens, tags, table, rng, probability=probability) or [] for _ in range(draws)
            ]
            form.add(sum(len(negative) != len(tokens) for negative in negatives), 0)
            drawn = np.array(negatives) != np.array(tokens)
            rate = probability / (1 - (1 - probability) ** len(eligible))
            if rates is released:
                rate = theirs["P_position_drawn_given_kept"]
            # The original's visible changes are fewer where it draws the word itself.
            again = theirs["measured_rate_identical_to_input"] > 0
            rates.add(drawn.mean(axis=0), _at(eligible, len(tokens), rate), defined=again)
            equal.add(sum(negative == tokens for negative in negatives), 0, defined=again)
            for position in eligible:
                of_tag = {word: n for word, n in counts[tags[position]].items() if word != tokens[position]}
                found = Counter(n[position] for n in negatives if n[position] != tokens[position])
                form.add(len(found.keys() - of_tag.keys()), 0)
                for word, count in of_tag.items():
                    # As a share of all draws, whose tolerance is that of the rates.
                    words.add(found[word] / draws, rate * count / sum(of_tag.values()))
    yield from (one.comparison() for one in (released, paper, form, words, equal, never))


def _word_frequency(captions: dict[str, Any], case: dict[str, Any]) -> Comparison:
    """Of the words of a tag, for a caption that is not one of them."""
    largest, rng = Largest("word_frequency", WORD_TOLERANCE), np.random.default_rng(SEED)
    table = WordTable(captions["tag_word_counter"])
    found = Counter(
        (substitution([case["caption"]], [case["tag"]], table, rng) or [""])[0] for _ in range(case["draws"])
    )
    for word in found.keys() | case["words"].keys():
        largest.add(found[word] / case["draws"], case["words"].get(word, {"expected": 0})["expected"])
    return largest.comparison()


def _repeat_remove(
    captions: list[dict[str, Any]], settings: dict[str, Any], draws: int
) -> Iterator[Comparison]:
    rng = np.random.default_rng(SEED)
    repeated, removed = Largest("repeat_remove_repeated"), Largest("repeat_remove_removed")
    form, empty = Largest("repeat_remove_form", 0), Largest("repeat_remove_empty", 0)
    never = Largest("repeat_remove_without_eligible", 0)
    for caption in captions:
        tokens, tags, eligible = caption["tokens"], caption["pos"], caption["eligible_positions"]
        theirs = caption["repeat_remove"]
        if not eligible:
            wrong = repetition_removal(tokens, tags, rng) is not None
            never.add(wrong, 0, defined=theirs["original_never_returns"])
            continue
        # Numbers in place of words show which word was doubled or removed.
        numbers = list(map(str, range(len(tokens))))
        copies = np.zeros((draws, len(tokens)), dtype=int)
        for row in copies:
            negative = repetition_removal(numbers, tags, rng) or []
            np.add.at(row, np.array(negative, dtype=int), 1)
            wrong = negative != [number for number, n in zip(numbers, row, strict=True) for _ in range(n)]
            form.add(wrong, 0)
        others = np.setdiff1d(np.arange(len(tokens)), eligible)
        form.add(np.sum(copies[:, others] != 1) + np.sum(copies > 2), 0)
        form.add(np.sum((copies == 1).all(axis=1)), 0)
        removal = settings["probability"] * (1 - settings["repeat_share"])
        some = 1 - (1 - settings["probability"]) ** len(eligible)
        nothing = removal ** len(eligible) / some if len(eligible) == len(tokens) else 0.0
        empty.add(np.sum(copies.sum(axis=1) == 0), 0, defined=theirs["measured_rate_empty_output"] > 0)
        for largest, value, rate, gone in (
            (repeated, 2, theirs["P_repeat"], 0.0),
            (removed, 0, theirs["P_remove"], nothing),
        ):
            expected = (rate - gone) / (1 - nothing)
            largest.add(
                (copies == value).mean(axis=0), _at(eligible, len(tokens), expected), defined=nothing > 0
            )
    yield from (one.comparison() for one in (repeated, removed, form, empty, never))


def _non_fluent(captions: list[dict[str, Any]], settings: dict[str, Any], draws: int) -> Iterator[Comparison]:
    rng = np.random.default_rng(SEED)
    shuffled, kept = Largest("non_fluent_shuffled"), Largest("non_fluent_kept")
    form, equal = Largest("non_fluent_form", 0), Largest("non_fluent_equal", 0)
    empty = Largest("non_fluent_empty", 0)
    for caption in captions:
        tokens, theirs = caption["tokens"], caption["non_fluent"]
        if len(tokens) == 1:  # shuffled it is itself, without its word it is empty
            wrong = word_order(tokens, rng) is not None
            equal.add(wrong, 0, defined=True)
            empty.add(wrong, 0, defined=True)
            continue
        negatives = [word_order(tokens, rng) or [] for _ in range(draws)]
        shorter = [negative for negative in negatives if len(negative) < len(tokens)]
        whole = [negative for negative in negatives if len(negative) >= len(tokens)]
        shuffled.add(len(whole) / draws, settings["shuffle_share"])
        equal.add(whole.count(tokens), 0, defined=theirs["measured_permutation_equal_to_input"] > 0)
        nothing = theirs["expected_empty_given_removal"]
        empty.add(shorter.count([]), 0, defined=nothing > 0)
        length = theirs["expected_mean_length_after_removal"] / (1 - nothing)
        share = np.mean(list(map(len, shorter))) / len(tokens)
        kept.add(share, length / len(tokens), defined=nothing > 0)
        form.add(sum(sorted(negative) != sorted(tokens) for negative in whole), 0)
        form.add(sum(not _in_order(negative, tokens) for negative in shorter), 0)
    yield from (one.comparison() for one in (shuffled, kept, form, equal, empty))


def _other_images(toy: dict[str, Any]) -> Iterator[Comparison]:
    """Random and hard negatives of a set whose captions name their image."""
    random, hard = Largest("random_negative"), Largest("hard_negative")
    within = Largest("hard_negative_captions")
    each = range(toy["captions_per_image"])
    for image, case in toy["by_image"].items():
        split = [str(other) for other in case["images_in_split"]]
        captions = [f"{other} {number}" for other in split for number in each]
        lists = [{image: list(map(str, case[name]))} for name in ("retrieval_list", "cider_list")]
        sampler = NegativeSampler(
            [caption.split()[0] for caption in captions],
            captions,
            [[(word, "CD") for word in caption.split()] for caption in captions],
            similar=lists,
            seed=SEED,
        )
        positive = len(each) * split.index(image)
        groups = [sampler.group(epoch, positive) for epoch in range(toy["draws"])]
        others = [other for other in split if other != image]
        for largest, kind, theirs in (
            (random, "random", dict.fromkeys(others, 1 / len(others))),
            (hard, "hard", case["expected_share_by_image"]),
        ):
            found = Counter(group.captions[group.kinds.index(kind)] for group in groups)
            own = theirs.get(image, 0.0)  # the original's fallback draws the image's own captions too
            for other in split:
                share = sum(found[f"{other} {number}"] for number in each) / toy["draws"]
                expected = 0.0 if other == image else theirs.get(other, 0.0) / (1 - own)
                largest.add(share, expected, defined=own > 0)
                if largest is hard:
                    shares = [found[f"{other} {number}"] / toy["draws"] for number in each]
                    within.add(shares, expected / len(each), defined=own > 0)
    yield from (one.comparison() for one in (random, hard, within))


def _items(captions: list[dict[str, Any]], composition: dict[str, Any]) -> Iterator[Comparison]:
    rows, order = Largest("item_rows", 0), Largest("item_order", 0)
    image, special = Largest("item_image", 0), Largest("item_special_tokens", 0)
    for count, case in composition.items():
        sampler = NegativeSampler(
            [str(caption["id"]) for caption in captions],
            [caption["caption"] for caption in captions],
            [list(zip(caption["tokens"], caption["pos"], strict=True)) for caption in captions],
            random_negatives=int(count),
            seed=SEED,
        )
        groups = [sampler.group(0, index) for index in range(len(sampler))]
        names = ["positive", *["random"] * int(count), *KINDS[1:]]
        for caption, group in zip(captions, groups, strict=True):
            rows.add(len(group.captions), case["items_per_positive"])
            rows.add(len(group.captions), case["collate_sample_size"])
            # What a caption has no negative for, is a random one in the same place.
            whole = bool(caption["eligible_positions"]) and len(caption["tokens"]) > 1
            matches = [
                kind == name or (kind == "random" and not whole)
                for kind, name in zip(group.kinds, names, strict=True)
            ]
            order.add(all(matches) and group.captions[0] == caption["caption"], True, defined=not whole)
            image.add(group.image == str(caption["id"]), True)
            special.add(sum(mark in text for mark in SPECIAL for text in group.captions), 0)
        rows.add(len(groups[0].captions) + len(groups[1].captions), case["rows_for_2_positives"])
    yield from (one.comparison() for one in (rows, order, image, special))


def _at(positions: Sequence[int], length: int, value: float) -> list[float]:
    return [value if position in set(positions) else 0.0 for position in range(length)]


def _in_order(part: Tokens, tokens: Tokens) -> bool:
    rest = iter(tokens)
    return all(token in rest for token in part)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableCaseError(f"{path}: {error}") from error
