"""`mulligan worker` and `mulligan up`: start, stop, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from mulligan.core.errors import ConfigError
from mulligan.events.queries import EventQueries
from mulligan.http.app import check_bind_address
from mulligan.observability import exporter
from support.waiting import until

pytestmark = pytest.mark.processes


def fetch(address: str, visitor: urllib.request.OpenerDirector | None = None) -> str:
    opener = visitor or urllib.request.build_opener()
    with opener.open(address, timeout=5) as answer:
        return answer.read().decode()


def sign_in(url: str) -> urllib.request.OpenerDirector:
    """Use a printed sign-in link. Return a client that has the session's cookie."""
    page, link = url.split("?link=")
    visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    visitor.open(page, data=f"link={link}".encode(), timeout=5).close()
    return visitor


def answers(address: str) -> bool:
    try:
        fetch(address)
    except (urllib.error.URLError, OSError):
        return False
    return True


def test_a_worker_runs_jobs_and_exits_cleanly(start, call, app, store_url):
    worker = start("worker", "jobs:app", "--database", store_url, "--concurrency", "2")
    until(lambda: "fold" in readers(app), 20)
    good = call("enqueue", "add", "a=40", "b=2").out.strip()
    bad = call("enqueue", "refuse").out.strip()
    assert call("jobs", "watch", good, "--timeout", "20").code == 0
    assert call("jobs", "watch", bad, "--timeout", "20").code == 6
    assert app.jobs.get(good).result == 42
    name = "mulligan_job_ends_total"
    succeeded = f'{name}{{error_class="",state="succeeded"}} 1.0\n'
    died = f'{name}{{error_class="invalid_input",state="dead"}} 1.0\n'

    def are_counted() -> bool:
        text = exporter.render(app.store)
        return succeeded in text and died in text

    until(are_counted, 20, "both jobs are counted")
    assert worker.stop().code == 0


def readers(app):
    with app.open().store.read() as tx:
        return {row.name for row in EventQueries(tx).list_readers()}


def test_a_worker_uses_the_database_that_the_app_sets_in_code(start, folder):
    code = (folder / "jobs.py").read_text().replace("Mulligan()", 'Mulligan("sqlite:///own.db")')
    (folder / "jobs.py").write_text("print('talk on import')\n" + code)
    worker = start("worker", "jobs:app")
    output = worker.wait_for_output("concurrency")
    assert f"database: {folder}/own.db" in output
    assert "was created" in output
    assert not (folder / "mulligan.db").exists()
    assert worker.stop().code == 0


def test_two_databases_are_refused(start, folder):
    code = (folder / "jobs.py").read_text().replace("Mulligan()", 'Mulligan("sqlite:///own.db")')
    (folder / "jobs.py").write_text(code)
    answer = start("worker", "jobs:app", MULLIGAN_DATABASE_URL="sqlite:///other.db").wait_for_exit()
    assert answer.code == 2
    assert "two databases" in answer.err
    assert not (folder / "own.db").exists()


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("nowhere:app", "No module named 'nowhere'. Start it in the folder that has this module"),
        ("jobs", "module:attribute"),
        ("jobs:nothing", "has no attribute 'nothing'; did you mean jobs:app?"),
        ("jobs:Mulligan", "not a Mulligan app"),
    ],
)
def test_an_invalid_app_name_is_a_usage_error_in_one_line(call, app, expected):
    answer = call("web", app)
    assert answer.code == 2
    assert expected in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_queue_that_no_kind_uses_is_logged_at_the_start(start, folder):
    worker = start("worker", "jobs:app", "--queues", "mial,default")
    worker.wait_for_output("concurrency")
    output = worker.wait_for_output("of --queues")
    assert "no kind of jobs:app uses the queue mial of --queues. It uses default" in output
    assert worker.stop().code == 0


def test_an_app_that_fails_to_import_shows_its_traceback(start, folder):
    (folder / "broken.py").write_text("1 / 0\n")
    answer = start("worker", "broken:app").wait_for_exit()
    assert answer.code == 1
    assert 'broken.py", line 1' in answer.err
    last = answer.err.splitlines()[-1]
    assert (
        last == "mulligan: cannot load broken:app: ZeroDivisionError: division by zero [APP_BROKEN]"
    )


@pytest.mark.parametrize("share", ["0", "1", "1.5", "some"])
def test_the_share_of_a_canary_lies_between_0_and_1(call, app, share):
    answer = call("worker", "jobs:app", "--canary", share)
    assert answer.code == 2
    assert "--canary" in answer.err


def test_up_runs_worker_and_dashboard_and_stops_both(start, folder):
    up = start("up", "jobs:app", "--port", "0")
    address = up.address()
    app = Mulligan(f"sqlite:///{folder}/mulligan.db")
    job = app.enqueue("add", {"a": 1, "b": 2})
    assert app.jobs.wait(job.id, 20).state == "succeeded"
    app.close()
    assert "Sign in" in fetch(f"{address}jobs/{job.id}")
    assert "succeeded" in fetch(f"{address}jobs/{job.id}", sign_in(up.sign_in_url()))
    assert up.stop().code == 0
    assert not answers(address)


def test_the_dashboard_ends_when_up_is_killed(start):
    up = start("up", "jobs:app", "--port", "0")
    address = up.address()
    up.close()
    until(lambda: not answers(address), 10, "the page's end")


def test_the_dashboard_exits_if_stdin_is_closed_at_start(folder):
    command = [sys.executable, "-m", "mulligan.http.app", "--leave-with-stdin"]
    environment = {
        **os.environ,
        "MULLIGAN_DATABASE_URL": f"sqlite:///{folder}/mulligan.db",
        "MULLIGAN_WEB__PORT": "0",
    }
    assert (
        subprocess.run(
            command, stdin=subprocess.DEVNULL, env=environment, timeout=50, check=False
        ).returncode
        == 0
    )


def test_up_ends_when_the_dashboard_fails(start, folder):
    up = start("up", "jobs:app", "--host", "192.0.2.1")
    answer = up.wait_for_exit()
    assert answer.code == 1
    assert "not a loopback address" in answer.err


@pytest.mark.slow
def test_the_demo_shows_jobs_that_succeed_fail_and_recover(start, folder, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    demo = start("demo", "--port", "0", "--seconds", "20", TMPDIR=str(temporary))
    address, visitor = demo.address(), sign_in(demo.sign_in_url())
    expected = (
        "succeeded",
        "dead",
        "parked",
        "running",
        "PROCESS_DIED",
        "BAD_FILE",
        "recovered: attempt",
    )
    until(
        lambda: all(
            word in fetch(address, visitor) + fetch(f"{address}jobs", visitor) for word in expected
        ),
        40,
        "pages with every ending",
    )
    assert demo.stop().code == 0
    assert list(temporary.glob("mulligan-demo-*")) == []
    assert not list(Path(folder).glob("*.db"))


@pytest.mark.slow
def test_a_taken_port_moves_to_the_next_unless_it_was_named(start):
    first = start("web", "--port", "0")
    address = first.address()
    port = address.rstrip("/").rpartition(":")[2]
    named = start("web", "--port", port).wait_for_exit()
    assert named.code == 1
    assert f"port {port} of 127.0.0.1 is in use" in named.err
    moved = start("web", MULLIGAN_WEB__PORT=port)
    assert moved.address() != address
    assert f"port {port} is in use" in moved.err
    assert (first.stop().code, moved.stop().code) == (0, 0)


@pytest.mark.security("S01")
def test_an_address_that_is_not_loopback_is_refused(start):
    answer = start("web", "--host", "0.0.0.0").wait_for_exit()  # noqa: S104 - to be refused
    assert answer.code == 2
    assert "not a loopback address" in answer.err


@pytest.mark.security("S01")
@pytest.mark.parametrize("host", ["::", "example.com", "192.0.2.1", "", "127.0.0.1.example.com"])
def test_without_a_key_only_loopback_is_allowed(file_app, host):
    def where(host):
        return check_bind_address(
            read_settings({"database_url": file_app.settings.database_url, "web.host": host})
        )

    for _ in ("no database", "no key"):
        with pytest.raises(ConfigError, match="not a loopback address"):
            where(host)
        file_app.store.prepare()
    assert [where(host) for host in ("127.0.0.1", "::1", "localhost")] == [
        "127.0.0.1",
        "::1",
        "127.0.0.1",
    ]
    made = file_app.keys.create("acme", "viewer")
    assert where("192.0.2.1") == "192.0.2.1"
    file_app.keys.revoke(made.key.id)
    with pytest.raises(ConfigError, match="no key exists yet"):
        where("192.0.2.1")


def test_sigterm_while_the_app_is_still_imported_ends_it(start, folder):
    (folder / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    worker = start("worker", "slow:app")
    worker.wait_for_output("importing")
    assert worker.stop().code == 143


@pytest.mark.parametrize("command", ["worker", "up"])
def test_ctrl_c_while_the_app_is_imported_ends_it_with_one_line(folder, command):
    (folder / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "mulligan", command, "slow:app"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group, to which a terminal sends Ctrl-C
    ) as program:
        assert program.stderr.readline() == "importing\n"
        os.killpg(program.pid, signal.SIGINT)
        _, rest = program.communicate(timeout=20)
    assert (program.returncode, rest) == (
        130,
        "mulligan: interrupted while slow:app was imported\n",
    )


USES_SQLITE3 = """
import sqlite3
from pathlib import Path
from mulligan import Mulligan

FILE = Path("legacy.db").absolute()
app = Mulligan()

@app.job
def add(a: int, b: int) -> int:
    with sqlite3.connect(FILE) as connection:
        connection.execute("INSERT INTO sums VALUES (?)", (a + b,))
        if b:
            add.options(connection=connection).enqueue(a=a, b=0)
    connection.close()
    return a + b
"""


@pytest.mark.parametrize("command", ["worker", "up"])
def test_handlers_may_use_sqlite3_while_the_supervisor_uses_apsw(start, call, folder, command):
    (folder / "jobs.py").write_text(USES_SQLITE3)
    with closing(Mulligan("sqlite:///legacy.db")) as app, app.transaction() as tx:
        tx.execute("CREATE TABLE sums (n INTEGER)")
    worker = start(
        command, "jobs:app", MULLIGAN_DATABASE_URL=f"sqlite+stdlib:///{folder}/legacy.db"
    )
    worker.wait_for_output("concurrency")
    job = call("enqueue", "add", "a=40", "b=2", "--database", "sqlite:///legacy.db").out.strip()
    assert (
        call("jobs", "watch", job, "--timeout", "20", "--database", "sqlite:///legacy.db").code == 0
    )
    with closing(Mulligan("sqlite:///legacy.db")) as app:
        until(lambda: [job.state for job in app.jobs.list()] == ["succeeded"] * 2)
        with app.transaction() as tx:
            assert tx.execute("SELECT n FROM sums ORDER BY n").fetchall() == [(40,), (42,)]
    assert "sqlite:///" in worker.output
    assert worker.stop().code == 0


def test_json_logs_are_one_object_per_line_and_handler_lines_name_their_job(start, call, folder):
    (folder / "jobs.py").write_text(
        (folder / "jobs.py").read_text()
        + "\nimport logging\n@app.job\ndef talk() -> None:\n"
        + "    logging.getLogger('theirs').warning('two\\nlines')\n    raise KeyError('x\\ny')\n"
    )
    worker = start("worker", "jobs:app", "--log-format", "json")
    worker.wait_for_output("concurrency")
    job = call("enqueue", "talk").out.strip()
    worker.wait_for_output("ended for good")
    lines = [json.loads(line) for line in worker.stop().err.splitlines()]
    by_message = {line["message"]: line for line in lines}
    assert (
        by_message["two\nlines"]["job"],
        by_message["two\nlines"]["kind"],
        by_message["two\nlines"]["attempt"],
    ) == (job, "talk", 1)
    assert (
        next(line for line in lines if "attempt 1 of talk failed" in line["message"])["job"] == job
    )
