"""Secrets planted where jobs fail are not stored, printed, shown or logged."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient

from mulligan.core.ids import new_id
from mulligan.core.job import NewJob
from mulligan.http.app import create_app
from mulligan.jobs.queries import JobQueries
from support.cli_fixtures import app_on
from support.waiting import until

# Each is cut in two in the app, so that no traceback or source file could show it whole.
PLANTED = {
    "userinfo": "hunter2-Userinfo",
    "query": "hunter2Query77",
    "bearer": "hunter2.Bearer-77",
    "token": "hunter2:Token77",
    "aws": "AKIAHUNTER2EXAMPLE77",
    "jwt": "eyJodW50ZXIyIjoxfQ.eyJzdWIiOiJodW50ZXIyIn0.aHVudGVyMg",
    "pem": "MIIEhunter2Pem77",
    "dsn": "hunter2Dsn77",
    "cookie": "hunter2Cookie77",
    "local": "hunter2Local77",
    "cause": "sk-proj-hunter2Cause77abcdefgh",
    "argv": "hunter2Argv77",
    "stderr": "hunter2Stderr77",
    "body": "hunter2Body77",
    "declared": "ghp_hunter2Declared77abcdefgh",
    "reason": "hunter2Reason77",
    "parked": "hunter2Parked77",
    "progress": "hunter2Progress77",
    "death": "hunter2Death77",
    "payload": "glpat-hunter2Payload77abc",
}
PLACES = ("/home/ann/private-customers.csv", "ann.smith@customers.example.org", "203.0.113.77")

APP = """
import os, subprocess, sys
from mulligan import Context, Fail, Mulligan, Park, Policy, Retry

app = Mulligan()
ONCE = Policy(max_retries=0, max_losses=0)
HALVES = __HALVES__
PLACES = __PLACES__

def planted(name):
    return "".join(HALVES[name])

def where():
    return f"at {PLACES[0]} for {PLACES[1]} from {PLACES[2]}"

class ApiError(Exception):
    def __init__(self, body):
        self.status_code, self.body = 400, body

def cause():
    try:
        raise ValueError("key " + planted("cause"))
    except ValueError as error:
        raise RuntimeError("outer " + where()) from error

def local():
    password = planted("local")
    return {}["nothing"]

def says(text):
    def say():
        raise RuntimeError(text())
    return say

TEXTS = {
    "userinfo": lambda: f"cannot reach https://ann:{planted('userinfo')}@host/x",
    "query": lambda: f"GET https://host/x?api_key={planted('query')}&page=7 failed",
    "bearer": lambda: f"sent Authorization: Bearer {planted('bearer')}",
    "token": lambda: f"headers {{'Authorization': 'Token {planted('token')}'}}",
    "aws": lambda: f"key {planted('aws')} is not allowed to",
    "jwt": lambda: f"bad token in {planted('jwt')}",
    "pem": lambda: f"-----BEGIN PRIVATE KEY-----\\n{planted('pem')}\\n-----END PRIVATE KEY-----",
    "dsn": lambda: f"connection to 'host=db user=ann password={planted('dsn')}' failed",
    "cookie": lambda: f"sent Cookie: session={planted('cookie')}; theme=dark",
}
DO = {
    **{name: says(text) for name, text in TEXTS.items()},
    "local": local,
    "cause": cause,
    "argv": lambda: subprocess.run(["false", "--password", planted("argv")], check=True),
    "body": lambda: (_ for _ in ()).throw(ApiError({"error": {"message": "secret=" + planted("body")}})),
}

@app.job(policy=ONCE)
def leak(ctx: Context, what: str):
    return DO[what]()

@app.job(policy=ONCE)
def stderr(ctx: Context):
    code = f"import sys; sys.exit('token={planted('stderr')} ' + {where()!r})"
    ctx.run([sys.executable, "-c", code])

@app.job(policy=ONCE)
def declared():
    return Fail("BAD", f"m {planted('declared')}", f"d {planted('declared')}", f"p {planted('declared')} {where()}")

@app.job(policy=ONCE)
def reason():
    return Retry(0, f"password={planted('reason')} {where()}")

@app.job(policy=ONCE)
def parked():
    return Park(f"pwd: {planted('parked')} {where()}")

@app.job(policy=ONCE)
def progress(ctx: Context):
    ctx.progress(0.5, f"secret: {planted('progress')} {where()}")
    raise ValueError(where())

@app.job(policy=ONCE, isolate=True)
def death():
    os.write(2, f"api_key={planted('death')}\\n".encode())
    os.abort()

@app.job(policy=ONCE)
def payload(number: int):
    pass
"""
OWN = ("stderr", "declared", "reason", "parked", "progress", "death")


@pytest.fixture
def app(folder, store_url, monkeypatch):
    halves = {
        name: (secret[: len(secret) // 2], secret[len(secret) // 2 :])
        for name, secret in PLANTED.items()
    }
    text = APP.replace("__HALVES__", repr(halves)).replace("__PLACES__", repr(PLACES))
    (folder / "jobs.py").write_text(text)
    with app_on(store_url, folder, monkeypatch) as made:
        yield made


def stored(url: str) -> str:
    """Everything the database holds, private halves too."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        files = [file, file.with_name(f"{file.name}-wal")]
        return "".join(
            path.read_bytes().decode("utf-8", "replace") for path in files if path.exists()
        )
    with psycopg.connect(url) as connection:
        rows = [
            row
            for table in ("job", "attempt", "event", "worker")
            for row in connection.execute(f"SELECT t::text FROM mulligan.{table} t").fetchall()  # noqa: S608
        ]
    return json.dumps(rows)


@pytest.mark.security("S44", "S45")
@pytest.mark.any_store
def test_planted_secrets_appear_in_no_output(app, store_url, start, call):
    jobs = [
        app.enqueue("leak", {"what": name}) for name in PLANTED if name not in {*OWN, "payload"}
    ]
    jobs += [app.enqueue(name, {}) for name in OWN]
    worker = start("worker", "jobs:app")
    until(
        lambda: all(app.jobs.get(job.id).state in {"dead", "parked"} for job in jobs),
        40,
        "every job has ended",
    )
    result = worker.stop()

    outputs = {"store": stored(store_url), "worker": result.out + result.err}
    for arguments in (("list",), ("list", "-o", "json"), ("export", "--attempts")):
        outputs[" ".join(arguments)] = call("jobs", *arguments).out
    for job in jobs:
        for arguments in (
            ("show",),
            ("show", "-o", "json"),
            ("explain",),
            ("explain", "-o", "json"),
        ):
            outputs[f"{arguments} {job.id}"] = call(
                "jobs", arguments[0], job.id, *arguments[1:]
            ).out
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        for path in ("/", *(f"/jobs/{job.id}" for job in jobs)):
            outputs[path] = client.get(path).text

    assert len(jobs) == len(PLANTED) - 1
    leaks = [
        (name, where)
        for name, secret in PLANTED.items()
        for where, text in outputs.items()
        if secret in text
    ]
    own_words = ("death", "worker")  # what an app writes to its own stderr is passed on as it is
    assert [leak for leak in leaks if leak != own_words] == []
    assert "[redacted]" in outputs["store"]


def test_owners_see_no_paths_and_no_addresses(app):
    jobs = [app.enqueue(name, {}) for name in ("declared", "reason", "parked", "progress")]
    app.run_inline()
    for job in jobs:
        done = job.refresh()
        public = repr(
            (
                done.error,
                done.why,
                done.progress,
                [event.data for event in app.jobs.history(job.id)],
            )
        )
        assert [place for place in PLACES if place in public] == []


@pytest.mark.security("S44")
def test_a_refused_payload_is_not_quoted(app, call):
    text = json.dumps({"number": PLANTED["payload"]})
    job = NewJob(
        id=new_id(), kind="payload", queue="default", payload=text
    )  # as from an older version of the app
    with app.store.begin() as tx:
        JobQueries(tx).insert_jobs([job], announce=True)
    app.run_inline()
    attempt = call("jobs", "explain", job.id).out
    assert "PAYLOAD_REFUSED" in attempt
    assert PLANTED["payload"] not in attempt
