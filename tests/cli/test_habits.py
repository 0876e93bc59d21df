"""Conventions that all commands share: exit codes, suggestions, help texts, output formats."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

import click
import pytest

from mulligan.cli import COMMANDS, EXIT_CODE_MEANINGS, cli, main
from mulligan.core import errors

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")


def iterate_commands(command: click.Command, path: tuple[str, ...] = ()):
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from iterate_commands(found, (*path, name))
    else:
        yield path, command


ALL = dict(iterate_commands(cli))


# --- Exit codes ---
def test_every_exit_code_has_a_meaning_and_every_error_an_exit_code():
    assert list(EXIT_CODE_MEANINGS) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreUnavailable("away"), 1),
        (errors.WaitTimeout("late"), 1),
        (errors.ConfigError("x"), 2),
        (errors.PayloadRefused("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.AccessDenied("x"), 4),
        (errors.IllegalMove("x"), 5),
        (errors.UniqueTaken("x"), 5),
    ],
)
def test_an_error_is_one_line_with_its_code(error, code, monkeypatch, capsys, folder):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("mulligan.cli.job_views.show_list", fail)
    assert main(["jobs", "list"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.rstrip().endswith(f"[{error.code}]")
    assert len(captured.err.splitlines()) == 1


def test_a_refused_login_exits_with_4(call, postgres_url):
    stranger = urlsplit(postgres_url)
    address = stranger.netloc.rpartition("@")[2]
    answer = call(
        "jobs", "list", "--database", stranger._replace(netloc=f"stranger@{address}").geturl()
    )
    assert answer.code == 4
    assert "refused the connection" in answer.err
    assert "[ACCESS_DENIED]" in answer.err


def test_missing_permissions_exit_with_4_without_a_traceback(call, file_app, monkeypatch):
    class Denied(Exception):
        sqlstate = "42501"

    Denied.__module__ = "psycopg.errors"

    def fail(*_, **__):
        raise Denied("permission denied for schema mulligan")

    monkeypatch.setattr("mulligan.cli.job_views.show_list", fail)
    answer = call("jobs", "list")
    assert answer.code == 4
    assert "permission denied" in answer.err


# --- Names and help ---
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (["jbos"], "jobs"),
        (["job", "list"], "jobs"),
        (["jobs", "lsit"], "list"),
        (["workers", "drian"], "drain"),
        (["events", "tial"], "tail"),
        (["jobs", "list", "--limt", "3"], "--limit"),
        (["worker", "jobs:app", "--concurency", "3"], "--concurrency"),
        (["jobs", "list", "sate:dead"], "state"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(call, file_app, wrong, right):
    file_app.enqueue("ask")
    answer = call(*wrong)
    assert (answer.code, answer.out) == (2, "")
    assert re.search(rf"did you mean '?{right}", answer.err, re.IGNORECASE)


def test_an_unknown_command_without_a_near_match_lists_all(call):
    assert "Available: demo, init" in call("xyzzy").err


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_has_a_help_text(path):
    command = ALL[path]
    assert command.help or path[0] in COMMANDS
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, f"{path} {parameter.opts}"


MANY = [
    ("jobs", "retry"),
    ("jobs", "cancel"),
    ("jobs", "release"),
    ("jobs", "discard"),
    ("workers", "drain"),
    ("migrate",),
]


@pytest.mark.parametrize("path", MANY, ids=" ".join)
def test_commands_that_change_many_rows_have_a_dry_run(path):
    assert "--dry-run" in {name for parameter in ALL[path].params for name in parameter.opts}


# --- Output ---
def test_a_terminal_gets_a_coloured_table_with_one_line_per_job(terminal, file_app):
    for _ in range(2):
        file_app.enqueue("refuse")
    file_app.run_inline()
    lines = terminal("jobs", "list").out.splitlines()
    assert COLOUR.search(lines[1])
    assert len(lines) == 3
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 100
    assert not COLOUR.search(terminal("jobs", "list", NO_COLOR="1").out)


def test_a_pipe_gets_tabs_and_no_colours_unless_forced(call, file_app, monkeypatch):
    file_app.enqueue("refuse")
    file_app.run_inline()
    assert "\t" in call("jobs", "list").out
    assert "\x1b" not in call("jobs", "list", "-o", "table").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert COLOUR.search(call("jobs", "list", "-o", "table").out)
    assert "\x1b" not in call("jobs", "list").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(call("jobs", "list", "-o", "table").out)


def test_a_job_is_watched_live_on_a_terminal(terminal, file_app):
    job = file_app.enqueue("ask")
    answer = terminal("jobs", "watch", job.id, "--timeout", "1")
    assert answer.code == 1
    assert "\x1b[2K" in answer.out, "a line is drawn over, not repeated"
    assert answer.out.count("no live worker") > 1


def test_an_export_into_a_file_shows_progress(terminal, file_app, folder):
    for _ in range(3):
        file_app.enqueue("ask")
    answer = terminal("jobs", "export", out=folder / "jobs.jsonl")
    assert len((folder / "jobs.jsonl").read_text().splitlines()) == 3
    assert "3/3" in answer.out
    assert "3 jobs" in answer.out


# --- Fields, header, hints ---
def test_json_prints_the_fields_that_are_named(call, file_app):
    file_app.enqueue("ask", {}, owner="acme")
    assert json.loads(call("jobs", "list", "--json", "kind,owner").out) == [
        {"kind": "ask", "owner": "acme"}
    ]
    wrong = call("jobs", "list", "--json", "kind,onwer")
    assert (wrong.code, "Did you mean 'owner'?" in wrong.err) == (2, True)
    assert call("jobs", "list", "--json", "kind", "-o", "tsv").code == 2
    lines = call("jobs", "list", "--json", "kind", "-o", "jsonl").out.splitlines()
    assert lines == ['{"kind": "ask"}']


def test_header_names_the_columns_of_tsv(call, file_app):
    file_app.enqueue("ask", {})
    header, row = call("jobs", "list", "--header").out.splitlines()
    assert header.split("\t")[:4] == ["id", "state", "phase", "kind"]
    assert row.split("\t")[3] == "ask"


def test_an_unknown_option_that_looks_like_a_filter_says_how_to_write_it(call, file_app):
    file_app.open()
    wrong = call("jobs", "list", "--stat", "dead")
    assert (wrong.code, "state:VALUE" in wrong.err) == (2, True)


def test_retry_with_a_limit_takes_the_newest_jobs(call, file_app):
    jobs = [file_app.enqueue("ask", {}) for _ in range(3)]
    for job in jobs:
        file_app.jobs.cancel(job.id)
    call("jobs", "retry", "--filter", "state:cancelled", "--limit", "2")
    assert [file_app.jobs.get(job.id).generation for job in jobs] == [1, 2, 2]
    assert call("jobs", "retry", jobs[0].id, "--limit", "2").code == 2


# --- Names of other programs ---
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["run"], "Write: mulligan worker APP"),
        (["start", "jobs:app"], "Write: mulligan worker APP"),
        (["list"], "Write: mulligan jobs list"),
        (["version"], "Write: mulligan --version"),
        (["worker", "-A", "jobs"], "The app is an argument: mulligan worker module:app"),
        (["worker", "jobs:app", "-c", "4"], "Write --concurrency."),
        (["worker", "jobs:app", "-Q", "mail"], "Write --queues."),
        (["enqueue", "add", "--n", "1"], "Arguments of the job are written n=VALUE."),
    ],
)
def test_a_name_of_another_program_is_answered_with_ours(arguments, advice, capsys):
    assert main(arguments) == 2
    assert advice in capsys.readouterr().err


def test_a_command_of_a_group_is_not_taken_for_one_of_another_program(capsys):
    assert main(["queues", "start"]) == 2
    assert "worker APP" not in capsys.readouterr().err
