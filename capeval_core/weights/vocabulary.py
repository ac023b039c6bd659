"""Words of a WordPiece tokenizer beside the weights: vocab.txt, a word per line, or tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capeval_core.errors import Argument, InputError, Problem
from capeval_core.values import expanded_path
from capeval_core.weights.folder import TOKENIZER, VOCABULARY, WeightsError, read_json, sha256_of
from capeval_core.writing import write_whole


def read_words(file: Path) -> list[str]:
    """The words of a vocab.txt, one per line.

    Raises:
        WeightsError: the file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{file} cannot be read ({error}): it holds the words of the token ids") from error


def words_of(folder: Path) -> list[str]:
    """The words of a folder's vocab.txt, or else of its tokenizer.json.

    Raises:
        WeightsError: there is neither, or it cannot be read.
    """
    if (folder / VOCABULARY).is_file():
        return read_words(folder / VOCABULARY)
    try:
        words = read_json(folder / TOKENIZER)["model"]["vocab"]
        return sorted(words, key=words.__getitem__)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{folder} has neither {VOCABULARY} nor a {TOKENIZER} with words ({error}): download it again"
        ) from error


def write_beside(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a file of words into a folder of weights; what its config says of it: file and sha256."""
    write_whole(folder / name, text)
    return {"file": name, "sha256": sha256_of(folder / name)}


def words_beside(folder: Path, name: str, stated: dict[str, Any]) -> list[str]:
    """The words of the file `name` in a folder of weights, which must be the one that its config states.

    Raises:
        WeightsError: it cannot be read, or is another.
    """
    words = read_words(folder / name) if name == VOCABULARY else words_of(folder)
    if sha256_of(folder / name) != stated.get("sha256"):
        raise WeightsError(f"{name} is not the one that these weights were saved with")
    return words


def required_words(vocabulary: str | None, model: str, notes: list[str]) -> tuple[Path, list[str]]:
    """The words of BERT's vocab.txt for a checkpoint that holds none, by the setting `vocabulary`.

    model: name of the BERT whose words they are, for messages.

    Raises:
        InputError: the setting is missing. WeightsError: the file cannot be read.
    """
    if vocabulary is None:
        fix = ("pass ", Argument("vocabulary"), f", the file vocab.txt of https://huggingface.co/{model}")
        raise InputError(Problem("", None, "the checkpoint holds no words", fix, verb=""))
    file = expanded_path(vocabulary)
    words = read_words(file)
    notes.append(f"words: {file.name}, sha256 {sha256_of(file)[:12]}...")
    return file, words
