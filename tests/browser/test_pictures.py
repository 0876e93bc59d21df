"""The pictures in the docs are those that `make pictures` takes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
SHOWN = re.compile(r"!\[[^\]]+\]\((?:\.\./|docs/)pictures/([\w-]+)\.png\)")


def test_each_picture_has_its_declared_size_and_is_small() -> None:
    for shot in pictures["SHOTS"]:
        path = pictures["FOLDER"] / f"{shot.name}.png"
        with Image.open(path) as image:
            assert image.size == (shot.width, shot.height), shot.name
        assert path.stat().st_size <= pictures["MAX_BYTES"]


def test_each_picture_is_used_in_the_docs() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in SHOWN.findall(page.read_text(encoding="utf-8"))}
    names = {shot.name for shot in pictures["SHOTS"]}
    assert shown == names
    assert {path.stem for path in pictures["FOLDER"].glob("*.png")} == names
