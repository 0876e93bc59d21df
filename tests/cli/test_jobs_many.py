"""`mulligan jobs` on several jobs: repair, export, explain, watch."""

from __future__ import annotations

import json

import pytest

from mulligan.cli import job_transfer


@pytest.fixture
def three(app):
    """A dead, a parked and a succeeded job."""
    jobs = [app.enqueue("refuse"), app.enqueue("ask"), app.enqueue("add", {"a": 1, "b": 2})]
    app.run_inline()
    return jobs


# --- Repair ---
def test_each_job_has_its_own_result_and_the_first_error_sets_the_exit_code(call, app, three):
    dead, parked, done = three
    answer = call("jobs", "retry", dead.id, done.id, parked.id)
    assert answer.code == 5
    assert answer.out == f"{dead.id}\tqueued\tready\n{parked.id}\tqueued\tready\n".replace(
        "ready", "no_worker"
    )
    assert f"{done.id}: cannot retry" in answer.err
    assert "retry: 2 of 3" in answer.err


def test_json_output_includes_refused_jobs(call, three):
    dead, _, done = three
    records = json.loads(
        call("jobs", "discard", dead.id, done.id, "nobody", "--reason", "x", "-o", "json").out
    )
    assert [record.get("state") for record in records] == ["cancelled", None, None]
    assert [record["error"]["code"] for record in records[1:]] == ["ILLEGAL_MOVE", "NOT_FOUND"]


def test_a_dry_run_shows_the_changes_and_makes_none(call, app, three):
    dead, parked, _ = three
    for verb in (("retry",), ("discard", "--reason", "x")):
        answer = call("jobs", *verb, "--dry-run", dead.id, parked.id)
        assert answer.code == 0
        assert [line.split("\t")[0] for line in answer.out.splitlines()] == [dead.id, parked.id]
        assert "nothing was changed" in answer.err
    assert [app.jobs.get(job.id).state for job in (dead, parked)] == ["dead", "parked"]
    assert call("jobs", "release", "--dry-run", dead.id).code == 5


def test_bad_input_stops_before_the_first_job(call, app, three):
    dead, parked, _ = three
    assert call("jobs", "discard", dead.id, parked.id, "--reason", " ").code == 2
    assert app.jobs.get(dead.id).state == "dead"


# --- Export ---
def test_export_prints_every_job_once_across_pages(call, app, monkeypatch):
    monkeypatch.setattr(job_transfer, "PAGE_SIZE", 2)
    ids = {app.enqueue("add", {"a": 1, "b": n}).id for n in range(5)}
    app.enqueue("ask")
    answer = call("jobs", "export", "kind:add")
    records = [json.loads(line) for line in answer.out.splitlines()]
    assert len(records) == 5
    assert {record["id"] for record in records} == ids
    assert answer.err == "5 jobs\n"


def test_export_can_include_attempts(call, three):
    lines = call("jobs", "export", "state:dead", "--attempts").out.splitlines()
    (attempt,) = json.loads(lines[0])["attempts_made"]
    assert attempt["code"] == "BAD_FILE"


# --- Explain ---
def test_explain_shows_the_reason_the_rule_and_the_next_commands(call, app):
    job = app.enqueue("crash", {"text": "boom"})
    app.run_inline()
    output = call("jobs", "explain", job.id).out
    for expected in (
        "queue default, dead. As of",
        "PROGRAMMING_ERROR (class permanent: a retry would not help; rule py.programming-error)",
        "The job died: not retried",
        "To have such errors retried: Policy(retry_unknown=True)",
        "0 of 3 used  (system)",
        f"mulligan jobs retry {job.id}",
        f"mulligan jobs discard {job.id}",
    ):
        assert expected in output


def test_explain_shows_private_details_only_with_private(call, app):
    job = app.enqueue("crash", {"text": "boom"})
    app.run_inline()
    for form in ((), ("-o", "json")):
        assert "boom" not in call("jobs", "explain", job.id, *form).out.replace(
            '"text": "boom"', ""
        )
        assert "boom" in call("jobs", "explain", job.id, "--private", *form).out.replace(
            '"text": "boom"', ""
        )


def test_python_and_the_command_line_show_the_same_story(call, app, three):
    for job in three:
        text, out = app.jobs.explain(job.id).text, call("jobs", "explain", job.id).out
        assert out.split("What happened")[1].startswith(text.split("What happened")[1].rstrip())
        record = json.loads(call("jobs", "explain", job.id, "-o", "json").out)
        assert [one["text"] for one in record["story"]] == [
            one.text for one in app.jobs.explain(job.id).story
        ]


def test_explain_lists_the_choices_of_a_parked_job(call, app, three):
    output = call("jobs", "explain", three[1].id).out
    assert f"mulligan jobs release {three[1].id} --choice left" in output
    assert f"mulligan jobs release {three[1].id} --choice right" in output


def test_explain_says_what_a_queued_job_waits_for(call, app):
    job = app.enqueue("nobody_knows_me", max_retries=7, unique="k")
    record = json.loads(call("jobs", "explain", job.id, "-o", "json").out)
    facts = {fact["name"]: (fact["value"], fact["origin"]) for fact in record["facts"]}
    assert record["job"]["phase"] == "no_worker"
    assert facts["retries"] == ("0 of 7 used", "job")
    assert facts["matching workers"] == ("none is live", "")
    assert facts["unique key"] == ("k (reserved)", "job")
    assert record["next"][0] == "mulligan worker APP"


def test_explain_says_how_to_resume_a_paused_queue(call, app):
    job = app.enqueue("add", {"a": 1, "b": 2}, queue="mail")
    app.queues.pause("mail", reason="the provider is down")
    output = call("jobs", "explain", job.id).out
    assert "the provider is down" in output
    assert "mulligan queues resume mail" in output


def test_hints_repeat_the_database_option_without_its_password(call, app, store_url):
    job = app.enqueue("ask")
    (watch, *_) = [
        line
        for line in call("jobs", "explain", job.id, "--database", store_url).out.splitlines()
        if "watch" in line
    ]
    assert "--database" in watch


# --- Watch ---
def test_watching_a_filter_ends_when_nothing_waits_or_runs(call, app, three):
    answer = call("jobs", "watch", "kind:add")
    assert answer.code == 0
    assert "succeeded\t1" in answer.out
    everything = call("jobs", "watch", "-o", "json")
    assert everything.code == 6
    counts = json.loads(everything.out)
    assert (counts["dead"], counts["parked"], counts["succeeded"], counts["stops_at"]) == (
        1,
        1,
        1,
        10_000,
    )


def test_watching_a_filter_ends_at_its_timeout(call, app):
    app.enqueue("ask")
    answer = call("jobs", "watch", "kind:ask", "--timeout", "0.1")
    assert answer.code == 1
    assert "1 queued" in answer.err
    assert call("jobs", "watch", "kidn:ask").code == 2
