"""The user's files of captions: their flags, and their reading in the words of flags."""

from __future__ import annotations

import argparse
import os

from capeval_core.commands.arguments import add_flags, chosen, in_words_of_the_user
from capeval_core.errors import Problems
from capeval_core.inputs.collection import Collection, read_collection
from capeval_core.inputs.text_files import FileOptions

FILES = (
    "Files are JSON ({image id: caption}, {image id: [captions or references]}, COCO results, COCO "
    "annotations, Karpathy's), JSON lines, CSV, TSV, Flickr's lists or Parquet, told apart by their "
    "extension or else their content, also compressed with gzip; - is standard input. An image's id is its "
    "file name without the extension, or its path from the folder of images; for COCO also its number."
)


def add_file_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the columns and splits of files."""
    add_flags(parser, FileOptions, title="columns and splits of the files")


def read_files(
    flags: argparse.Namespace,
    images: str | os.PathLike[str] | None,
    *,
    candidates: str | os.PathLike[str] | None = None,
    wide: bool = False,
    medium: str = "image",
    problems: Problems | None = None,
    absent_too: bool = False,
) -> Collection:
    """The collection of --candidates, or of this file, and --references, where there is such a flag.

    images, wide, medium, problems, absent_too: those of `read_collection`, and so are the errors, in the
    words of flags.
    """
    file = flags.candidates if candidates is None else candidates
    references = getattr(flags, "references", None)
    with in_words_of_the_user(FileOptions):
        options = FileOptions(**chosen(flags, FileOptions))
        return read_collection(
            file,
            images,
            references,
            options=options,
            wide=wide,
            medium=medium,
            problems=problems,
            absent_too=absent_too,
        )
