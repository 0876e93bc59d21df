"""The catalog of named statements: what its files must contain, and how the macros expand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import mulligan
from mulligan.storage import statements
from mulligan.storage.statements import (
    expand_dialect,
    expand_rows,
    load_catalog,
    load_statement,
    statement_names,
)

PACKAGE = Path(mulligan.__file__).parent
DIALECTS = ("sqlite", "postgres")
MAX_SQL_FILES = 60
MACRO = re.compile(r"\{(?:[A-Za-z_]\w*|(?:if|in|lock|part|set|shared|no):[^}]*)\}")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return an empty package of features. The catalog reads its files."""
    (tmp_path / "shop").mkdir()
    monkeypatch.setattr(statements, "_PACKAGE", tmp_path)
    load_catalog.cache_clear()
    yield tmp_path / "shop"
    load_catalog.cache_clear()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_statement_keeps_a_macro(dialect):
    texts = {name: load_statement(name, dialect, "") for name in statement_names(dialect)}
    assert len(texts) > 200
    assert {name: MACRO.findall(text) for name, text in texts.items() if MACRO.search(text)} == {}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_and_fragment_is_used(dialect):
    constants = {
        node.value
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    }
    catalog = load_catalog(dialect)
    files = (file.read_text() for file in PACKAGE.rglob("*.sql"))
    fragments = {name for text in files for name in re.findall(r"\{part:(\w+)\}", text)}
    fragments |= {f"{name}_single" for name in fragments}  # their variants for one row
    assert [name for name in catalog if name not in constants | fragments] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_says_what_it_does(dialect):
    uncommented = [
        statement.name
        for statement in load_catalog(dialect).values()
        if not statement.text.startswith("-- ")
    ]
    assert uncommented == []


def test_the_statements_are_in_few_files_next_to_their_features():
    files = [*PACKAGE.rglob("*.sql")]
    assert len(files) <= MAX_SQL_FILES
    strangers = [
        str(file)
        for file in files
        if file.parent.name != "schema" and not file.name.startswith("queries.")
    ]
    assert strangers == []


def test_a_wheel_contains_the_statements():
    builder = WheelBuilder(str(PACKAGE.parent.parent))
    included = {file.distribution_path for file in builder.recurse_included_files()}
    paths = {str(Path("mulligan") / file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.sql")}
    assert paths <= included


def test_a_statement_of_one_database_replaces_the_general_one(package):
    (package / "queries.sql").write_text("-- name: count\n-- Count.\nSELECT 1\n")
    (package / "queries.sqlite.sql").write_text("-- name: count\n-- Count.\nSELECT 2\n")
    assert load_catalog("sqlite")["count"].text.endswith("SELECT 2")
    assert load_catalog("postgres")["count"].text.endswith("SELECT 1")


def test_a_name_that_occurs_twice_is_refused(package):
    (package / "queries.sql").write_text("-- name: count\nSELECT 1\n\n-- name: count\nSELECT 2\n")
    with pytest.raises(ValueError, match="statement 'count' is in shop/"):
        load_catalog("sqlite")


def test_comments_and_indentation_are_not_sent_to_the_database():
    text = expand_rows("get_batch_for_update", "postgres")
    assert "--" not in text
    assert text.startswith("SELECT id, name, owner,")


def test_the_macros_expand_to_the_form_of_each_database():
    text = "SELECT 1 WHERE a {in:ids} AND b {in:places bigint} {lock:FOR UPDATE}"
    assert expand_dialect(text, "sqlite") == (
        "SELECT 1 WHERE a IN (SELECT value FROM json_each(:ids))"
        " AND b IN (SELECT value FROM json_each(:places))"
    )
    assert expand_dialect(text, "postgres") == (
        "SELECT 1 WHERE a = ANY (CAST(:ids AS text[]))"
        " AND b = ANY (CAST(:places AS bigint[])) FOR UPDATE"
    )
