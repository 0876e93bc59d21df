"""`mulligan doctor`: checks, settings with their origin, and exit codes."""

from __future__ import annotations

import json


def checks(answer):
    return {check["check"]: check for check in json.loads(answer.out)["checks"]}


def test_every_setting_is_shown_with_its_origin(call, app, folder, monkeypatch):
    (folder / "mulligan.toml").write_text("[worker]\nconcurrency = 3\n")
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "20")
    app.enqueue("ask")
    record = {one["name"]: one for one in json.loads(call("doctor", "-o", "json").out)["settings"]}
    assert record["worker.concurrency"] == {
        "name": "worker.concurrency",
        "value": 3,
        "origin": "mulligan.toml",
    }
    assert record["worker.lease"]["origin"] == "environment MULLIGAN_WORKER__LEASE"
    assert record["worker.poll"]["origin"] == "default"


def test_no_check_fails_on_a_healthy_database(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    answer = call("doctor", "-o", "json")
    found = checks(answer)
    assert answer.code == 0
    assert {
        found[name]["status"]
        for name in ("database", "schema", "durability", "clock", "lease", "kinds")
    } == {"ok"}
    assert found["workers"]["next"] == "mulligan worker APP"


def test_warns_about_jobs_of_an_unknown_kind(call, app):
    app.enqueue("nobody_knows_me")
    found = checks(call("doctor", "-o", "json"))
    assert found["kinds"]["status"] == "warn"
    assert "nobody_knows_me" in found["kinds"]["found"]


def test_a_missing_file_fails_and_is_not_created(call, folder):
    answer = call("doctor", "-o", "json")
    assert answer.code == 1
    assert checks(answer)["database"]["next"] == "mulligan migrate"
    assert not (folder / "mulligan.db").exists()


def test_an_empty_database_fails_and_suggests_migrate(call, postgres_url):
    answer = call("doctor", "-o", "json", "--database", postgres_url)
    assert answer.code == 1
    schema = checks(answer)["schema"]
    assert (schema["status"], schema["found"], schema["next"]) == (
        "fail",
        "not created yet",
        "mulligan migrate",
    )


def test_an_unreachable_server_fails_without_showing_the_password(call, impatient):
    answer = call(
        "doctor",
        "-o",
        "json",
        "--database",
        "postgresql://nobody:s3cret@127.0.0.1:1/none?connect_timeout=1",
    )
    assert answer.code == 1
    assert checks(answer)["database"]["status"] == "fail"
    assert "s3cret" not in answer.out + answer.err


def test_a_file_that_is_not_a_database_fails_the_check(call, folder):
    (folder / "mulligan.db").write_text("dear diary, " * 1000)
    answer = call("doctor", "-o", "json")
    assert answer.code == 1
    assert checks(answer)["database"]["status"] == "fail"


def test_warns_about_a_readable_file_and_a_short_lease(call, folder, monkeypatch):
    call("migrate")
    (folder / "mulligan.db").chmod(0o644)
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "6")
    answer = call("doctor", "-o", "json")
    found = checks(answer)
    assert answer.code == 0
    assert found["permissions"]["next"].startswith("chmod 600 ")
    assert found["lease"]["status"] == "warn"


def test_prints_a_table_or_tsv(call, folder):
    call("migrate")
    assert "sqlite:///mulligan.db" in call("doctor", "-o", "table").out
    kinds = {line.split("\t")[0] for line in call("doctor").out.splitlines()}
    assert kinds == {"setting", "fact", "check"}


# --- SQL statements ---
def test_a_statement_is_printed_as_each_database_runs_it(call):
    out = call("doctor", "--sql", "lock_batches").out
    assert out.splitlines() == [
        "-- lock_batches on SQLite (batches/queries.sql)",
        (
            "SELECT id FROM mulligan_batch_progress"
            " WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id"
        ),
        "",
        "-- lock_batches on PostgreSQL (batches/queries.sql)",
        (
            'SELECT id FROM "mulligan".batch_progress'
            " WHERE id = ANY (CAST(%(ids)s AS text[])) ORDER BY id FOR UPDATE"
        ),
        "",
    ]


def test_a_printed_statement_names_the_configured_schema(call, monkeypatch):
    monkeypatch.setenv("MULLIGAN_SCHEMA_NAME", "shop")
    (record,) = json.loads(call("doctor", "--sql", "event_lag", "-o", "json").out)
    assert record["database"] == "PostgreSQL"
    assert record["file"] == "events/queries.postgres.sql"
    assert '"shop".' in record["text"]


def test_an_unknown_statement_is_refused_with_similar_names(call):
    answer = call("doctor", "--sql", "get_bach")
    assert answer.code == 3
    assert "unknown statement 'get_bach'. Similar: get_batch," in answer.err
    assert 'Run "mulligan doctor --sql" to list all.' in answer.err


def test_all_statements_are_listed_without_a_name(call):
    lines = call("doctor", "--sql", "-o", "tsv").out.splitlines()
    assert "get_batch\tSQLite\tbatches/queries.sql" in lines
    assert "advance_schedule\tPostgreSQL\tschedules/queries.postgres.sql" in lines
    assert lines == sorted(lines, key=lambda line: line.split("\t")[0])
