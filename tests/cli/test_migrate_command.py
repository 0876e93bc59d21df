"""`mulligan migrate` creates and upgrades the schema."""

from __future__ import annotations

import pytest

from mulligan.storage import same_database


def test_a_dry_run_changes_nothing_and_the_real_one_is_safe_to_repeat(call, empty_url, folder):
    planned = call("migrate", "--dry-run", "--database", empty_url)
    assert planned.code == 0
    assert planned.out.splitlines()[0].endswith("\tpending")
    assert call("jobs", "list", "--database", empty_url).code == 1

    applied = call("migrate", "--database", empty_url)
    assert applied.out == planned.out.replace("pending", "applied")
    again = call("migrate", "--database", empty_url)
    assert (again.code, again.out, again.err) == (0, "", "The schema is up to date.\n")


def test_a_dry_run_creates_no_file(call, folder):
    assert call("migrate", "--dry-run").code == 0
    assert not (folder / "mulligan.db").exists()


def test_an_unknown_database_url_is_a_usage_error(call):
    assert call("migrate", "--database", "mysql://x").code == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sqlite:///a.db", "sqlite:///./a.db", True),
        ("sqlite:///a.db", "sqlite+stdlib:///a.db", True),
        ("sqlite:///a.db", "sqlite:///b.db", False),
        ("postgres://h/db", "postgresql+psycopg://h/db", True),
        ("postgresql://h/db", "postgresql://h/other", False),
        ("postgresql://h/db", "sqlite:///db", False),
    ],
)
def test_two_spellings_of_one_database_are_the_same(one, other, same):
    assert same_database(one, other) is same
