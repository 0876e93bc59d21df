"""`mulligan batches …`."""

from __future__ import annotations

import json

import pytest

from mulligan.cli import completion as complete
from mulligan.cli.batches import NO_BATCHES


@pytest.fixture
def partial(app):
    """Two succeeded, one dead."""
    with app.batch("spring", owner="acme", tolerance=0) as batch:
        for n in range(2):
            app.enqueue("add", {"a": n, "b": 1}, batch=batch)
        app.enqueue("refuse", {"text": "moov atom"}, batch=batch)
    app.run_inline()
    return batch.refresh()


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def facts(answer):
    return dict(line.split("\t", 1) for line in answer.out.splitlines() if "\t" in line)


def test_list_shows_newest_first_with_counts(call, app, partial):
    other = app.batch("summer")
    first, second = rows(call("batches", "list"))
    assert first[:4] == [other.id, "processing", "summer", ""]
    assert second[:9] == [partial.id, "partial", "spring", "acme", "3", "2", "1", "0", "0"]


def test_list_takes_state_and_owner(call, app, partial):
    app.batch("summer")
    assert len(rows(call("batches", "list", "state:partial"))) == 1
    assert len(rows(call("batches", "list", "state:processing", "owner:acme"))) == 0
    answer = call("batches", "list", "state:done")
    assert (answer.code, "unknown batch state 'done'" in answer.err) == (2, True)
    answer = call("batches", "list", "kind:add")
    assert (answer.code, "mulligan jobs list batch:ID" in answer.err) == (2, True)
    assert "No batch matches" in call("batches", "list", "owner:nobody", "-o", "table").err


def test_a_page_prints_the_cursor_of_the_next(call, app):
    ids = [app.batch(f"b{n}").id for n in range(3)]
    answer = call("batches", "list", "--limit", 2)
    assert f"--cursor {ids[1]}" in answer.err
    assert [row[0] for row in rows(call("batches", "list", "--limit", 2, "--cursor", ids[1]))] == [
        ids[0]
    ]


def test_an_empty_list_says_how_to_create_a_batch(call, app):
    app.open()
    assert NO_BATCHES in call("batches", "list", "-o", "table").err


def test_show_prints_members_failures_and_events(call, partial):
    answer = call("batches", "show", partial.id[:22])
    assert answer.code == 0
    assert facts(answer)["members"] == "2 succeeded, 1 dead"
    assert "1  BAD_FILE  This file could not be read." in answer.out
    assert "batch.sealed" in answer.out
    assert "batch.partial" in answer.out
    assert f"mulligan batches retry {partial.id}" in answer.err
    assert f"mulligan jobs list batch:{partial.id}" in answer.err


def test_show_as_json_has_every_field(call, partial):
    record = json.loads(call("batches", "show", partial.id, "-o", "json").out)
    assert (record["state"], record["counts"]["total"], record["counts"]["dead"]) == (
        "partial",
        3,
        1,
    )
    assert record["failures"][0]["code"] == "BAD_FILE"
    assert [event["type"] for event in record["events"]] == ["batch.sealed", "batch.partial"]
    assert json.loads(call("batches", "list", "-o", "jsonl").out)["id"] == partial.id


def test_watch_ends_with_the_outcome(call, app, partial):
    answer = call("batches", "show", partial.id, "--watch")
    assert (answer.code, "partial: 2 succeeded, 1 dead" in answer.err) == (6, True)
    good = app.batch("good").seal()
    assert call("batches", "show", good.id, "-w").code == 0
    waiting = app.batch("waiting")
    answer = call("batches", "show", waiting.id, "-w", "--timeout", "0.1")
    assert (answer.code, "still processing" in answer.err) == (1, True)


def test_a_terminal_shows_a_bar(terminal, app, partial):
    shown = terminal("batches", "show", partial.id, "--watch").out
    assert "100%" in shown
    assert "█" in shown
    assert "spring" in terminal("batches", "list").out


def test_sealing_twice_is_refused(call, app):
    batch = app.batch("spring")
    [row] = rows(call("batches", "seal", batch.id))
    assert row[:2] == [batch.id, "ready"]
    answer = call("batches", "seal", batch.id)
    assert (answer.code, "[BATCH_SEALED]" in answer.err) == (5, True)
    assert app.batches.history(batch.id)[0].actor.startswith("cli:")


def test_retry_runs_dead_members_again(call, app, partial):
    answer = call("batches", "retry", partial.id, "--dry-run")
    assert (answer.code, "would retry 1 member; nothing was changed" in answer.err) == (0, True)
    assert app.batches.get(partial.id).generation == 1
    answer = call("batches", "retry", partial.id, "--reason", "file sent again")
    assert rows(answer)[0][1] == "processing"
    assert "retry: 1 of 1" in answer.err
    answer = call("batches", "retry", partial.id)
    assert (answer.code, "[NOTHING_FAILED]" in answer.err) == (5, True)
    assert call("batches", "retry", partial.id, "--dry-run").code == 5
    reopened = app.batches.history(partial.id)[-1]
    assert (reopened.type, reopened.data["reason"]) == ("batch.reopened", "file sent again")


def test_retry_as_json_lists_each_member(call, partial):
    record = json.loads(call("batches", "retry", partial.id, "-o", "json").out)
    assert (record["batch"]["state"], len(record["retried"]), record["refused"]) == (
        "processing",
        1,
        [],
    )


def test_cancel_stops_unfinished_members(call, app, partial):
    batch = app.batch("summer")
    app.enqueue("add", {"a": 1, "b": 1}, batch=batch, delay=60)
    answer = call("batches", "cancel", batch.id, "--dry-run")
    assert (answer.code, "would cancel 1 member and stop 0 running" in answer.err) == (0, True)
    assert not app.batches.get(batch.id).cancelled
    assert rows(call("batches", "cancel", batch.id, "--reason", "wrong list"))[0][1] == "failed"
    for dry in ((), ("--dry-run",)):
        answer = call("batches", "cancel", partial.id, *dry)
        assert (answer.code, "[ILLEGAL_MOVE]" in answer.err) == (5, True)


def test_an_unknown_batch_is_not_found(call, app):
    app.open()
    for command in ("show", "seal", "retry", "cancel"):
        answer = call("batches", command, "nobody")
        assert (answer.code, "no batch 'nobody'" in answer.err) == (3, True)
    assert call("batches", "show", "").code == 2


def test_a_member_shows_its_batch(call, app, partial):
    [dead] = app.batches.members(partial.id, "state:dead")
    assert "batch:        spring" in call("jobs", "show", dead.id).out
    assert json.loads(call("jobs", "show", dead.id, "-o", "json").out)["batch"]["name"] == "spring"
    assert f"spring ({partial.id}), partial" in call("jobs", "explain", dead.id).out


def test_an_expired_batch_cannot_be_retried(call, app):
    with app.batch("spring", expires_in=0.001) as batch:
        pass
    app.run_inline()
    answer = call("batches", "retry", batch.id)
    assert (answer.code, "[BATCH_EXPIRED]" in answer.err) == (5, True)


def test_a_member_can_be_enqueued_from_the_command_line(call, app):
    batch = app.batch("spring", owner="acme")
    answer = call("enqueue", "add", "a=1", "b=2", "--batch", batch.id[:24])
    assert app.jobs.get(answer.out.strip()).batch_id == batch.id
    assert call("enqueue", "add", "a=1", "b=2", "--batch", "nobody").code == 3
    batch.seal()
    answer = call("enqueue", "add", "a=1", "b=2", "--batch", batch.id)
    assert (answer.code, "[BATCH_SEALED]" in answer.err) == (5, True)


def test_the_shell_completes_batch_ids(app, partial):
    import click

    context = click.Context(click.Command("x"))
    context.params = {"database": None}
    assert complete.complete_batch_ids(context, click.Argument(["id"]), partial.id[:5]) == [
        partial.id
    ]
