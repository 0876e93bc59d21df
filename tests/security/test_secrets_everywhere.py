"""Plant secrets everywhere, and search for them in everything that can be read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from mulligan import Context, Email, Webhook
from mulligan.access.keys import Sessions
from mulligan.http.app import create_app
from support.cli_fixtures import app_on
from support.database_contents import contents
from support.raw_receivers import mail_server
from support.receivers import WebReceiver, open_receiver
from support.waiting import until
from support.web_table import ROUTES, call_route

# Each is cut in two in the app, so that no source line can show it whole.
PLANTED = {
    "payload": "hunter2PayloadField",
    "header": "hunter2HeaderOfARequest",
    "url": "hunter2UserInfo",
    "environment": "hunter2EnvironmentOfTheApp",
    "cause": "hunter2InTheCause",
    "provider": "hunter2InAProvidersAnswer",
    "note": "hunter2InANoteOfAnException",
    "group": "hunter2InAnExceptionGroup",
    "logged": "hunter2InALogLine",
    "traceback": "hunter2InALoggedTraceback",
    "result": "hunter2InTheResult",
    "checkpoint": "hunter2InACheckpoint",
    "smtp": "hunter2OfTheMailServer",
    "hook": "hunter2OfTheWebhooksHeader",
    "path": "hunter2OfTheWebhooksAddress",
}
SIGNING = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnRlcjI="

APP = """
import logging, os, sys
from mulligan import Context, Mulligan, Policy

app = Mulligan()
ONCE = Policy(max_retries=0, max_losses=0)
HALVES = __HALVES__

def planted(name):
    return "".join(HALVES[name])

class Response:
    status_code = 401
    headers = {"Set-Cookie": "session=" + planted("provider")}
    text = '{"error": {"message": "bad", "api_key": "' + planted("provider") + '"}}'
    def json(self):
        return {"error": {"message": "token=" + planted("provider"), "client_secret": planted("provider")}}

class HTTPError(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.response = Response()

def header():
    sent = {"Authorization": "Bearer " + planted("header"), "X-Api-Key": planted("header")}
    raise HTTPError(f"sent {sent}")

def url():
    raise ConnectionError("GET https://ann:" + planted("url") + "@api.example.com/v1?token=" + planted("url"))

def environment():
    environ = {"SHOP_API_KEY": os.environ["SHOP_API_KEY"]}
    raise RuntimeError("API_KEY=" + environ["SHOP_API_KEY"] + " of " + repr(environ))

def cause():
    try:
        raise ValueError("password: " + planted("cause"))
    except ValueError as error:
        raise KeyError("outer") from error

def note():
    error = RuntimeError("plain")
    error.add_note("secret=" + planted("note"))
    raise error

def group():
    raise ExceptionGroup("many", [ValueError("pwd=" + planted("group")), TypeError("token: " + planted("group"))])

DO = {"header": header, "url": url, "environment": environment, "cause": cause, "note": note, "group": group}

@app.job(policy=ONCE)
def leak(what: str, password: str = "", auth: dict | None = None):
    DO[what]()

@app.job(policy=ONCE)
def logs(ctx: Context):
    logging.getLogger("shop").warning("calling with api_key=%s", planted("logged"))
    try:
        raise ValueError("password=" + planted("traceback"))
    except ValueError:
        ctx.log.exception("it failed")
    logging.getLogger("shop").debug("Authorization: Bearer %s", planted("logged"))

@app.job
def result() -> dict:
    return {"access_token": planted("result"), "n": 1}

@app.job(policy=ONCE)
def keeps(ctx: Context):
    ctx.checkpoint("where", {"client_secret": planted("checkpoint")})
    raise RuntimeError("stopped")

@app.job(policy=ONCE, isolate=True)
def looks(ctx: Context):
    text = "import os, time; print(dict(os.environ)); print(open('/proc/self/cmdline').read())"
    return ctx.run([sys.executable, "-c", text])
"""


def planted_app(folder):
    halves = {name: (one[: len(one) // 2], one[len(one) // 2 :]) for name, one in PLANTED.items()}
    (folder / "jobs.py").write_text(APP.replace("__HALVES__", repr(halves)))


@pytest.fixture
def app(folder, store_url, monkeypatch):
    planted_app(folder)
    monkeypatch.setenv("SHOP_API_KEY", PLANTED["environment"])
    with app_on(store_url, folder, monkeypatch) as made:
        yield made


@pytest.fixture
def outside():
    """Return a receiver of webhooks and a mail server that requires a password."""

    def login(server, session, envelope, mechanism, data):
        from aiosmtpd.smtp import AuthResult

        return AuthResult(success=data.password.decode() == PLANTED["smtp"], handled=False)

    with (
        open_receiver(WebReceiver) as web,
        mail_server(authenticator=login, auth_require_tls=False) as box,
    ):
        yield web, box


def worker_settings(box: Any) -> dict[str, str]:
    return {
        "MULLIGAN_LOG__LEVEL": "DEBUG",
        "MULLIGAN_NOTIFY__ALLOW_PRIVATE": "127.0.0.0/8",
        "MULLIGAN_NOTIFY__GATHER": "0",
        "MULLIGAN_MAIL__HOST": "127.0.0.1",
        "MULLIGAN_MAIL__PORT": str(box.port),
        "MULLIGAN_MAIL__TLS": "none",
        "MULLIGAN_MAIL__USERNAME": "jobs",
        "MULLIGAN_MAIL__PASSWORD": PLANTED["smtp"],
        "MULLIGAN_MAIL__SENDER": "jobs@example.com",
    }


class Hunt:
    """Collected texts by source, and the secrets found in each."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._secrets = secrets
        self.texts: dict[str, str] = {}

    def look(self, where: str, text: str) -> None:
        self.texts[where] = text

    def found(self) -> set[tuple[str, str]]:
        return {
            (name, where)
            for name, secret in self._secrets.items()
            for where, text in self.texts.items()
            if secret in text
        }


def every_process() -> str:
    """Return the arguments of all processes of this host."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(place.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(found)


@pytest.mark.slow
@pytest.mark.security("S04", "S38", "S42", "S44", "S45", "S46", "S47", "A13", "A14")
@pytest.mark.timeout(600)
def test_planted_secrets_appear_only_where_they_are_needed(
    app, store_url, start, call, outside, tmp_path
):
    web, box = outside
    viewer, operator = app.keys.create("acme", "viewer"), app.keys.create("*", "admin")
    session = Sessions(lambda: app.store).redeem(link := Sessions(lambda: app.store).create_link())
    hook = Webhook(web.url(PLANTED["path"]), secret=SIGNING, headers={"X-Token": PLANTED["hook"]})
    app.subscriptions.add("job.died", hook, owner="acme", form="each")
    app.subscriptions.add("job.died", Email("kim@example.com"), owner="acme", form="each")
    with_secret = {"password": PLANTED["payload"], "auth": {"api_key": PLANTED["payload"]}}
    names = ("header", "url", "environment", "cause", "note", "group")
    jobs = [app.enqueue("leak", {"what": name, **with_secret}, owner="acme") for name in names]
    jobs += [app.enqueue(name, {}, owner="acme") for name in ("logs", "result", "keeps", "looks")]
    token = app.status.link(jobs[0]).rpartition("/")[2]

    worker = start("worker", "jobs:app", **worker_settings(box))
    ended = {"dead", "succeeded"}
    until(
        lambda: all(app.jobs.get(job.id).state in ended for job in jobs), 200, "every job has ended"
    )
    until(lambda: len(web.received) >= 7 and len(box.mails) >= 7, 200, "every message has come")
    processes = every_process()
    output = worker.stop()

    secrets = {
        **PLANTED,
        "signing": SIGNING,
        "viewer": viewer.text,
        "operator": operator.text,
        "session": session,
    }
    secrets |= {"link": link, "token": token}
    if password := urlsplit(store_url).password:
        secrets["database"] = password
    hunt = Hunt(secrets)
    hunt.look("worker", output.out + output.err)
    hunt.look("processes", processes)
    hunt.look("webhooks", repr([(one.body, one.headers) for one in web.received]))
    hunt.look("mails", repr([letter.raw for letter in box.mails]))
    for table, rows in contents(app.store).items():
        hunt.look(f"table {table.removeprefix('mulligan_')}", repr(rows))
    if store_url.startswith("sqlite"):
        assert call("backup", tmp_path / "copy.db").code == 0
        hunt.look("backup", (tmp_path / "copy.db").read_bytes().decode("latin-1"))
    _commands(hunt, call, jobs)
    _answers(hunt, app, jobs)
    _pages(hunt, app, jobs, token)

    assert sorted(hunt.found() - ALLOWED(hunt)) == []
    assert "[redacted]" in hunt.texts["table attempt"]
    program = app.jobs.get(jobs[-1].id).result
    assert "MULLIGAN_ATTEMPT" in program
    assert [
        name for name in ("database", "smtp") if name in secrets and secrets[name] in program
    ] == []


def ALLOWED(hunt: Hunt) -> set[tuple[str, str]]:  # noqa: N802 - read as a table
    """Return where each secret is allowed; every other place is a leak."""
    needed = {
        ("payload", "table job"),  # the job itself
        ("result", "table job"),
        ("checkpoint", "table step"),
        ("signing", "table subscription"),  # messages are signed with it
        ("hook", "table subscription"),
        ("path", "table subscription"),
        ("hook", "webhooks"),  # its receiver gets it
        ("environment", "table job"),  # the program of the job printed its whole environment
    }
    needed |= {(name, "backup") for name, where in needed if where.startswith("table ")}
    private = {
        (name, where)
        for name, where in hunt.found()
        if where.startswith("operator ") and name in RAW
    }
    return {one for one in hunt.found() if one in needed} | private


# These commands print jobs unredacted: their users can read the database, and exports are imported again.
UNREDACTED = {("jobs", "export"): "operator ", ("jobs", "list", "-o", "json"): "operator "}
RAW = ("payload", "result", "environment", "checkpoint")  # operators see jobs unredacted


def _commands(hunt: Hunt, call: Any, jobs: list[Any]) -> None:
    for arguments in (
        ("doctor",),
        ("doctor", "-o", "json"),
        ("jobs", "export"),
        ("jobs", "list"),
        ("jobs", "list", "-o", "json"),
        ("events", "list"),
        ("events", "list", "-o", "json"),
        ("failures", "list"),
        ("failures", "list", "-o", "json"),
        ("keys", "list", "-o", "json"),
        ("notify", "list", "-o", "json"),
        ("notify", "deliveries", "-o", "json"),
        ("workers", "list", "-o", "json"),
        ("metrics",),
        ("insight", "-o", "json"),
        ("policy", "show", "leak"),
    ):
        answer = call(*arguments)
        hunt.look(f"{UNREDACTED.get(arguments, '')}{' '.join(arguments)}", answer.out + answer.err)
    for job in jobs:
        for arguments in (("jobs", "explain", job.id), ("jobs", "explain", job.id, "-o", "json")):
            hunt.look(
                f"{'operator ' if arguments[-1] == 'json' else ''}{arguments}", call(*arguments).out
            )
    hunt.look(
        "operator jobs show -o json",
        "".join(call("jobs", "show", job.id, "-o", "json").out for job in jobs),
    )


def _answers(hunt: Hunt, app: Any, jobs: list[Any]) -> None:
    """Request every GET route with every type of key; private data is for operators."""
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        for scope, role in (
            ("acme", "viewer"),
            ("*", "viewer"),
            ("acme", "operator"),
            ("*", "admin"),
        ):
            headers = {"Authorization": f"Bearer {app.keys.create(scope, role).text}"}
            reader = "viewer" if role == "viewer" else "operator"
            for route, spec in ROUTES.items():
                if not route.startswith("GET"):
                    continue
                for name in (
                    [job.id for job in jobs] if spec.noun == "job" else [_one(app, spec.noun)]
                ):
                    hunt.look(
                        f"{reader} {scope} {route} {name}",
                        call_route(client, route, headers, name).text,
                    )


def _one(app: Any, what: str) -> str:
    found = {
        "group": app.failures.groups,
        "webhook": app.subscriptions.list,
        "delivery": app.deliveries.list,
    }
    return found[what]()[0].id if what in found and hasattr(found[what]()[0], "id") else ""


PAGES = (
    "/",
    "/jobs",
    "/failures",
    "/batches",
    "/queues",
    "/dependencies",
    "/schedules",
    "/operations",
    "/insight",
    "/policies",
    "/events",
    "/audit",
    "/alerts",
    "/notifications",
    "/doctor",
)


def _pages(hunt: Hunt, app: Any, jobs: list[Any], token: str) -> None:
    groups = [f"/failures/{group.fingerprint}" for group in app.failures.groups()]
    for scope, role in (("acme", "viewer"), ("*", "viewer"), ("*", "admin")):
        with TestClient(create_app(app.settings), base_url="http://localhost") as client:
            client.post("/sign-in", data={"key": app.keys.create(scope, role).text})
            for path in (*PAGES, *groups, *(f"/jobs/{job.id}" for job in jobs)):
                hunt.look(f"page {scope} {role} {path}", client.get(path).text)
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        shown = client.get(f"/status/{token}").text
        hunt.look("status page", re.sub(re.escape(token), "", shown))


@pytest.mark.security("A13")
def test_a_subprocess_of_a_job_inherits_no_settings_unless_they_are_passed(file_app, monkeypatch):
    monkeypatch.setenv("MULLIGAN_MAIL__PASSWORD", PLANTED["smtp"])
    monkeypatch.setenv("SHOP", "open")

    @file_app.job
    def show(ctx: Context, is_passed: bool) -> dict[str, str]:
        url = os.environ["MULLIGAN_DATABASE_URL"]
        more = {"MULLIGAN_DATABASE_URL": url} if is_passed else None
        return dict(line.partition("=")[::2] for line in ctx.run(["env"], env=more).splitlines())

    without, passed = show.enqueue(is_passed=False), show.enqueue(is_passed=True)
    file_app.run_inline()
    without, passed = without.refresh().result, passed.refresh().result
    assert [name for name in without if name.startswith("MULLIGAN_")] == ["MULLIGAN_ATTEMPT"]
    assert passed["MULLIGAN_DATABASE_URL"].startswith("sqlite")
    assert without["SHOP"] == "open"
