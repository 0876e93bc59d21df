"""Dead letters out as lines and in again as jobs; what lists say to programs; old jobs indexed."""

from __future__ import annotations

import json

import click
import pytest

from mulligan.cli import completion as complete
from mulligan.storage import search_queries as skimming


@pytest.fixture
def letters(app, call, folder):
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
def test_a_dead_letter_that_was_exported_and_imported_runs_again(call, app, letters):
    made, file = letters
    answer = call("jobs", "import", file)
    assert (answer.code, answer.err) == (0, "3 queued\n")
    rows = imported(answer)
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert {tuple(row[2:]) for row in rows} == {("refuse", "queued")}
    new = [app.jobs.get(row[1]) for row in rows]
    assert not {job.id for job in new} & {job.id for job in made}
    for job, old in zip(new, reversed(made), strict=True):
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


def test_a_file_that_is_imported_twice_makes_no_job_twice(call, app, letters):
    _, file = letters
    first = call("jobs", "import", file)
    again = call("jobs", "import", file)
    assert [row[1] for row in imported(again)] == [row[1] for row in imported(first)]
    assert again.err == "0 queued, 3 there already\n"
    assert app.jobs.count("state:queued") == 3


def test_jobs_keep_their_unique_keys(call, app, folder):
    job = app.enqueue("refuse", unique="order 7")
    app.run_inline()
    (folder / "dead.jsonl").write_text(call("jobs", "export").out)
    (row,) = imported(call("jobs", "import", "dead.jsonl"))
    assert app.jobs.get(row[1]).unique_key == "order 7"
    assert app.enqueue("refuse", unique="order 7").id == row[1] != job.id


def test_a_dry_run_checks_every_line_and_changes_nothing(call, app, letters):
    _, file = letters
    with file.open("a") as more:
        more.write("nonsense\n")
    answer = call("jobs", "import", "--dry-run", file)
    assert answer.code == 1
    assert [row[3] for row in imported(answer)] == ["would be queued"] * 3
    assert "3 would be queued; nothing was changed, 1 refused" in answer.err
    assert app.jobs.count() == 3


BAD = {
    "nonsense": "not a line of JSON",
    "[1]": "not a job",
    '{"payload": {}}': "not a job",
    '{"kind": "add", "payload": {"a": 1, "b": NaN}}': "not a line of JSON",
    '{"kind": "add", "payload": [1]}': "the payload of add is not an object",
    '{"kind": "add", "payload": {"a": 1, "c": 2}}': "lacks b",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "state": "succeeded"}': "only dead, parked and cancelled",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "state": ["dead"]}': "only dead, parked and cancelled",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "priority": 77}': "priority must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "owner": 7}': "owner must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "queue": "a|b"}': "queue",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "uses": 7}': "uses must be",
    '{"kind": "add", "payload": {"a": 1, "b": 2}, "unique_key": 7}': "unique_key must be",
    '{"kind": "mulligan.probe"}': "Mulligan's own",
    '{"kind": ""}': "kind",
    "\udcff": "not a line of JSON",
}


def test_a_bad_line_is_told_with_its_number_and_keeps_no_other_out(call, app, folder):
    app.run_inline()
    good = '{"kind": "add", "payload": {"a": 1, "b": 2}}'
    lines = [good, "", *BAD, good]
    (folder / "lines").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    answer = call("jobs", "import", "lines")
    assert answer.code == 1
    assert [row[0] for row in imported(answer)] == ["1", str(len(lines))]
    told = answer.err.splitlines()
    for number, (line, words) in enumerate(BAD.items(), start=3):
        assert any(one.startswith(f"line {number}: ") and words in one for one in told), (
            line,
            answer.err,
        )
    assert told[-1] == f"2 queued, {len(BAD)} refused"
    assert app.jobs.count() == 2


def test_as_json_refusals_are_among_the_answers(call, app, folder):
    (folder / "lines").write_text('{"kind": "ask"}\n{}\n')
    good, bad = json.loads(call("jobs", "import", "lines", "-o", "json").out)
    assert (good["line"], good["outcome"], bad["line"], bad["error"]["code"]) == (
        1,
        "queued",
        2,
        "PAYLOAD_REFUSED",
    )


def test_a_key_that_another_payload_holds_refuses_its_line_alone(call, app, folder):
    app.enqueue("nobody_knows_me", {"n": 1}, unique="k")
    record = {"kind": "nobody_knows_me", "payload": {"n": 2}, "unique_key": "k"}
    (folder / "lines").write_text(f'{{"kind": "ask"}}\n{json.dumps(record)}\n')
    answer = call("jobs", "import", "lines")
    assert answer.code == 1
    assert "line 2: unique key 'k' belongs to job" in answer.err
    assert [row[2] for row in imported(answer)] == ["ask"]
    assert "warning: no worker has named kind ask" in answer.err


# -- lists for programs -------------------------------------------------------------------------------
def test_a_page_tells_programs_what_they_do_not_see(call, app):
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


def test_a_partial_list_says_so_and_how_to_go_on(call, app, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED", 4)
    monkeypatch.setattr(skimming, "AT_FIRST", 2)
    job = app.enqueue("ask")
    for n in range(5):
        app.enqueue("add", {"a": 1, "b": n})
    answer = call("jobs", "list", "kind:ask")
    assert (answer.code, answer.out) == (0, "")
    assert "this is a part" in answer.err
    cursor = answer.err.split("--cursor ")[1].split()[0]
    assert call("jobs", "list", "kind:ask", "--cursor", cursor).out.startswith(job.id)
    assert [
        json.loads(line)["id"] for line in call("jobs", "export", "kind:ask").out.splitlines()
    ] == [job.id]
    watched = json.loads(call("jobs", "watch", "kind:ask", "--timeout", "0.1", "-o", "json").out)
    assert (watched["partial"], watched["capped"]) == (["queued", "succeeded"], [])


# -- arguments ----------------------------------------------------------------------------------------
def test_old_jobs_of_a_kind_are_indexed_by_a_command(call, app):
    job = app.enqueue("bill", {"customer": 7})

    @app.job(name="bill", index="customer")
    def bill(customer: int) -> None: ...

    assert call("jobs", "index", "bill").code == 3
    app.run_inline()
    assert call("jobs", "list", "arg.customer:7").out == ""
    assert call("jobs", "index", "bill").err == "1 jobs of bill are indexed\n"
    assert call("jobs", "list", "arg.customer:7").out.startswith(job.id)
    assert complete.filters(
        click.Context(click.Command("x")), click.Argument(["words"]), "arg"
    ) == ["arg.customer:"]
    assert call("jobs", "index", "add").code == 2
    assert call("jobs", "list", "arg.a:1").code == 2
