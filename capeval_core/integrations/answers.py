"""Decoding of what decoder-only and chat captioners generate: the answer, without the question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from capeval_core.errors import described


class Decoder(Protocol):
    """A tokenizer, or a processor that has one."""

    def batch_decode(self, sequences: Any, *, skip_special_tokens: bool) -> Sequence[str]: ...


class Answers:
    """A processor whose `batch_decode` leaves out the prompt that a decoder-only captioner generates again.

        metrics = CaptionMetrics(Answers(processor), images=images, references=references)

    The prompt ends with `after`, such as "ASSISTANT:" or "<|im_start|>assistant\\n": by default with what the
    processor's chat template writes before an answer. Sequences without it, such as labels with -100 for the
    question, are answers as they are. Ids are cut, not texts: special tokens may end the prompt, and answers
    may hold the same word.

    Args:
        processor: a tokenizer, or a processor with one.
        after: the end of the prompt, special tokens included; None: of the chat template.
        turns: how often a prompt holds `after`: one more than the examples of a few-shot prompt.

    Raises:
        TypeError: a processor that decodes nothing.
        ValueError: no `after`, and no chat template that has one.
    """

    def __init__(self, processor: Decoder, after: str | None = None, turns: int = 1) -> None:
        if not hasattr(processor, "batch_decode"):
            raise TypeError(
                f"processor is {described(processor)}, which decodes no captions: pass a tokenizer"
            )
        # At 0 every text would hold its prompt, and the answer would be all of it.
        if turns < 1:
            raise ValueError(f"turns={turns}: expected 1 or more")
        if after is None:
            after = answer_prompt(processor)
            if after is None:
                problem = "this processor has no chat template that tells where an answer begins"
                raise ValueError(f'{problem}: pass the end of your prompt, as after="ASSISTANT:"')
        # Every text holds an empty prompt.
        if not after.strip():
            raise ValueError(f"after={after!r} is empty: pass the end of your prompt, or leave Answers out")
        self.processor = processor
        self.after = after.strip()  # a tokenizer may put spaces around it, or take them away
        self.turns = turns

    def batch_decode(self, sequences: Iterable[ArrayLike], *, skip_special_tokens: bool = True) -> list[str]:
        """The text of each sequence of token ids behind its prompt."""
        rows: list[list[int]] = [np.asarray(ids).tolist() for ids in sequences]
        # The first length at which a decoded beginning holds the whole prompt, by bisection: a row each, all
        # rows together, since a tokenizer is fast by batches only.
        low = [0] * len(rows)
        high = list(map(len, rows))
        for i, holds in enumerate(self._holds_prompt(rows)):
            if not holds:
                high[i] = 0  # the answer begins with its first id
        while low != high:
            beginnings = []
            for i, ids in enumerate(rows):
                beginnings.append(ids[: (low[i] + high[i]) // 2])
            for i, holds in enumerate(self._holds_prompt(beginnings)):
                length = len(beginnings[i])
                if low[i] == high[i]:
                    continue
                # What holds the prompt holds it at every greater length, too.
                if holds:
                    high[i] = length
                else:
                    low[i] = length + 1
        answers = []
        for i, ids in enumerate(rows):
            answers.append(ids[low[i] :])
        texts = self.processor.batch_decode(answers, skip_special_tokens=skip_special_tokens)
        return [text.strip() for text in texts]

    def _holds_prompt(self, rows: list[list[int]]) -> list[bool]:
        """Whether each row, decoded with its special tokens, holds the end of a prompt."""
        # With special tokens, of which the end of a prompt such as "<|im_start|>assistant" is made.
        texts = self.processor.batch_decode(rows, skip_special_tokens=False)
        return [text.count(self.after) >= self.turns for text in texts]


def answer_prompt(processor: object) -> str | None:
    """What a processor's chat template writes before an answer, with special tokens; None without one."""
    template = getattr(processor, "chat_template", None)
    tokenizer = getattr(processor, "tokenizer", processor)
    # Older checkpoints have it with the tokenizer, newer ones with the processor.
    template = template or getattr(tokenizer, "chat_template", None)
    if not template or not hasattr(processor, "apply_chat_template"):
        return None
    texts = []
    for generating in (False, True):
        # Templates of processors take a list of parts, those of tokenizers a text.
        content: Any = "?" if tokenizer is processor else [{"type": "text", "text": "?"}]
        conversation = [{"role": "user", "content": content}]
        texts.append(
            processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=generating)
        )
    without, with_prompt = texts
    # A template without a prompt for answers, or one that ends turns in another way: nothing to go by.
    prompt: str = with_prompt[len(without) :] if with_prompt.startswith(without) else ""
    return prompt if prompt.strip() else None
