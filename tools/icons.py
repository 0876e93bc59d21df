"""Build the icon sprite of the dashboard from an unpacked copy of the npm package lucide-static.

    npm pack lucide-static && tar xzf lucide-static-*.tgz
    python tools/icons.py package

Writes the icons of ICON_NAMES and the package's licence to the dashboard's vendor folder and renews their
entry in its manifest.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "src/mulligan/http/dashboard/static/vendor"
SPRITE = "icons.svg"
LICENCE = "lucide.LICENSE"
ICON_NAMES = """
activity arrow-down arrow-left arrow-right arrow-up ban bell bell-off boxes bug calendar-clock chart-line
check chevron-down chevron-left chevron-right circle circle-check circle-dashed circle-dot
circle-question-mark circle-user circle-x clock contrast copy cpu download ellipsis external-link gauge
hand history hourglass info keyboard layers layout-dashboard link list list-checks lock log-out menu minus
moon pause pencil play plug-zap rotate-cw search send server sliders-horizontal sparkles square star
stethoscope tag trending-up triangle-alert undo-2 unplug user x zap
"""


def read_shapes(package: Path, name: str) -> str:
    """Return the shapes of one icon on one line."""
    text = (package / "icons" / f"{name}.svg").read_text(encoding="utf-8")
    inner = re.fullmatch(r".*?<svg[^>]*>(.*)</svg>\s*", text, re.DOTALL)
    if inner is None:
        sys.exit(f"{name}.svg is not an icon")
    return "".join(line.strip().replace(" />", "/>") for line in inner[1].splitlines())


def build_sprite(package: Path, version: str) -> str:
    symbols = [
        f'<symbol id="i-{name}" viewBox="0 0 24 24">{read_shapes(package, name)}</symbol>'
        for name in ICON_NAMES.split()
    ]
    # An XML comment would be repeated in every page, so the version is an attribute.
    head = '<svg class="sprite" xmlns="http://www.w3.org/2000/svg" aria-hidden="true"'
    return "\n".join([f'{head} data-source="lucide-static {version}">', *symbols, "</svg>", ""])


def main(folder: str) -> None:
    package = Path(folder)
    about = json.loads((package / "package.json").read_text(encoding="utf-8"))
    sprite = build_sprite(package, about["version"])
    (VENDOR / SPRITE).write_text(sprite, encoding="utf-8")
    (VENDOR / LICENCE).write_text((package / "LICENSE").read_text(encoding="utf-8"))
    manifest = json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))
    manifest[SPRITE] = {
        "package": about["name"],
        "version": about["version"],
        "licence": about["license"],
        "licence_file": LICENCE,
        "sha256": hashlib.sha256(sprite.encode()).hexdigest(),
        "built_by": "tools/icons.py",
    }
    (VENDOR / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
