"""The documentation site has every page, and its links stay within it."""

from __future__ import annotations

import sys

from doc_pages import ROOT, pages

sys.path.insert(0, str(ROOT / "docs"))

import build_site


def test_every_page_has_a_place_in_the_navigation() -> None:
    listed = list(build_site.listed_pages(build_site.navigation()))
    shown = [page for page in pages() if page != ROOT / "README.md"]
    assert sorted(filter(None, map(build_site.page_in_site, shown))) == sorted(
        page for page in listed if page != "contributors/labelled.md"
    )
    assert len(listed) == len(set(listed))


def test_a_link_to_a_page_stays_a_link_and_a_link_to_a_source_file_becomes_its_text() -> None:
    source = ROOT / "docs" / "operate" / "deploy.md"
    text = (
        "[changes](../../CHANGELOG.md#new) [all](../README.md) [code](../../src/mulligan/config.py)\n"
        "```text\n[as it is](../../src/mulligan/config.py)\n```\n"
    )
    assert build_site.rewrite_links(text, source) == (
        "[changes](../contributors/changelog.md#new) [all](../index.md) code\n"
        "```text\n[as it is](../../src/mulligan/config.py)\n```\n"
    )


def test_a_bar_in_the_code_of_a_table_is_shown_without_its_backslash() -> None:
    row = "| `a\\|b` | one \\| two |\n"
    assert build_site.decorate(row, "x.md") == "| `a|b` | one \\| two |\n"
