"""How SQLite goes about each statement, so that none begins to read a whole table one day without anybody noticing.

It keeps no statistics, so it plans an empty file as it plans a million jobs.
"""

import re
from pathlib import Path

import pytest

from mulligan.storage import sql as statements
from mulligan.storage.search_queries import SearchPlan, build_conditions, follow_plan
from mulligan.storage.sql import load_statement
from support.store import sql

WHOLE = re.compile(
    r"SCAN (?:mulligan_)?(?:job|attempt|event)\b(?! USING (?:COVERING )?INDEX mulligan_)"
)
MAY = {
    "raise_tokens",  # after a restore, once
    "sum_costs_by_kind",  # the newest, as many as its limit says
}
FOLDER = Path(statements.__file__).parent
VERBS = sorted(
    path.name.split(".")[0]
    for path in FOLDER.glob("*.sql")
    if not path.name.endswith((".part.sql", ".postgres.sql"))
)


@pytest.fixture
def planned(sqlite):
    def plan(text):
        params = dict.fromkeys(re.findall(r":([a-z_]\w*)", text))
        return [row[3] for row in sql(sqlite, f"EXPLAIN QUERY PLAN {text}", params)]

    return plan


def test_no_statement_passes_all_jobs_attempts_or_events(planned):
    plain = [
        verb for verb in VERBS if "{matching}" not in statements._statement_file(verb, "sqlite").read_text()
    ]
    assert len(plain) > 150
    wrong = {
        verb: plan
        for verb in plain
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
def test_to_count_a_state_reads_an_index_alone(planned, state, index):
    from mulligan.storage.search_queries import _compare_lane

    asked = follow_plan(build_conditions({"state": state}), SearchPlan(("state",)))
    text = load_statement(
        "count_jobs_unordered",
        "sqlite",
        "mulligan_",
        shape=(_compare_lane(asked) if state == "queued" else asked).shape,
    )
    assert f"COVERING INDEX mulligan_job_{index}" in " ".join(planned(text))
