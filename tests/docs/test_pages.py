"""Links of pages work, and their lists are complete."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from doc_pages import ROOT, name_of, pages, prose

import mulligan
from mulligan.app.kind import Kind, build_handler
from mulligan.batches.service import Batches
from mulligan.jobs.service import Jobs

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CITED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
SOURCE = ROOT / "src" / "mulligan"
PYTHON = ROOT / "docs" / "reference" / "python.md"


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_work(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, part = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if part:
            headings = re.findall(r"^#+ (.+)$", prose(target), re.MULTILINE)
            assert part in [anchor(heading) for heading in headings], (
                f"{name_of(page)} links to {link}"
            )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_cited_tests_exist(page: Path) -> None:
    for file, name in CITED.findall(prose(page)):
        assert (ROOT / file).exists(), f"{name_of(page)} cites {file}"
        assert not name or f"def {name}(" in (ROOT / file).read_text(), (
            f"{name_of(page)} cites {file}::{name}"
        )


def test_every_page_can_be_reached_from_the_readme() -> None:
    visited: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        here = waiting.pop()
        if here not in visited and here.suffix == ".md" and here.exists():
            visited.add(here)
            links = [
                link.partition("#")[0] for link in LINK.findall(prose(here)) if "://" not in link
            ]
            waiting += [(here.parent / link).resolve() for link in links if link]
    assert [name_of(page) for page in pages() if page not in visited] == []


def test_every_page_is_listed_in_the_docs_readme() -> None:
    docs = ROOT / "docs"
    listed = {(docs / link).resolve() for link in LINK.findall(prose(docs / "README.md"))}
    expected = {page for page in docs.rglob("*.md") if page.parent.name != "decisions"}
    assert {name_of(page) for page in expected - listed - {docs / "README.md"}} == set()


def code_names(page: Path) -> set[str]:
    """Return every name in inline code of a page."""
    return {
        word
        for code in re.findall(r"`([^`\n]+)`", prose(page))
        for word in re.findall(r"\w+", code)
    }


def members(thing: type) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


# Members of a context that only the runner uses.
FOR_THE_RUNNER = {
    "seq",
    "lease",
    "spent",
    "current_callback",
    "stop_observed",
    "keeps_exception",
    "raised",
    "stop_requested",
    "request_stop",
    "has_workdir",
    "clean_up",
    "traced",
    "needs_cleanup",
    "requested_wait",
}
FOR_THE_RUNNER |= {"started_programs", "end_programs"}
FOR_THE_RUNNER |= {"find_failed_step", "unused_steps"}
FOR_THE_RUNNER |= {"count_undoable", "undo_steps", "undo_steps_async"}


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("the public names", set(mulligan.__all__)),
        (
            "the options of @app.job",
            set(inspect.signature(build_handler).parameters)
            - {"function", "retention_settings", "app_rules"},
        ),
        ("the options of enqueue", set(inspect.signature(Kind.options).parameters) - {"self"}),
        (
            "the fields of a job",
            {f.name for f in dataclasses.fields(mulligan.Job) if not f.name.startswith("_")},
        ),
        ("the members of a context", members(mulligan.Context) - FOR_THE_RUNNER),
        (
            "the verbs of app.jobs",
            members(Jobs) - {"wait_async"},  # app.aio.jobs.wait
        ),
        ("the verbs of app.batches", members(Batches) - {"begin", "seal_async"}),
        ("what a batch has", members(mulligan.Batch)),
    ],
)
def test_the_reference_is_complete(what: str, names: set[str]) -> None:
    assert names - code_names(PYTHON) == set(), what


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall(prose(folder / "README.md")))
    assert {path.name for path in folder.glob("0*.md")} == listed


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_pictures_exist(page: Path) -> None:
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", prose(page)):
        assert (page.parent / picture).exists()
