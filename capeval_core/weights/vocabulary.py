"""Words of a WordPiece tokenizer beside the weights: vocab.txt, a word per line, or tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capeval_core.errors import InputError, Problem, option_name, wrong_option
from capeval_core.values import expanded_path
from capeval_core.weights.folder import TOKENIZER, VOCABULARY, WeightsError, read_json, sha256_of
from capeval_core.writing import write_whole


def read_words(file: Path) -> list[str]:
    """The words of a vocab.txt, or of a tokenizer.json."""
    try:
        if file.name == TOKENIZER:
            words = read_json(file)["model"]["vocab"]
            return sorted(words, key=words.__getitem__)
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{file} cannot be read ({error}): it holds the words of the token ids") from error


def words_of(folder: Path) -> list[str]:
    """The words of a folder's vocab.txt, or else of its tokenizer.json."""
    return read_words(folder / (VOCABULARY if (folder / VOCABULARY).is_file() else TOKENIZER))


def write_beside(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a file of words into a folder of weights; what its config says of it: file and sha256."""
    write_whole(folder / name, text)
    return {"file": name, "sha256": sha256_of(folder / name)}


def words_beside(folder: Path, name: str, stated: dict[str, Any]) -> list[str]:
    """The words of the file `name` in a folder of weights, which must be the one that its config states."""
    words = read_words(folder / name)
    if sha256_of(folder / name) != stated.get("sha256"):
        raise WeightsError(f"{name} is not the one that these weights were saved with")
    return words


def required_words(
    vocabulary: str | None, model: str, rows: int, notes: list[str], added: str | None = None
) -> list[str]:
    """As many words as a checkpoint has rows, of BERT's vocab.txt by the setting `vocabulary`.

    model: name of the BERT whose words they are, for messages. added: a word that the checkpoint has behind
    those of BERT.
    """
    if vocabulary is None:
        fix = f"pass {option_name('vocabulary')}, the file vocab.txt of https://huggingface.co/{model}"
        raise InputError(Problem("", "the checkpoint holds no words", fix))
    file = expanded_path(vocabulary)
    words = read_words(file)
    notes.append(f"words: {file.name}, sha256 {sha256_of(file)[:12]}...")
    if added and len(words) == rows - 1 and added not in words:
        words.append(added)
    if len(words) != rows:
        found = f"{len(words)} words, but the model has {rows}" + (f", {added} included" if added else "")
        other = f"pass that of {model.rpartition('/')[2]}"
        raise wrong_option("vocabulary", vocabulary, found, other, verb="has")
    return words
