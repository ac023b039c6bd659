"""Negative captions of UMIC: rates and invariants of every kind, the shares of images, the order of a group.

A case is a folder with captions.json, outputs.json and config.json. Only laws are compared, not random
streams: a quantity is the largest difference of a share among many draws from the share that the
original's rule gives, or the number of negatives that break a rule. Where the original never returns, draws
the original caption again or writes an empty one, ours is the same law without that ("ok (defined)").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.golden.case import Case, Comparison, Json
from tests.support.seams import negative_caption, negative_groups

SHARE, WORD_SHARE = 0.03, 0.015
"""Tolerances of a share in 4000 draws, and of a word's in 20000."""
TOLERANCES = {
    **dict.fromkeys(("substitution_rate_released", "substitution_rate_paper", "substitution_words"), SHARE),
    **dict.fromkeys(("substitution_form", "substitution_equal", "substitution_without_eligible"), 0.0),
    "word_frequency": WORD_SHARE,
    **dict.fromkeys(("repeat_remove_repeated", "repeat_remove_removed"), SHARE),
    **dict.fromkeys(("repeat_remove_form", "repeat_remove_empty", "repeat_remove_without_eligible"), 0.0),
    **dict.fromkeys(("non_fluent_shuffled", "non_fluent_kept"), SHARE),
    **dict.fromkeys(("non_fluent_form", "non_fluent_equal", "non_fluent_empty"), 0.0),
    **dict.fromkeys(("random_negative", "hard_negative", "hard_negative_captions"), SHARE),
    **dict.fromkeys(("item_rows", "item_order", "item_image", "item_special_tokens"), 0.0),
}
SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
KINDS = ("hard", "substitution", "word_order", "repetition_removal")
SEED = 20210614


class Largest:
    """The largest difference of each quantity, and how often ours is defined where the original is not."""

    def __init__(self) -> None:
        self.error, self.defined = dict.fromkeys(TOLERANCES, 0.0), Counter[str]()

    def add(self, quantity: str, ours: Any, theirs: Any, *, defined: bool = False) -> None:
        difference = np.abs(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))
        self.error[quantity] = max(self.error[quantity], float(difference.max(initial=0.0)))
        self.defined[quantity] += defined


def run(case: Case) -> Iterator[Comparison]:
    captions, outputs, largest = case.json("captions"), case.json("outputs"), Largest()
    draws = outputs["draws_per_caption_and_generator"]
    substitution(largest, captions, case.config["substitution"], draws)
    word_frequency(largest, captions, outputs["word_sampling_by_frequency"])
    repeat_remove(largest, captions["captions"], case.config["repeat_remove"], draws)
    non_fluent(largest, captions["captions"], case.config["non_fluent"], draws)
    other_images(largest, outputs["hard_negative_toy"])
    items(largest, captions["captions"], outputs["training_item_composition"])
    for name, tolerance in TOLERANCES.items():
        yield Comparison(name, largest.error[name], tolerance, largest.defined[name])


def substitution(largest: Largest, captions: Json, settings: Json, draws: int) -> None:
    counts, rng = captions["tag_word_counter"], np.random.default_rng(SEED)
    rates = {"released": settings["probability_in_code"], "paper": settings["probability_in_paper"]}
    for caption in captions["captions"]:
        tokens, tags, eligible = caption["tokens"], caption["pos"], caption["eligible_positions"]
        theirs = caption["substitution"]
        if not eligible:
            found = negative_caption("substitution", tokens, (tags, counts), rng)
            never = theirs["original_never_returns"]
            largest.add("substitution_without_eligible", found is not None, 0, defined=never)
            continue
        for name, probability in rates.items():
            negatives = [
                negative_caption("substitution", tokens, (tags, counts), rng, probability=probability) or []
                for _ in range(draws)
            ]
            largest.add("substitution_form", sum(len(negative) != len(tokens) for negative in negatives), 0)
            drawn = np.array(negatives) != np.array(tokens)
            rate = probability / (1 - (1 - probability) ** len(eligible))
            if name == "released":
                rate = theirs["P_position_drawn_given_kept"]
            # The original's visible changes are fewer where it draws the word itself.
            again = theirs["measured_rate_identical_to_input"] > 0
            expected = at(eligible, len(tokens), rate)
            largest.add(f"substitution_rate_{name}", drawn.mean(axis=0), expected, defined=again)
            equal = sum(negative == tokens for negative in negatives)
            largest.add("substitution_equal", equal, 0, defined=again)
            for position in eligible:
                of_tag = {word: n for word, n in counts[tags[position]].items() if word != tokens[position]}
                found = Counter(n[position] for n in negatives if n[position] != tokens[position])
                largest.add("substitution_form", len(found.keys() - of_tag.keys()), 0)
                for word, count in of_tag.items():
                    # As a share of all draws, whose tolerance is that of the rates.
                    share = rate * count / sum(of_tag.values())
                    largest.add("substitution_words", found[word] / draws, share)


def word_frequency(largest: Largest, captions: Json, case: Json) -> None:
    """Of the words of a tag, for a caption that is not one of them."""
    words, rng = ([case["tag"]], captions["tag_word_counter"]), np.random.default_rng(SEED)
    drawn = (negative_caption("substitution", [case["caption"]], words, rng) for _ in range(case["draws"]))
    found = Counter((negative or [""])[0] for negative in drawn)
    for word in found.keys() | case["words"].keys():
        expected = case["words"].get(word, {"expected": 0})["expected"]
        largest.add("word_frequency", found[word] / case["draws"], expected)


def repeat_remove(largest: Largest, captions: list[Json], settings: Json, draws: int) -> None:
    rng = np.random.default_rng(SEED)
    for caption in captions:
        tokens, tags, eligible = caption["tokens"], caption["pos"], caption["eligible_positions"]
        theirs = caption["repeat_remove"]
        if not eligible:
            found = negative_caption("repetition_removal", tokens, tags, rng)
            never = theirs["original_never_returns"]
            largest.add("repeat_remove_without_eligible", found is not None, 0, defined=never)
            continue
        # Numbers in place of words show which word was doubled or removed.
        numbers = list(map(str, range(len(tokens))))
        copies = np.zeros((draws, len(tokens)), dtype=int)
        for row in copies:
            negative = negative_caption("repetition_removal", numbers, tags, rng) or []
            np.add.at(row, np.array(negative, dtype=int), 1)
            wrong = negative != [number for number, n in zip(numbers, row, strict=True) for _ in range(n)]
            largest.add("repeat_remove_form", wrong, 0)
        others = np.setdiff1d(np.arange(len(tokens)), eligible)
        largest.add("repeat_remove_form", np.sum(copies[:, others] != 1) + np.sum(copies > 2), 0)
        largest.add("repeat_remove_form", np.sum((copies == 1).all(axis=1)), 0)
        removal = settings["probability"] * (1 - settings["repeat_share"])
        some = 1 - (1 - settings["probability"]) ** len(eligible)
        nothing = removal ** len(eligible) / some if len(eligible) == len(tokens) else 0.0
        blank = theirs["measured_rate_empty_output"] > 0
        largest.add("repeat_remove_empty", np.sum(copies.sum(axis=1) == 0), 0, defined=blank)
        for name, value, rate, gone in (
            ("repeated", 2, theirs["P_repeat"], 0.0),
            ("removed", 0, theirs["P_remove"], nothing),
        ):
            expected = at(eligible, len(tokens), (rate - gone) / (1 - nothing))
            shares = (copies == value).mean(axis=0)
            largest.add(f"repeat_remove_{name}", shares, expected, defined=nothing > 0)


def non_fluent(largest: Largest, captions: list[Json], settings: Json, draws: int) -> None:
    rng = np.random.default_rng(SEED)
    for caption in captions:
        tokens, theirs = caption["tokens"], caption["non_fluent"]
        if len(tokens) == 1:  # shuffled it is itself, without its word it is empty
            wrong = negative_caption("word_order", tokens, None, rng) is not None
            largest.add("non_fluent_equal", wrong, 0, defined=True)
            largest.add("non_fluent_empty", wrong, 0, defined=True)
            continue
        negatives = [negative_caption("word_order", tokens, None, rng) or [] for _ in range(draws)]
        shorter = [negative for negative in negatives if len(negative) < len(tokens)]
        whole = [negative for negative in negatives if len(negative) >= len(tokens)]
        largest.add("non_fluent_shuffled", len(whole) / draws, settings["shuffle_share"])
        again = theirs["measured_permutation_equal_to_input"] > 0
        largest.add("non_fluent_equal", whole.count(tokens), 0, defined=again)
        nothing = theirs["expected_empty_given_removal"]
        largest.add("non_fluent_empty", shorter.count([]), 0, defined=nothing > 0)
        length = theirs["expected_mean_length_after_removal"] / (1 - nothing)
        share = np.mean(list(map(len, shorter))) / len(tokens)
        largest.add("non_fluent_kept", share, length / len(tokens), defined=nothing > 0)
        largest.add("non_fluent_form", sum(sorted(negative) != sorted(tokens) for negative in whole), 0)
        largest.add("non_fluent_form", sum(not in_order(negative, tokens) for negative in shorter), 0)


def other_images(largest: Largest, toy: Json) -> None:
    """Random and hard negatives of a set whose captions name their image."""
    each = range(toy["captions_per_image"])
    for image, case in toy["by_image"].items():
        split = [str(other) for other in case["images_in_split"]]
        captions = [f"{other} {number}" for other in split for number in each]
        tagged = [[(word, "CD") for word in caption.split()] for caption in captions]
        similar = [{image: list(map(str, case[name]))} for name in ("retrieval_list", "cider_list")]
        images = [caption.split()[0] for caption in captions]
        sampler = negative_groups(images, captions, tagged, similar=similar, seed=SEED)
        positive = len(each) * split.index(image)
        groups = [sampler.group(epoch, positive) for epoch in range(toy["draws"])]
        others = [other for other in split if other != image]
        shares = {"random": dict.fromkeys(others, 1 / len(others)), "hard": case["expected_share_by_image"]}
        for kind, theirs in shares.items():
            found = Counter(group.captions[group.kinds.index(kind)] for group in groups)
            own = theirs.get(image, 0.0)  # the original's fallback draws the image's own captions too
            for other in split:
                drawn = [found[f"{other} {number}"] / toy["draws"] for number in each]
                expected = 0.0 if other == image else theirs.get(other, 0.0) / (1 - own)
                largest.add(f"{kind}_negative", sum(drawn), expected, defined=own > 0)
                if kind == "hard":
                    largest.add("hard_negative_captions", drawn, expected / len(each), defined=own > 0)


def items(largest: Largest, captions: list[Json], composition: Json) -> None:
    images, texts = [str(caption["id"]) for caption in captions], [caption["caption"] for caption in captions]
    tagged = [list(zip(caption["tokens"], caption["pos"], strict=True)) for caption in captions]
    for count, case in composition.items():
        sampler = negative_groups(images, texts, tagged, random_negatives=int(count), seed=SEED)
        groups = [sampler.group(0, index) for index in range(len(sampler))]
        names = ["positive", *["random"] * int(count), *KINDS]
        for caption, image, group in zip(captions, images, groups, strict=True):
            largest.add("item_rows", len(group.captions), case["items_per_positive"])
            largest.add("item_rows", len(group.captions), case["collate_sample_size"])
            # What a caption has no negative for, is a random one in the same place.
            whole = bool(caption["eligible_positions"]) and len(caption["tokens"]) > 1
            pairs = zip(group.kinds, names, strict=True)
            matches = [kind == name or (kind == "random" and not whole) for kind, name in pairs]
            right = all(matches) and group.captions[0] == caption["caption"]
            largest.add("item_order", right, True, defined=not whole)
            largest.add("item_image", group.image == image, True)
            largest.add(
                "item_special_tokens", sum(mark in text for mark in SPECIAL for text in group.captions), 0
            )
        both = len(groups[0].captions) + len(groups[1].captions)
        largest.add("item_rows", both, case["rows_for_2_positives"])


def at(positions: Sequence[int], length: int, value: float) -> list[float]:
    return [value if position in set(positions) else 0.0 for position in range(length)]


def in_order(part: Sequence[str], tokens: Sequence[str]) -> bool:
    rest = iter(tokens)
    return all(token in rest for token in part)
