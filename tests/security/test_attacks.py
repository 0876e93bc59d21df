"""Attacks on the dashboard, the API, notifications and the command line."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import csv
import gzip
import io
import json
import pickle
import re
import socket
import time
from pathlib import Path
from shlex import quote

import pytest
from fastapi.testclient import TestClient

import mulligan
from mulligan import Webhook
from mulligan.access.keys import Sessions
from mulligan.cli.job_transfer import MAX_LINE_BYTES, read_lines
from mulligan.config import Settings, read_settings
from mulligan.core.errors import Fail, MulliganError, Refused
from mulligan.http.app import create_app
from mulligan.http.dashboard.view_models import export
from mulligan.jobs.filter import parse_filter
from mulligan.notifications.channels import (
    SendContext,
    build_address_policy,
    resolve_allowed_addresses,
)
from mulligan.schedules.rules import check_cron
from support.database_contents import contents
from support.messages import send
from support.raw_receivers import HttpReceiver, build_response
from support.web_server import run_server

SOURCE = Path(mulligan.__file__).parent


@pytest.fixture
def store_url(ready_sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return ready_sqlite_url


@pytest.fixture
def client(app):
    with TestClient(
        create_app(app.settings), base_url="http://localhost", follow_redirects=False
    ) as made:
        yield made


@pytest.fixture
def key(app):
    def make(scope="*", role="admin"):
        return {"Authorization": f"Bearer {app.keys.create(scope, role).text}"}

    return make


@pytest.fixture
def enter(app, client):
    def entered(scope="*", role="operator"):
        assert (
            client.post("/sign-in", data={"key": app.keys.create(scope, role).text}).status_code
            == 303
        )
        return re.search(r'name="csrf" value="([0-9a-f]+)"', client.get("/failures").text)[1]

    return entered


# -- Ownership ---------------------------------------------------------------------------------
SIMILAR_NAMES = (
    "acme ",
    "Acme",
    "\u0430cme",
    "acme\u200b",
    "acme.evil",
    "acm",
    "acme%",
    "acme*",
    "a_me",
    "\uff41\uff43\uff4d\uff45",
    "*acme",
    "acme\n",
)


@pytest.mark.security("S08", "A15")
def test_owners_with_similar_names_are_different_owners(app, client, key):
    job = app.enqueue("refuse", {"text": "B-7f3"}, owner="acme")
    app.run_inline()
    for owner in SIMILAR_NAMES:
        try:
            headers = key(owner, "admin")
        except Refused:
            continue
        assert client.get("/api/v1/jobs", headers=headers).json()["jobs"] == [], owner
        assert client.get(f"/api/v1/jobs/{job.id}", headers=headers).status_code == 404, owner
        assert client.get("/api/v1/failures", headers=headers).json()["failures"] == [], owner
        filtered = client.get("/api/v1/jobs", params={"filter": "owner:acme"}, headers=headers)
        assert filtered.status_code == 422 or filtered.json()["jobs"] == [], owner


@pytest.mark.security("S15")
def test_a_key_with_an_empty_owner_does_not_grant_access_to_all_jobs(app, client):
    with pytest.raises(Refused):
        app.keys.create("", "admin")
    made = app.keys.create("acme", "admin")
    app.enqueue("add", {"a": 1, "b": 2}, owner="globex")
    with pytest.raises(Exception, match="CHECK"), app.store.transaction() as connection:
        connection.execute("UPDATE mulligan_api_key SET scope = ''")  # not even by hand
    headers = {"Authorization": f"Bearer {made.text}"}
    assert client.get("/api/v1/jobs", headers=headers).json()["jobs"] == []
    assert client.get("/api/v1/queues", headers=headers).status_code == 403


@pytest.mark.security("S16")
def test_unique_and_idempotency_keys_are_separate_per_owner(app, client, key):
    theirs, ours = key("globex", "operator"), key("acme", "operator")
    body = {"kind": "add", "payload": {"a": 1, "b": 2}, "unique": "invoice-7"}
    first = client.post("/api/v1/jobs", json=body, headers={**theirs, "Idempotency-Key": "x"})
    second = client.post(
        "/api/v1/jobs",
        json={**body, "payload": {"a": 9, "b": 9}},
        headers={**ours, "Idempotency-Key": "x"},
    )
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]
    assert "idempotent-replayed" not in second.headers


@pytest.mark.security("S13")
def test_selected_jobs_of_another_owner_are_not_moved_and_reported_as_missing(
    app, client, enter, key
):
    ours, theirs = (app.enqueue("refuse", owner=owner) for owner in ("acme", "globex"))
    app.run_inline()
    mark = enter("acme", "operator")
    form = {"csrf": mark, "verb": "retry", "id": [ours.id, theirs.id, "0" * 28], "back": "/jobs"}
    page = client.get(client.post("/jobs", data=form).headers["location"]).text
    assert "1 of 3 done" in page
    assert [app.jobs.get(job.id).generation for job in (ours, theirs)] == [2, 1]
    request = {"action": "cancel", "filter": "kind:refuse", "dry_run": True}
    answer = client.post("/api/v1/operations", json=request, headers=key("acme", "operator"))
    assert answer.json()["count"] <= 1, answer.text


@pytest.mark.security("A19")
def test_a_list_cursor_of_another_owner_reveals_nothing(app, client, enter):
    theirs = [app.enqueue("add", {"a": 1, "b": 2}, owner="globex") for _ in range(3)]
    ours = app.enqueue("add", {"a": 1, "b": 2}, owner="acme")
    enter("acme", "viewer")
    for before in (theirs[0].id, theirs[-1].id, "z" * 28, "'; DROP TABLE", "\x00", ours.id):
        page = client.get("/jobs", params={"before": before})
        assert page.status_code in {200, 400, 404, 422}
        assert not any(job.id in page.text for job in theirs)


# -- Authentication ----------------------------------------------------------------------------------
@pytest.mark.security("A16")
@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https:evil.example",
        "/\t/evil.example",
        " //evil.example",
        "/\r\nLocation: https://evil.example",
        "///evil.example",
        "/\u2028/evil",
        "%2f%2fevil.example",
        "http:///evil",
    ],
)
def test_sign_in_redirects_only_to_pages_of_this_site(app, client, path):
    key = app.keys.create("*", "viewer").text
    for name, form in (("/sign-in", {"key": key, "next": path}),):
        where = client.post(name, data=form).headers["location"]
        assert re.match(r"/(?![/\\])", where), where
        assert "evil" not in where or where.startswith("/%")


@pytest.mark.security("A17")
def test_a_form_of_another_site_cannot_sign_in(app, client):
    key = app.keys.create("*", "viewer").text
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = client.post("/sign-in", data={"key": key}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


@pytest.mark.security("A18")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:80@evil.example",
        "[::1]evil",
        "0.0.0.0",  # noqa: S104 - a Host header
        "[::1]:x",
        "[::1]:80@evil",
        "localhost,evil.example",
        "2130706433",
        "0x7f.1",
    ],
)
def test_an_unknown_host_header_is_refused(client, host):
    for forwarded in (
        {},
        {"X-Forwarded-Host": "localhost"},
        {"X-Original-URL": "/livez"},
        {"X-Rewrite-URL": "/livez"},
    ):
        assert client.get("/", headers={"host": host, **forwarded}).status_code == 421


@pytest.mark.security("A18")
def test_the_host_of_the_public_url_is_accepted_and_others_are_refused(app):
    settings = {
        "database_url": app.settings.database_url,
        "web.public_url": "https://Jobs.example.com",
    }
    with TestClient(
        create_app(read_settings(settings)), base_url="http://localhost", follow_redirects=False
    ) as behind:
        found = {host: behind.get("/", headers={"host": host}).status_code for host in NAMES}
    assert found == {
        "jobs.example.com": 303,
        "localhost": 303,
        "evil.example": 421,
        "x.jobs.example.com": 421,
        "": 421,
    }


NAMES = ("jobs.example.com", "localhost", "evil.example", "x.jobs.example.com", "")


@pytest.mark.security("S03")
def test_secrets_are_compared_in_constant_time():
    """Find secrets that are compared with == or !=, which an attacker could guess byte by byte."""
    guessed = re.compile(r"(?:^|[._])(?:hash|seal|csrf|signature|secret|mark)$")
    found = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                found += [
                    f"{file.name}: {ast.unparse(node)}" for side in sides if guessed.search(side)
                ]
    # The hash of the request itself is no secret: its sender knows it.
    assert found == ["requests.py: row.request != key.hash"]
    for name in (
        "access/keys.py",
        "http/dashboard/sessions.py",
        "http/api/requests.py",
    ):
        assert "hmac.compare_digest(" in (SOURCE / name).read_text()


# -- Requests --------------------------------------------------------------------------------
@pytest.mark.security("S50", "A20")
def test_a_compressed_request_is_not_decompressed(app, client, key):
    body = gzip.compress(b'{"kind": "add", "payload": {"a": 1, "b": 2}}')
    for how in ("gzip", "br", "deflate", "zstd"):
        headers = {**key(), "Content-Type": "application/json", "Content-Encoding": how}
        assert client.post("/api/v1/jobs", content=body, headers=headers).status_code in {400, 415}
    assert app.jobs.list() == []


@pytest.mark.security("A20")
def test_a_compressed_response_of_a_receiver_is_not_decompressed():
    there = HttpReceiver(
        build_response(200, "Content-Encoding: gzip", body=gzip.compress(b"\0" * 40_000_000))
    )
    try:
        settings = Settings.model_validate({"notify": {"allow_private": "127.0.0.0/8"}})
        began = time.process_time()
        assert send(Webhook(there.url), SendContext(settings)) == {"status": 200}
        assert time.process_time() - began < 2
    finally:
        there.close()


@pytest.mark.security("A31")
@pytest.mark.parametrize(
    "heads",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding : chunked",
        "Content-Length: 4\r\nContent-Length: 0",
        "Transfer-Encoding: xchunked",
    ],
)
def test_request_smuggling_is_refused(app, heads):
    """Requests whose body a proxy and this server could end at different places."""
    inner = "POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with (
        run_server(app.settings) as at,
        socket.create_connection((at.host, at.port), timeout=5) as line,
    ):
        line.sendall(
            f"POST /sign-in HTTP/1.1\r\nHost: localhost\r\n{heads}\r\n\r\n0\r\n\r\n{inner}".encode()
        )
        line.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: line.recv(65_536), b""))
    first = int(answer.split(b" ", 2)[1]) if answer else 400
    assert first == 400 or answer.count(b"HTTP/1.1 ") == 1, answer[:300]


@pytest.mark.security("S19", "S22", "A21")
def test_no_filter_takes_long_to_parse_or_run(app, client, key):
    headers = key()
    long = 1900
    for text in (
        '"' + "a" * long,
        '"' + '\\"' * (long // 2),
        "arg." + "a." * (long // 2) + ":1",
        "state:" + "dead," * (long // 5),
        " ".join(f"arg.a{n}:1" for n in range(150)),
        "kind:" + "%" * long,
        '"' + "%_" * (long // 2) + '"',
        "(" * long,
        "owner:' OR 1=1 --",
        "kind:a;DROP TABLE mulligan_job",
        "since:" + "9" * long,
        "created:>" + "1" * long,
    ):
        began = time.process_time()
        answer = client.get("/api/v1/jobs", params={"filter": text}, headers=headers)
        assert answer.status_code in {200, 422}, (text[:40], answer.text)
        with contextlib.suppress(MulliganError):
            parse_filter(text)
        assert time.process_time() - began < 1.0, text[:40]


@pytest.mark.security("S22")
def test_a_thousand_hostile_cron_expressions_are_parsed_in_a_second():
    parts = (
        "*/0",
        "*/1",
        "1-59/7,2-58/3",
        "0,",
        "9" * 300,
        "1-",
        "L",
        "5#9",
        "*" * 200,
        "59-0",
        "0-59," * 60 + "1",
        "JAN-XXX",
    )
    written = [
        " ".join(parts[(n * step) % len(parts)] for step in (1, 2, 3, 5, 7)) for n in range(994)
    ]
    written += ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 29 2 1", "* * * * * * * *", "", "\x00"]
    began = time.process_time()
    for text in written:
        with contextlib.suppress(MulliganError):
            check_cron(text)
    assert time.process_time() - began < 1.0


# A runner hears marshal from its supervisor, which holds no code and no data but the rows of the store; what a runner
# says, or anybody else, is JSON.
OF_A_SUPERVISOR = [
    "worker/protocol.py: import marshal",
    "worker/protocol.py: return marshal.loads(body)",
    "worker/protocol.py: return cls(sock, marshal.dumps, _from_json)",
]


@pytest.mark.timeout(180)
@pytest.mark.security("S23")
def test_stored_data_is_never_unpickled_or_executed(app, call, client, enter, tmp_path):
    touched = tmp_path / "touched"

    class Bomb:
        def __reduce__(self):
            return Path.touch, (touched,)

    blob = pickle.dumps(Bomb()).decode("latin-1")
    code = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    texts = [blob, code, "{{ ''.__class__ }}"]
    jobs = [app.enqueue("refuse", {"text": text}, owner=str(n)) for n, text in enumerate(texts)]
    app.run_inline()
    with app.store.transaction() as connection:
        for job, text in zip(jobs, texts, strict=True):
            for table, column in (
                ("job", "payload"),
                ("job", "error"),
                ("attempt", "private"),
                ("attempt", "judged"),
            ):
                name = "id" if table == "job" else "job_id"
                where = f"mulligan_{table} WHERE {name} = ?"
                held = connection.execute(f"SELECT {column} FROM {where}", (job.id,)).fetchone()[0]  # noqa: S608
                evil = {
                    one: text if isinstance(value, str) else value
                    for one, value in json.loads(held or "{}").items()
                }
                statement = f"UPDATE mulligan_{table} SET {column} = ? WHERE {name} = ?"  # noqa: S608
                connection.execute(statement, (json.dumps({**evil, "more": text}), job.id))
    enter("*", "admin")
    for job in jobs:
        call("jobs", "show", job.id)
        assert client.get(f"/jobs/{job.id}").status_code == 200
    assert client.get("/jobs").status_code == 200
    call("jobs", "retry", *(job.id for job in jobs))
    app.run_inline()
    assert not touched.exists()
    banned = re.compile(
        r"\b(?:pickle|marshal|shelve|dill|cloudpickle|jsonpickle)\b|\b(?:eval|exec)\(|yaml\.load\("
    )
    used = [
        f"{file.relative_to(SOURCE)}: {line.partition('#')[0].strip()}"
        for file in SOURCE.rglob("*.py")
        for line in file.read_text().splitlines()
        if banned.search(line.partition("#")[0])
    ]
    assert [line for line in used if "import" in line or "(" in line] == OF_A_SUPERVISOR


# -- Responses ----------------------------------------------------------------------------
@pytest.mark.security("A22")
def test_a_name_with_a_line_break_does_not_create_a_header(app, client, enter):
    mark = enter()
    for name in ("a%0d%0aSet-Cookie:%20x=1", "a%0aX-Evil:%201", "%E5%98%8A%E5%98%8DX-Evil:1"):
        for path in (
            f"/queues/{name}/pause",
            f"/dependencies/{name}/open",
            f"/jobs/{name}/retry",
            f"/kinds/{name}/hold",
        ):
            answer = client.post(path, data={"csrf": mark, "back": "/x\r\nX-Evil: 1"})
            assert "x-evil" not in answer.headers
            assert not any(
                value.partition(";")[0] == "x=1" for value in answer.headers.get_list("set-cookie")
            )


@pytest.mark.security("S28")
def test_an_error_page_reveals_no_internals(app, enter, client, monkeypatch):
    from mulligan.jobs.service import Jobs

    enter()
    monkeypatch.setattr(Jobs, "list", lambda *_, **__: open("/etc/hunter2/secret"))  # noqa: PTH123, SIM115
    quiet = TestClient(
        client.app,
        base_url="http://localhost",
        raise_server_exceptions=False,
        cookies=client.cookies,
    )
    answer = quiet.get("/jobs")
    assert answer.status_code == 500
    for word in ("hunter2", "Traceback", ".py", "mulligan.", mulligan.__version__):
        assert word not in answer.text


@pytest.mark.security("S28", "A23")
def test_an_exposed_server_does_not_reveal_the_database_url(tmp_path):
    here = {"database_url": f"sqlite:///{tmp_path}/hunter2/mulligan.db"}
    key = {"Authorization": "Bearer mk_" + "0" * 52}
    for settings, is_shown in (
        ({}, True),
        ({"web.host": "192.0.2.1"}, False),
        ({"web.public_url": "https://jobs.example"}, False),
    ):
        with TestClient(
            create_app(read_settings(here | settings)), base_url="http://localhost"
        ) as client:
            texts = [
                client.get(path, headers=key).text
                for path in ("/api/v1/jobs", "/readyz", "/status/x.y")
            ]
        assert [("hunter2" in text) == is_shown for text in texts] == [True] * 3, (settings, texts)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.security("S30")
def test_get_requests_change_nothing(app, client, enter):
    app.enqueue("refuse", owner="acme")
    app.enqueue("ask")
    app.run_inline()
    app.batch("spring")
    enter("*", "admin")
    visited, todo = set(), {"/"}
    before = contents(app.store)
    while todo:
        path = todo.pop()
        visited.add(path)
        text = client.get(path).text
        links = {
            one.replace("&amp;", "&") for one in re.findall(r'(?:href|action)="(/[^"]*)"', text)
        }
        todo |= (
            {one for one in links if not one.startswith(("/static", "/live"))} - visited
            if len(visited) < 60
            else set()
        )
    for path in visited:
        client.get(path)
    assert len(visited) > 20
    after = contents(app.store)
    assert {table for table in before if before[table] != after[table]} <= {"mulligan_session"}
    assert len(before["mulligan_session"]) == len(after["mulligan_session"])


@pytest.mark.security("A37")
@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/....//app.py",
        "/static/..%5capp.py",
        "/static/vendor/../../serve.py",
        "/static/",
    ],
)
def test_path_traversal_serves_no_other_files(client, path):
    with served_raw(client, path) as answer:
        assert answer.status_code in {400, 404, 405}, path


class served_raw:  # noqa: N801 - a small context
    """Send the path unchanged: a client would normalise it."""

    def __init__(self, client, path):
        self._client, self._path = client, path

    def __enter__(self):
        import httpx2

        url = httpx2.URL("http://localhost").copy_with(raw_path=self._path.encode())
        return self._client.request("GET", url)

    def __exit__(self, *_):
        pass


@pytest.mark.security("S27")
def test_a_tsv_cell_stays_one_cell_whatever_it_contains(app, call):
    app.enqueue("refuse", {"text": "x"}, owner='=cmd|"/C calc"!A0\t+1\r\n@SUM(1)', unique="=1+1")
    app.enqueue("add", {"a": 1, "b": 2})
    listed = call("jobs", "list", "kind:refuse").out.splitlines()
    assert len(listed) == 1
    assert len(listed[0].split("\t")) == len(
        call("jobs", "list", "kind:add").out.splitlines()[0].split("\t")
    )


@pytest.mark.security("S27")
def test_a_cell_of_an_exported_file_is_never_a_formula():
    texts = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "acme", ""]
    answer = export([{"owner": text} for text in texts], "jobs", "csv")
    rows = csv.DictReader(io.StringIO(answer.body.decode(), newline=""))
    assert [row["owner"] for row in rows] == [
        "'=1+1", "'+1", "'-1", "'@SUM(1)", "'\t=1", "'\r=1", "acme", ""
    ]  # fmt: skip
    for form in ("content-disposition", "text/csv", "application/vnd.ms-excel"):
        found = {file.name for file in SOURCE.rglob("*.py") if form in file.read_text().lower()}
        assert found <= {"view_models.py"}, "another place offers files: neutralise formulas there"


# -- Notifications ------------------------------------------------------------------------------------
@pytest.mark.security("A24")
@pytest.mark.parametrize(
    "url",
    [
        "json://127.0.0.1",
        "file:///etc/passwd",
        "gopher://x",
        "slack://a/b/c",
        "//x",
        "https:/x",
        "https://",
    ],
)
def test_only_webhook_subscriptions_can_be_created_over_http(client, key, url):
    answer = client.post(
        "/api/v1/webhooks", json={"url": url, "on": "job.died"}, headers=key("acme", "operator")
    )
    assert answer.status_code == 422


@pytest.mark.security("S33", "A25")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - where a page may be served
def test_a_webhook_to_our_own_page_is_refused(host):
    settings = {
        "notify": {"allow_private": "127.0.0.0/8, ::1/128"},
        "web": {"host": host, "port": 8321},
    }
    gate = build_address_policy(Settings.model_validate(settings))
    for address in ("127.0.0.1", "127.0.0.9", "::1"):
        with pytest.raises(Fail, match="own web server"):
            asyncio.run(resolve_allowed_addresses("http", address, 8321, gate))
    assert asyncio.run(resolve_allowed_addresses("http", "127.0.0.1", 8322, gate)) == ["127.0.0.1"]
    assert asyncio.run(resolve_allowed_addresses("https", "93.184.216.34", 8321, gate)) == [
        "93.184.216.34"
    ]


@pytest.mark.security("A26")
def test_webhooks_and_keys_per_owner_are_limited(app, client, key, monkeypatch):
    from mulligan.http.api import keys
    from mulligan.notifications import subscriptions

    monkeypatch.setattr(subscriptions, "MAX_PER_OWNER", 3)
    monkeypatch.setattr(keys, "MAX_KEYS_PER_OWNER", 3)
    headers, others = key("acme", "admin"), key("globex", "admin")
    hook, new = (
        {"url": "https://acme.example/x", "on": "job.died"},
        {"scope": "acme", "role": "viewer"},
    )
    hooks = [
        client.post("/api/v1/webhooks", json=hook, headers=headers).status_code for _ in range(5)
    ]
    keys_made = [
        client.post("/api/v1/keys", json=new, headers=headers).status_code for _ in range(4)
    ]
    assert (hooks, keys_made) == ([201] * 3 + [422] * 2, [201] * 2 + [422] * 2)
    assert client.post("/api/v1/webhooks", json=hook, headers=others).status_code == 201
    app.subscriptions.add("job.died", Webhook("https://ops.example/x"))


@pytest.mark.security("S38")
def test_the_documented_verifier_refuses_messages_older_than_five_minutes():
    text = (SOURCE.parent.parent / "docs" / "howto" / "webhooks.md").read_text()
    block = next(
        one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "OLDEST" in one
    )
    assert "OLDEST = 300" in block
    assert "compare_digest" in block


# -- Command line ----------------------------------------------------------------------------
@pytest.mark.security("A36")
def test_an_endless_input_line_is_not_read_into_memory(app, call, folder, monkeypatch):
    class Endless(io.RawIOBase):
        def __init__(self):
            self.calls, self.largest = 0, 0

        def readline(self, most=-1):
            assert 0 < most <= MAX_LINE_BYTES + 1
            self.calls += 1
            return b"x" * most if self.calls < 4 else b"\n" if self.calls == 4 else b""

    assert [len(line) for line in read_lines(Endless())] == [MAX_LINE_BYTES + 1]
    assert list(read_lines(io.BytesIO(b"a\nb\nc"))) == [b"a\n", b"b\n", b"c"]


@pytest.mark.security("A29")
def test_terminal_control_characters_are_not_printed(app, call):
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eabc"
    app.enqueue("refuse", {"text": evil}, owner=evil)
    app.run_inline()
    job = app.jobs.list()[0]
    for arguments in (
        ("jobs", "list"),
        ("jobs", "show", job.id),
        ("jobs", "explain", job.id),
        ("events", "list"),
        ("jobs", "export"),
        ("jobs", "show", job.id, "-o", "json"),
        ("failures", "list"),
    ):
        output = call(*arguments).out
        assert [sign for sign in ("\x1b", "\x07", "\x9b", "\u202e") if sign in output] == [], (
            arguments
        )


@pytest.mark.security("A38")
def test_names_in_suggested_commands_are_quoted_for_a_shell(app, call):
    for name in ("a;id", "$(id)", "`id`", "a>b", "'"):
        app.queues.pause(name)
        job = app.enqueue("add", {"a": 1, "b": 2}, queue=name)
        output = call("jobs", "explain", job.id).out + call("queues", "pause", name).err
        typed = re.findall(r"mulligan queues \w+ (\S+)", output)
        assert set(typed) == {quote(name)}, output


# -- Links ---------------------------------------------------------------------------------------
@pytest.mark.security("A27")
def test_a_read_only_link_cannot_be_changed_into_one_that_acts(app, client):
    job = app.enqueue("refuse", owner="acme")
    app.run_inline()
    look = app.status.link(job, retry=False, expires=60)
    body, _, seal = look.rpartition("/")[2].partition(".")
    what, name, _, end = body.split("-")
    for forged in (
        f"{what}-{name}-r-{end}",
        f"{what}-{name}-n-",
        f"b-{name}-r-{end}",
        f"{what}-{name}-n-{int(end) * 10}",
    ):
        assert client.get(f"/status/{forged}.{seal}").status_code == 404
        assert (
            client.post(f"/status/{forged}.{seal}", data={"again": "1"})
            .headers.get("location", "message=refused")
            .endswith("refused")
        )
    assert app.jobs.get(job.id).generation == 1
    used = Sessions(lambda: app.store).create_link()
    assert client.get("/sign-in", params={"link": used}).status_code == 200
    assert client.post("/sign-in", data={"link": used}).status_code == 303
    assert client.post("/sign-in", data={"link": used}).status_code == 401


@pytest.mark.security("S26", "A27")
def test_pages_load_nothing_from_other_sites(app, client, enter):
    enter("*", "admin")
    for path in (
        "/",
        "/jobs",
        "/failures",
        "/doctor",
        "/policies",
        app.status.link(app.enqueue("ask")),
    ):
        text = client.get(path).text
        assert re.findall(r'(?:src|href|action)="(?:https?:)?//[^"]*"', text) == []
        assert re.findall(r"\son\w+=|<script(?![^>]*src=)|javascript:", text) == []
