"""The matching kernels as a repository of the Hub's `kernels` library, made of the one source.

    python -m tools.hub_kernel OUT [--repository ORGANISATION/capeval-matching]

OUT gets `build.toml` and `torch-ext/` as `kernel-builder` reads them, and `build/torch-cuda/` as the library
loads it (a kernel in Triton needs no compiler). Nothing in `capeval_core` loads it:

    from kernels import get_kernel
    matching = get_kernel("ORGANISATION/capeval-matching", version=1, trust_remote_code=True)
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from capeval_core._version import __version__
from capeval_core.project import LICENCE

SOURCE = Path(__file__).parents[1] / "capeval_core" / "matching" / "triton_kernels.py"
NAME, MODULE, VERSION = "capeval-matching", "capeval_matching", 1
FACE = '''"""Greedy cosine matching of ragged sets in Triton, of capeval {version}."""

from .triton_kernels import Plan, Side, Tile, match

__all__ = ["Plan", "Side", "Tile", "match"]
'''
BUILD = """[general]
name = "{name}"
version = {number}
license = "{licence}"
backends = ["cuda"]
{hub}
[torch-noarch]

[kernel]
"""
CARD = """---
library_name: kernels
license: {licence}
tags:
  - kernels
---

# Greedy cosine matching of ragged sets

For each row of each set its largest cosine with a row of the other set of the pair, and which row that is, in
both directions at once, as BERTScore, EMScore and ViLBERTScore match. Rows are packed set after set, float16,
bfloat16 or float32 of any width, and are read once: nothing is padded, normalised or kept in between.

```python
matching = get_kernel("{repository}", version={number}, trust_remote_code=True)
x_side = matching.Side(lengths=x_lengths, of_pair=numpy.arange(len(x_lengths)))  # NumPy, on the host
y_side = matching.Side(lengths=y_lengths, of_pair=numpy.arange(len(y_lengths)))
(x_maxima, x_indices), (y_maxima, y_indices) = matching.match(x, y, x_side, y_side, indices=True)
```

Triton 3.4 or newer. Compiled for sm_80, sm_90 and sm_100 and run in Triton's interpreter; not yet run on a
GPU. The source is a file of capeval {version}, from which this repository is generated.
"""


def write(folder: Path, repository: str = "") -> None:
    """Write the repository into a folder, which may exist."""
    facts = {"name": NAME, "number": VERSION, "licence": LICENCE, "version": __version__}
    facts["hub"] = f'\n[general.hub]\nrepo-id = "{repository}"\n' if repository else ""
    facts["repository"] = repository or f"ORGANISATION/{NAME}"
    source = SOURCE.read_text(encoding="utf-8")
    identity = f"_{MODULE}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    metadata = {"id": identity, "name": NAME, "version": VERSION, "license": LICENCE}
    metadata |= {"python-depends": [], "backend": {"type": "cuda"}}
    package = {"__init__.py": FACE.format(**facts), "triton_kernels.py": source}
    card = CARD.format(**facts).replace(LICENCE, LICENCE.lower(), 1)
    files = {"build.toml": BUILD.format(**facts), "README.md": card}
    files |= {f"torch-ext/{MODULE}/{name}": text for name, text in package.items()}
    files |= {f"build/torch-cuda/{name}": text for name, text in package.items()}
    files["build/torch-cuda/metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.hub_kernel", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repository", default="", help="where it will be published")
    given = parser.parse_args()
    write(given.out, given.repository)


if __name__ == "__main__":
    main()
