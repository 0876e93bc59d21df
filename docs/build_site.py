"""Build the documentation site into build/site: `make docs`.

The pages stay plain Markdown that also reads well in the repository. This script copies them to
build/site-pages, adds the pages at the root of the repository, writes the configuration of Zensical
with the navigation of docs/README.md, and builds build/site/VERSION. Any broken link, any page that
the navigation lacks and any warning ends it with an error. Folders of other versions are kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site-pages"
SITE = ROOT / "build" / "site"
VERSION = re.compile(r'__version__ = "([^"]+)"')
FENCE = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
ENTRY = re.compile(r"\| \[([^\]]+)\]\(([^)]+)\) \|")
# Pages outside docs/, and where the site has them.
ADDED = {
    "CONTRIBUTING.md": "contributors/contributing.md",
    "ARCHITECTURE.md": "contributors/architecture.md",
    "CHANGELOG.md": "contributors/changelog.md",
    "apps/clipscribe/README.md": "contributors/apps/clipscribe.md",
    "apps/pdfxml/README.md": "contributors/apps/pdfxml.md",
    "apps/render/README.md": "contributors/apps/render.md",
    "apps/videogen/README.md": "contributors/apps/videogen.md",
    "apps/watermark/README.md": "contributors/apps/watermark.md",
    "tools/labelled/README.md": "contributors/labelled.md",
}
# Pages for contributors that would fill every list of search results.
NOT_SEARCHED = re.compile(r"decisions/|contributors/(apps/|seeds|security-checks|storm|changelog)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SEARCH_SCRIPT = "https://unpkg.com/iframe-worker/shim"
CONFIG = """\
[project]
site_name = "Mulligan {version}"
site_description = "Durable Python jobs, built for the moment they fail"
docs_dir = "site-pages"
site_dir = "site/{version}"
use_directory_urls = false
extra_css = ["site/site.css"]
copyright = "Mulligan {version} · MIT licence"
nav = {nav}

[project.plugins.search]
[project.plugins.offline]

[project.extra]
generator = false

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.path", "navigation.tabs",
  "navigation.tabs.sticky", "navigation.top", "navigation.tracking", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
toc.slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
pymdownx.highlight.pygments_lang_class = true
pymdownx.inlinehilite = {{}}
pymdownx.superfences = {{}}
"""


def page_in_site(source: Path) -> str | None:
    """Return the path in the site of a file of the repository. None: the site does not have it."""
    name = source.relative_to(ROOT).as_posix()
    if name in ADDED:
        return ADDED[name]
    if source.is_relative_to(DOCS) and source.suffix in {".md", ".png", ".svg"}:
        return re.sub(r"README\.md$", "index.md", source.relative_to(DOCS).as_posix())
    if source.is_relative_to(ROOT / "apps") and source.suffix == ".png":
        return f"contributors/apps/{source.parent.name}-{source.name}"
    return None


def rewrite_links(text: str, source: Path) -> str:
    """Point links to pages of the site. A link to another file of the repository becomes its text."""

    def rewrite(match: re.Match[str]) -> str:
        mark, title, link = match.groups()
        path, hash_mark, anchor = link.partition("#")
        if "://" in link or not path:
            return match[0]
        target = page_in_site((source.parent / path).resolve())
        if target is None:
            return title
        here = Path(page_in_site(source) or "").parent
        relative = Path(os.path.relpath(target, here)).as_posix()
        return f"{mark}[{title}]({relative}{hash_mark}{anchor})"

    parts = FENCE.split(text)
    return "".join(
        part if index % 2 else LINK.sub(rewrite, part) for index, part in enumerate(parts)
    )


def sources() -> list[Path]:
    """Return every file that the site contains."""
    pages = sorted([*DOCS.rglob("*.md"), *(DOCS / "pictures").iterdir()])
    return [*pages, *(ROOT / name for name in ADDED), *sorted(ROOT.glob("apps/*/*.png"))]


def copy_pages() -> list[str]:
    """Fill build/site-pages. Return the paths of all pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    copied = []
    for source in sources():
        name = page_in_site(source)
        if name is None:
            continue
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copyfile(source, target)
            continue
        text = rewrite_links(source.read_text(encoding="utf-8"), source)
        target.write_text(decorate(text, name), encoding="utf-8")
        copied.append(name)
    shutil.copytree(DOCS / "site", PAGES / "site")
    return copied


def decorate(text: str, name: str) -> str:
    """Return the text of a page with what only the site needs."""
    # GitHub needs an escaped bar in the code of a table, Python-Markdown would show the backslash.
    text = TABLE_ROW.sub(
        lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text
    )
    if NOT_SEARCHED.match(name):
        return f"---\nsearch:\n  exclude: true\n---\n{text}"
    if name == "index.md":
        return f'{text}\n<p><a href="../versions.html">Documentation of other versions</a></p>\n'
    return text


def navigation() -> list[Any]:
    """Return the navigation: headings and tables of docs/README.md, and the list of decisions."""
    nav: list[Any] = [{"Home": "index.md"}]
    section: list[Any] = []
    entries = section
    for line in (DOCS / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = entries = []
            nav.append({line[3:]: section})
        elif line.startswith("### "):
            entries = []
            section.append({line[4:]: entries})
        elif found := ENTRY.match(line):
            page = page_in_site((DOCS / found[2]).resolve())
            entries.append({found[1]: list(decisions()) if found[1] == "Decisions" else page})
    return nav


def decisions() -> Iterator[Any]:
    yield "decisions/index.md"
    for page in sorted((DOCS / "decisions").glob("0*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        yield {title: f"decisions/{page.name}"}


def listed_pages(nav: Any) -> Iterator[str]:
    """Yield the path of every page of a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else ():
        yield from listed_pages(entry)
    for entry in nav.values() if isinstance(nav, dict) else ():
        yield from listed_pages(entry)


def as_toml(nav: Any) -> str:
    if isinstance(nav, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in nav.items()) + " }"
    if isinstance(nav, list):
        return "[" + ", ".join(map(as_toml, nav)) + "]"
    return json.dumps(nav)


def localise_scripts(site: Path) -> None:
    """Load the script that search needs on a file system from the site, not from a network."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        local = Path(os.path.relpath(site / "site/vendor/iframe-worker.js", page.parent)).as_posix()
        page.write_text(text.replace(SEARCH_SCRIPT, local), encoding="utf-8")


def write_entrance(version: str) -> None:
    """Write a page that opens this version, and a list of all versions."""
    target = f"{version}/index.html"
    head = '<!doctype html><meta charset="utf-8"><title>Mulligan</title>'
    refresh = f'<meta http-equiv="refresh" content="0; url={target}">'
    (SITE / "index.html").write_text(
        f'{head}{refresh}<a href="{target}">Mulligan {version}</a>\n', encoding="utf-8"
    )
    names = sorted((path.name for path in SITE.iterdir() if path.is_dir()), reverse=True)
    links = "".join(f'<li><a href="{name}/index.html">Mulligan {name}</a>' for name in names)
    (SITE / "versions.html").write_text(f"{head}<ul>{links}</ul>\n", encoding="utf-8")


def main() -> None:
    [version] = VERSION.findall((ROOT / "src/mulligan/_version.py").read_text(encoding="utf-8"))
    nav = navigation()
    missing = set(copy_pages()) - set(listed_pages(nav))
    if missing:
        sys.exit(f"docs/README.md does not list {', '.join(sorted(missing))}")
    shutil.rmtree(SITE / version, ignore_errors=True)
    config = ROOT / "build" / "zensical.toml"
    config.write_text(CONFIG.format(version=version, nav=as_toml(nav)), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(COLOUR.sub("", done.stdout))
    if done.returncode:
        sys.exit(COLOUR.sub("", done.stderr))
    localise_scripts(SITE / version)
    write_entrance(version)


if __name__ == "__main__":
    main()
