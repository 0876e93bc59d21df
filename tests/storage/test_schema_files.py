"""The schema and statement files: the same on both databases, and explained in plain words."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import mulligan
from mulligan.storage import migrations

TABLE = re.compile(r"^CREATE TABLE \{p\}(\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r"^  ([a-z]\w*) +[A-Z]", re.MULTILINE)
INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (?:\{p\})?(\w+)\s+ON \{p\}(\w+)", re.MULTILINE)


def schema_text(dialect):
    return (migrations.SCHEMA_FOLDER / f"0001_initial.{dialect}.sql").read_text()


def columns(dialect):
    return {name: COLUMN.findall(body) for name, body in TABLE.findall(schema_text(dialect))}


def test_both_databases_have_the_same_tables_and_columns_in_the_same_order():
    assert columns("sqlite") == columns("postgres")
    assert len(columns("sqlite")) == schema_text("sqlite").count("CREATE TABLE")
    assert all(columns("sqlite").values())


def test_both_databases_have_the_same_indexes():
    text = schema_text("sqlite")
    found = INDEX.findall(text)
    assert sorted(found) == sorted(INDEX.findall(schema_text("postgres")))
    assert len(found) == len(re.findall(r"^CREATE (?:UNIQUE )?INDEX", text, re.MULTILINE))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_table_and_index_has_a_comment(dialect):
    lines = schema_text(dialect).splitlines()
    bare = [
        line
        for above, line in pairwise(lines)
        if re.match(r"CREATE (TABLE|INDEX|UNIQUE)", line) and not above.startswith("--")
    ]
    assert bare == []
    for name, _ in TABLE.findall("\n".join(lines)):
        assert re.search(rf"^-- {name}: \S", "\n".join(lines), re.MULTILINE), name


def test_every_statement_file_starts_with_what_it_does():
    folder = Path(mulligan.__file__).parent
    files = folder.rglob("queries*.sql")
    first_lines = {str(file): file.read_text().splitlines()[0] for file in files}
    assert first_lines
    assert [name for name, line in first_lines.items() if not re.match(r"-- [A-Z]", line)] == []
