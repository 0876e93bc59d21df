"""Vendored files are unchanged copies, with version and licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENDOR_FOLDERS = (
    ROOT / "src/mulligan/http/dashboard/static/vendor",
    ROOT / "tests/browser/vendor",
    ROOT / "docs/site/vendor",
)


@pytest.mark.security("S54")
@pytest.mark.parametrize("folder", VENDOR_FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_vendored_file_is_in_the_manifest_with_its_hash(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {file.name for file in folder.iterdir() if file.suffix in {".js", ".svg"}} == set(
        manifest
    )
    for name, entry in manifest.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert entry["version"] in (folder / name).read_text()
        assert (folder / entry["licence_file"]).read_text()
