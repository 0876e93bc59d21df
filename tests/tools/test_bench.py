"""The benchmark harness: targets, page, plan, agents and proxy."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bench.peers import pages, results
from bench.peers.bars import BARS, judge_all
from bench.peers.cases import CASES
from bench.peers.contenders import BY_NAME, CONTENDERS, OURS
from bench.peers.proxy import Proxy
from bench.peers.run import Plan
from bench.peers.sandbox import AGENTS, MeasurementFailed, Sandbox

PG, LITE = OURS["postgres"], OURS["sqlite"]
BASELINE = BY_NAME["plain SQLite"]


def measure(case, contender, figures, number=0, error=None):
    return results.Measurement(case, contender, number, figures, error)._asdict()


@pytest.fixture
def run(tmp_path: Path) -> results.Run:
    """Write and read three rounds of a drain and a crash."""
    about = {
        "at": "2026-01-01T00:00:00",
        "rounds": 3,
        "scale": 1.0,
        "left out": {"celery": "no server"},
        "servers": {"postgres": {"fsync": "on"}},
        "machine": {
            "cores": 2,
            "memory, GB": 8.0,
            "kernel": "6.1",
            "python": "3.11",
            "load": 0.1,
            "fdatasync of 8 kB, ms": 0.2,
        },
        "contenders": {one.name: {} for one in CONTENDERS},
    }
    rates = (
        (PG, 9000),
        (PG, 30_000),
        (PG, 20_000),
        ("pgqueuer", 8000),
        (LITE, 30_000),
        ("huey", 5000),
    )
    lines = [
        measure("drain", name, {"jobs/s": rate}, number)
        for number, (name, rate) in enumerate(rates)
    ]
    lines += [
        measure("crash of all, default", PG, {"seconds": 6.5, "done": 10}),
        measure("crash of all, default", "huey", {"seconds": 120.0, "done": 0}),
        measure("poison worker, default", PG, {"starts": 3, "innocent done": 7}),
        measure("retry", "rq", None, error="Failed: it would not"),
    ]
    path = tmp_path / "peers-1.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in ({"run": about}, *lines)))
    return results.read(path)


def test_a_target_is_judged_by_the_median_of_the_rounds_of_one_run(run):
    verdicts = {(one.what, one.store): one for one in judge_all(run)}
    fastest = verdicts["drain against the fastest other system of the run", "PostgreSQL"]
    assert (fastest.text, fastest.met) == ("2.50 ×", True)
    assert verdicts["drain against Huey with fsync", "SQLite"].met is False
    assert verdicts["drain against plain batches of 100", "PostgreSQL"].met is None
    assert verdicts["kill -9 of everything, until all are done", "PostgreSQL"].met is True
    poisoned = verdicts["starts of a job that kills its worker, all neighbours done", "PostgreSQL"]
    assert (poisoned.text, poisoned.met) == ("3.00, 7 of 10 neighbours done", False)


def test_every_target_uses_a_measured_case():
    class RecordingRun:
        def __init__(self):
            self.cases = set()

        def figure(self, case, contender, name):
            assert contender in BY_NAME
            self.cases.add(case)

        worst = figure

        def numbers(self, case, contender, name):
            self.figure(case, contender, name)
            return []

    recording = RecordingRun()
    for bar in BARS:
        bar.judge(recording)
    assert recording.cases <= set(CASES)


def test_the_page_gets_tables_and_charts_from_the_results(run, tmp_path):
    page = tmp_path / "page.md"
    begin = "<!-- measured: written by python -m bench peers --report -->"
    end = "<!-- measured: end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter")
    pages.write(run, page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{end}\nafter")
    assert "old" not in text
    assert "| pgqueuer | PostgreSQL | 0.40 |" in text
    assert "| huey | > 120 (0 of 10) |" in text
    assert "- retry, rq: Failed: it would not" in text
    assert "- celery: left out, no server" in text
    shown = re.findall(r"!\[.+\]\(\.\./pictures/(.+)\)", text)
    assert {tmp_path / name for name in shown} == set(tmp_path.glob("*.svg"))
    for name in ("drain", "crash"):
        assert ET.fromstring((tmp_path / f"performance-{name}.svg").read_text()).tag.endswith("svg")  # noqa: S314 - our own file


def test_the_docs_page_has_the_marks_for_the_results():
    assert pages.MEASURED_PART.search(pages.PAGE.read_text())


def test_a_round_covers_all_cases_so_that_two_can_be_compared():
    cases = [CASES[name] for name in ("drain", "backlog", "retry")]
    plan = Plan(cases, list(CONTENDERS), 2, 1.0, {})
    order = [(number, case.name) for case, number, _, _ in plan.turns()]
    assert order == [(0, "drain"), (0, "backlog"), (0, "retry"), (1, "drain"), (1, "retry")]


def test_each_round_begins_with_another_contender():
    plan = Plan([CASES["drain"]], list(CONTENDERS), 3, 1.0, {})
    firsts = [contenders[0].name for _, _, contenders, _ in plan.turns()]
    assert len(set(firsts)) == 3
    assert plan.measurements() == 3 * len(CONTENDERS)


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda one: one.name)
def test_a_contender_has_an_agent_and_pinned_versions(contender):
    assert (AGENTS / f"on_{contender.agent}.py").exists()
    if contender.environment:
        pins = (AGENTS.parent / "pins" / f"{contender.agent}.txt").read_text().split()
        assert any(pin.startswith(f"{contender.agent}==") for pin in pins)
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


def test_the_baseline_row_is_as_wide_as_ours_and_an_agent_reports_errors():
    with Sandbox(BASELINE, "about") as place:
        baseline, ours = place.ask("about").values()
        assert baseline == pytest.approx(ours, rel=0.03)
        with pytest.raises(MeasurementFailed, match="NotImplementedError"):
            place.ask("pending")
        folder = place.folder
    assert not folder.exists()


def test_a_round_trip_through_the_proxy_takes_the_requested_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        proxy = Proxy(f"postgresql://me:word@127.0.0.1:{server.getsockname()[1]}/db", 20)
        try:
            assert proxy.url.startswith("postgresql://me:word@127.0.0.1:")
            port = int(re.search(r":(\d+)/db", proxy.url)[1])
            with socket.create_connection(("127.0.0.1", port)) as connection:
                began = time.monotonic()
                connection.sendall(b"there and back")
                assert connection.recv(100) == b"there and back"
                assert time.monotonic() - began >= 0.02
        finally:
            proxy.close()


def _echo(server):
    with server.accept()[0] as connection:
        while data := connection.recv(100):
            connection.sendall(data)
