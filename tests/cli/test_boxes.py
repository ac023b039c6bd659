"""`capeval regions`: folders of box features that metrics read."""

from __future__ import annotations

from pathlib import Path

from capeval_core.demo import demo_set
from tests.cli.conftest import Capeval, read_json, write_json


def test_a_stale_folder_of_features_is_refused_or_made_again(capeval: Capeval, tmp_path: Path) -> None:
    """Features of another picture under the same name, of another type, of another encoder."""
    images, out = tmp_path / "images", tmp_path / "boxes"
    images.mkdir()
    for name, scene in zip("ab", demo_set(), strict=False):
        (images / f"{name}.png").write_bytes(scene.image.read_bytes())
    given = ["regions", "--images", images, "--weights", "tiny", "--device", "cpu", "--out"]
    assert capeval(*given, out).status == 0
    before = {name: (out / f"{name}.npz").read_bytes() for name in "ab"}
    (images / "a.png").write_bytes(demo_set()[5].image.read_bytes())
    ran = capeval(*given, out)
    assert ran.status == 0 and "1 written, 1 found" in ran.out
    assert capeval(*given, tmp_path / "fresh").status == 0
    for name in "ab":
        found = (out / f"{name}.npz").read_bytes()
        assert found == (tmp_path / "fresh" / f"{name}.npz").read_bytes()
        assert (found == before[name]) == (name == "b")
    stamp = read_json(out / "regions.json")
    for key, shown in (("fingerprint", "encoder"), ("selection", "selection"), ("dtype", "dtype")):
        write_json(out / "regions.json", stamp | {key: "other"})
        ran = capeval(*given, out)
        assert ran.status == 2 and f"has regions of {shown} " in ran.err
        assert (out / "a.npz").read_bytes() == (tmp_path / "fresh" / "a.npz").read_bytes()
