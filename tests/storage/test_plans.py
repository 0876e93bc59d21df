"""Query plans of SQLite: no statement may scan a whole table.

SQLite has no statistics here, so the plans of an empty file are those of a million jobs.
"""

import re

import pytest

from mulligan.jobs.filter import SearchPlan, build_conditions, follow_plan
from mulligan.storage.statements import load_statement, statement_names
from support.store import sql

WHOLE = re.compile(
    r"SCAN (?:mulligan_)?(?:job|attempt|event)\b"
    r"(?! (?:EXISTS )?USING (?:COVERING )?INDEX mulligan_)"
)
MAY = {
    "find_jobs_by_end",  # what a person typed
    "raise_tokens",  # once, after a restore
    "sum_costs_by_kind",  # the newest jobs, up to its limit
}


@pytest.fixture
def planned(sqlite):
    def plan(text):
        params = dict.fromkeys(re.findall(r":([a-z_]\w*)", text))
        return [row[3] for row in sql(sqlite, f"EXPLAIN QUERY PLAN {text}", params)]

    return plan


@pytest.mark.seed("000-84")
def test_no_statement_scans_a_whole_table(planned):
    names = [
        verb
        for verb in statement_names("sqlite")
        if "{matching}" not in load_statement(verb, "sqlite", "", matching="{matching}")
    ]
    assert len(names) > 150
    wrong = {
        verb: plan
        for verb in names
        if any(map(WHOLE.match, plan := planned(load_statement(verb, "sqlite", "mulligan_"))))
    }
    assert wrong.keys() == MAY, wrong


@pytest.mark.parametrize(
    ("state", "index"),
    [
        ("queued", "for_claim"),
        ("parked", "for_parked"),
        ("cancelled", "for_cancelled"),
        ("dead", "for_"),
    ],
)
def test_counting_a_state_reads_only_an_index(planned, state, index):
    from mulligan.jobs.queries import _compare_lane

    conditions = follow_plan(build_conditions({"state": state}), SearchPlan(("state",)))
    planned_conditions = _compare_lane(conditions) if state == "queued" else conditions
    text = load_statement(
        "count_jobs_unordered",
        "sqlite",
        "mulligan_",
        matching=planned_conditions.text("sqlite"),
    )
    assert f"COVERING INDEX mulligan_job_{index}" in " ".join(planned(text))
