"""`mulligan deps`: list, open, close, probe and limit dependencies."""

from __future__ import annotations

import json

import pytest

from mulligan import Policy
from mulligan.cli import completion as complete
from mulligan.cli.gates import NO_DEPENDENCIES


@pytest.fixture
def call_gateway(app):
    """A job whose gateway is down."""
    app.dependency("gateway", min_calls=3, max_concurrency=8)

    @app.job(name="call", uses="gateway", policy=Policy(max_retries=9))
    def call(number: int) -> None:
        raise ConnectionError

    return call


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def bring_down(app, kind, jobs=20):
    kind.enqueue_many([{"number": number} for number in range(jobs)])
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"


def test_an_empty_list_says_how_to_declare_a_dependency(terminal, file_app):
    file_app.open()
    assert " ".join(NO_DEPENDENCIES.split()) in " ".join(terminal("deps", "list").out.split())


def test_list_shows_an_open_breaker_with_reason_and_next_probe(call, app, call_gateway):
    bring_down(app, call_gateway)
    (row,) = rows(call("deps", "list"))
    name, status, held, running, _, concurrency, _, _, mode, reason = row
    assert (name, running, concurrency, mode) == ("gateway", "0", "8", "hold")
    assert status.startswith("down for ")
    assert "next probe in " in status
    assert int(held) > 0
    assert "3 of 3 calls failed in the last 2 min" in reason
    assert reason.endswith("(breaker)")
    (record,) = json.loads(call("deps", "list", "-o", "json").out)
    assert (record["state"], record["probing"], record["set_by_hand"]) == ("open", False, False)


def test_open_and_close_record_actor_and_reason_and_print_the_next_command(call, app, call_gateway):
    call_gateway.enqueue(number=1)
    opened = call("deps", "open", "gateway", "--new", "--for", "2h", "--reason", "they told us")
    (row,) = rows(opened)
    assert row[1] == "down for 0 s, up again in 2 h"
    assert row[2] == "1"
    assert row[-1].startswith("they told us (cli:")
    assert "mulligan deps close gateway" in opened.err
    closed = rows(call("deps", "close", "gateway", "--for", "1h"))
    assert closed[0][1].startswith("recovering at ")
    assert closed[0][1].endswith(", kept up for 1 h")
    assert app.dependencies.get("gateway").state == "ramping"


def test_probe_is_refused_unless_the_breaker_is_open(call, app, call_gateway):
    bring_down(app, call_gateway)
    assert rows(call("deps", "probe", "gateway"))[0][1].endswith("next probe in 0 s")
    call("deps", "close", "gateway")
    refused = call("deps", "probe", "gateway")
    assert refused.code == 5
    assert "is not open" in refused.err
    call("deps", "open", "gateway", "--for", "1h")
    assert "mulligan deps close gateway" in call("deps", "probe", "gateway").err


@pytest.mark.parametrize("verb", ["open", "close", "probe", "set"])
def test_an_unknown_key_is_not_found_and_not_created(call, app, call_gateway, verb):
    call_gateway.enqueue(number=1)
    answer = call("deps", verb, "gatway", *(("--rate", "1/s") if verb == "set" else ()))
    assert answer.code == 3
    assert "Did you mean gateway?" in answer.err
    assert [one.key for one in app.dependencies.list()] == ["gateway"]


def test_set_changes_one_limit_until_cleared(call, app, call_gateway):
    app.run_inline()
    call("deps", "set", "gateway", "--concurrency", "3", "--reason", "gently")
    (row,) = rows(call("deps", "set", "gateway", "--rate", "100/m", "--for", "1h"))
    assert row[1] == "up, limits set"
    assert row[5:7] == ["3", "1.7 a second"]
    assert app.dependencies.get("gateway").set_until is not None
    record = json.loads(call("deps", "set", "gateway", "--concurrency", "none", "-o", "json").out)
    assert (record["concurrency"], record["set_by_hand"]) == (None, True)
    (row,) = rows(call("deps", "set", "gateway", "--clear"))
    assert (row[1], row[5], row[6]) == ("up", "8", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set", "gateway"), "concurrency=, rate= or both"),
        (("set", "gateway", "--rate", "often"), "5/s"),
        (("set", "gateway", "--clear", "--rate", "1"), "--clear cannot be combined"),
        (("open", "two words", "--new"), "without spaces"),
        (("open", "gateway", "--for", "soon"), "2h"),
    ],
)
def test_invalid_arguments_are_refused_and_change_nothing(
    call, app, call_gateway, arguments, expected
):
    app.run_inline()
    answer = call("deps", *arguments)
    assert answer.code == 2
    assert expected in answer.err
    found = app.dependencies.get("gateway")
    assert (found.state, found.set_by_hand) == ("closed", False)


def test_the_shell_completes_dependency_keys(app, call_gateway):
    import click

    app.run_inline()
    context = click.Context(click.Command("deps"))
    assert complete.complete_dependencies(context, click.Argument(["key"]), "ga") == ["gateway"]
