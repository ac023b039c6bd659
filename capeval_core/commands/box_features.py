"""`capeval convert box-features`: features that 12-in-1 released in pickles, as a folder of `.npz` files."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from capeval_core.commands.interrupts import interruptible
from capeval_core.commands.outputs import tell_reasons, write
from capeval_core.commands.regions import make, manifest_in, refuse_another
from capeval_core.commands.terminal import WHOLE_LINES, Parser, paragraph, table
from capeval_core.errors import Words
from capeval_core.inputs.box_folder import Manifest, file_of, is_whole, npz_bytes
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.released_boxes import ReleasedBoxes

BOX_FEATURES = "box-features"
"""What is converted, in `capeval convert`."""
_SELECTION = "all"
"""The name of the rule that chose the boxes: the release's, which keeps 100."""


def convert_box_features(arguments: list[str]) -> int:
    """Run the command; its exit status."""
    flags = _parser().read(arguments)
    out: Path = flags.out
    kept = manifest_in(out)
    released = ReleasedBoxes.open(flags.released)
    manifest = Manifest(f"released:{released.name}", _SELECTION, "float32", released.fingerprint)
    refuse_another(out, kept, manifest)
    make(out, manifest)
    written = found = 0
    errors: list[str] = []
    with interruptible(f"what is in {out} stays: run the same command again to resume"):
        for entry in tqdm(released.entries(), "box features", released.count, unit="image", disable=None):
            try:
                image_id, features, key = entry.load()
            except Refused as refused:
                errors.append(f"{entry.name}: {Words().line(refused.problem(''))}")
                continue
            path = file_of(out, image_id)
            if path.exists() and is_whole(path, key):
                found += 1
            else:
                write("--out", path, npz_bytes(replace(features, selection=_SELECTION), key))
                written += 1
    counts = f"{written:,} written, {found:,} found, {len(errors):,} failed"
    print(table([["images", counts], ["box features", str(out)]], width=WHOLE_LINES), flush=True)
    tell_reasons(errors, released.count, "images")
    if len(errors) == released.count:
        return 1
    print(f"score with them:\n  pass --regions {shlex.quote(str(out))} to a metric on regions")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog=f"capeval convert {BOX_FEATURES}",
        usage=f"capeval convert {BOX_FEATURES} RELEASED --out FOLDER",
        description=paragraph(
            "Make a folder of .npz files, one per image, of box features that 12-in-1 released in pickles. "
            "They are read as plain data: nothing in them is run, and one that names anything but NumPy's "
            "arrays is refused."
        ),
        epilog=paragraph(
            "Images that have their file already are skipped, so the same command resumes a run."
        ),
    )
    forms = "the release's LMDB (folder or data.mdb), an .npy file, or a folder of .npy files"
    parser.add_argument("released", metavar="RELEASED", type=Path, help=forms)
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, required=True, help="folder to write, or to continue"
    )
    return parser
