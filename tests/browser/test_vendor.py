"""What others wrote and we carry is what they published: same bytes, with their licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELVES = (ROOT / "src/mulligan/http/dashboard/static/vendor", ROOT / "tests/browser/vendor")


@pytest.mark.security("S54")
@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.parent.name)
def test_every_vendored_file_is_in_the_manifest_with_its_hash(shelf: Path) -> None:
    manifest = json.loads((shelf / "manifest.json").read_text())
    assert {file.name for file in shelf.glob("*.js")} == set(manifest)
    for name, told in manifest.items():
        assert hashlib.sha256((shelf / name).read_bytes()).hexdigest() == told["sha256"], name
        assert told["version"] in (shelf / name).read_text()
        assert (shelf / told["licence_file"]).read_text()
