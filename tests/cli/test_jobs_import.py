"""`mulligan jobs import`, pages for programs, and `mulligan jobs index`."""

from __future__ import annotations

import json

import click
import pytest

from mulligan.cli import completion as complete
from mulligan.jobs import queries as skimming


@pytest.fixture
def exported(app, call, folder):
    """Three dead jobs in a file."""
    made = [
        app.enqueue("refuse", {"text": f"row {n}"}, owner="acme", priority=n, max_retries=n)
        for n in range(3)
    ]
    app.run_inline()
    file = folder / "dead.jsonl"
    file.write_text(call("jobs", "export", "state:dead").out)
    return made, file


def imported(answer):
    return [line.split("\t") for line in answer.out.splitlines()]


@pytest.mark.seed("004-79")
def test_an_exported_dead_job_can_be_imported_and_runs_again(call, app, exported):
    jobs, file = exported
    answer = call("jobs", "import", file)
    assert (answer.code, answer.err) == (0, "3 queued\n")
    rows = imported(answer)
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert {tuple(row[2:]) for row in rows} == {("refuse", "queued")}
    new = [app.jobs.get(row[1]) for row in rows]
    assert not {job.id for job in new} & {job.id for job in jobs}
    for job, old in zip(new, reversed(jobs), strict=True):
        assert (job.kind, job.payload, job.owner, job.priority, job.max_retries, job.queue) == (
            old.kind,
            old.payload,
            old.owner,
            old.priority,
            old.max_retries,
            old.queue,
        )
    assert app.run_inline() == 3
    assert {app.jobs.get(job.id).state for job in new} == {"dead"}


def test_importing_a_file_twice_creates_no_duplicates(call, app, exported):
    _, file = exported
    first = call("jobs", "import", file)
    again = call("jobs", "import", file)
    assert [row[1] for row in imported(again)] == [row[1] for row in imported(first)]
    assert again.err == "0 queued, 3 already imported\n"
    assert app.jobs.count("state:queued") == 3


def test_import_keeps_unique_keys(call, app, folder):
    job = app.enqueue("refuse", unique="order 7")
    app.run_inline()
    (folder / "dead.jsonl").write_text(call("jobs", "export").out)
    (row,) = imported(call("jobs", "import", "dead.jsonl"))
    assert app.jobs.get(row[1]).unique_key == "order 7"
    assert app.enqueue("refuse", unique="order 7").id == row[1] != job.id


def test_a_dry_run_checks_every_line_and_changes_nothing(call, app, exported):
    _, file = exported
    with file.open("a") as more:
        more.write("nonsense\n")
    answer = call("jobs", "import", "--dry-run", file)
    assert answer.code == 1
    assert [row[3] for row in imported(answer)] == ["would be queued"] * 3
    assert "3 would be queued, 1 refused; nothing was changed" in answer.err
    assert app.jobs.count() == 3


BAD = {
    "nonsense": "not a line of JSON",
    "[1]": "not a job",
    '{"payload": {}}': "not a job",
    '{"kind": "add", "payload": {"a": 1, "b": NaN}}': "not a line of JSON",
    '{"kind": "add", "payload": [1]}': "the payload of add is not an object",
    '{"kind": "add", "payload": {"a": 1, "c": 2}}': "b: is missing",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "state": "succeeded"}': "only dead, parked and cancelled",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "state": ["dead"]}': "only dead, parked and cancelled",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "priority": 77}': "priority must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "owner": 7}': "owner must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "queue": "a|b"}': "queue",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "uses": 7}': "uses must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "unique_key": 7}': "unique_key must be",
    '{"kind": "mulligan.probe"}': "the prefix 'mulligan.' is reserved",
    '{"kind": ""}': "kind",
    "\udcff": "not a line of JSON",
}


def test_an_invalid_line_is_reported_and_the_others_are_imported(call, app, folder):
    app.run_inline()
    good = '{"kind": "add", "payload": {"a": 1, "b": 2}}'
    lines = [good, "", *BAD, good]
    (folder / "lines").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    answer = call("jobs", "import", "lines")
    assert answer.code == 1
    assert [row[0] for row in imported(answer)] == ["1", str(len(lines))]
    output = answer.err.splitlines()
    for number, (line, expected) in enumerate(BAD.items(), start=3):
        assert any(one.startswith(f"line {number}: ") and expected in one for one in output), (
            line,
            answer.err,
        )
    assert output[-1] == f"2 queued, {len(BAD)} refused"
    assert app.jobs.count() == 2


def test_json_output_includes_refused_lines(call, app, folder):
    (folder / "lines").write_text('{"kind": "ask"}\n{}\n')
    good, bad = json.loads(call("jobs", "import", "lines", "-o", "json").out)
    assert (good["line"], good["outcome"], bad["line"], bad["error"]["code"]) == (
        1,
        "queued",
        2,
        "PAYLOAD_REFUSED",
    )


def test_a_unique_key_conflict_refuses_only_its_line(call, app, folder):
    app.enqueue("nobody_knows_me", {"n": 1}, unique="k")
    record = {"kind": "nobody_knows_me", "payload": {"n": 2}, "unique_key": "k"}
    (folder / "lines").write_text(f'{{"kind": "ask"}}\n{json.dumps(record)}\n')
    answer = call("jobs", "import", "lines")
    assert answer.code == 1
    assert "line 2: unique key 'k' belongs to job" in answer.err
    assert [row[2] for row in imported(answer)] == ["ask"]
    assert "warning: no recent worker has kind ask" in answer.err


# --- Pages for programs ---
def test_page_as_json_has_cursor_and_count(call, app):
    for n in range(3):
        app.enqueue("add", {"a": 1, "b": n})
    page = json.loads(call("jobs", "list", "kind:add", "--limit", "2", "--page", "-o", "json").out)
    assert ([job["payload"]["b"] for job in page["jobs"]], page["partial"]) == ([2, 1], False)
    assert page["count"] == {"jobs": 3, "capped": False, "partial": False}
    rest = json.loads(
        call("jobs", "list", "kind:add", "--cursor", page["cursor"], "--page", "-o", "json").out
    )
    assert ([job["payload"]["b"] for job in rest["jobs"]], rest["cursor"]) == ([0], None)
    assert call("jobs", "list", "--page").code == 2


def test_a_partial_list_says_so_and_how_to_continue(call, app, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED_LIMIT", 4)
    monkeypatch.setattr(skimming, "FIRST_EXAMINED", 2)
    job = app.enqueue("ask")
    for n in range(5):
        app.enqueue("add", {"a": 1, "b": n})
    answer = call("jobs", "list", "kind:ask")
    assert (answer.code, answer.out) == (0, "")
    assert "Incomplete: stopped after reading" in answer.err
    cursor = answer.err.split("--cursor ")[1].split()[0]
    assert call("jobs", "list", "kind:ask", "--cursor", cursor).out.startswith(job.id)
    assert [
        json.loads(line)["id"] for line in call("jobs", "export", "kind:ask").out.splitlines()
    ] == [job.id]
    watched = json.loads(call("jobs", "watch", "kind:ask", "--timeout", "0.1", "-o", "json").out)
    assert (watched["partial"], watched["capped"]) == (["queued", "succeeded"], [])


# --- Arguments ---
def test_index_makes_old_jobs_searchable(call, app):
    job = app.enqueue("bill", {"customer": 7})

    @app.job(name="bill", index="customer")
    def bill(customer: int) -> None: ...

    assert call("jobs", "index", "bill").code == 3
    app.run_inline()
    assert call("jobs", "list", "arg.customer:7").out == ""
    assert call("jobs", "index", "bill").err == "1 jobs of bill indexed\n"
    assert call("jobs", "list", "arg.customer:7").out.startswith(job.id)
    assert complete.complete_filters(
        click.Context(click.Command("x")), click.Argument(["expected"]), "arg"
    ) == ["arg.customer:"]
    assert call("jobs", "index", "add").code == 2
    assert call("jobs", "list", "arg.a:1").code == 2
