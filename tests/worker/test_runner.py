"""A runner without a supervisor: messages in any order, and what it must answer."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import json
import marshal
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import Context, Mulligan
from mulligan.config import Settings
from mulligan.core.attempt import Lease
from mulligan.core.job import PreviousAttempts, RecordedStep
from mulligan.worker.protocol import (
    JUST_RETURNED,
    Wire,
    leases_from_wire,
    leases_to_wire,
    outcome_from_wire,
    outcome_to_wire,
    returned_from_wire,
)
from mulligan.worker.runner.main import Runner
from mulligan.worker.status_page import StatusPage
from support.waiting import until

pytestmark = pytest.mark.processes


class RunnerHarness:
    """The supervisor's end of a connection, and a runner on its columns thread and event loop."""

    def __init__(self, app: Mulligan, folder: Path, slots: int) -> None:
        ours, theirs = socket.socketpair()
        self.wire = Wire.for_supervisor(ours)
        self.status_page = StatusPage.create(slots)
        self.ended: dict[int, list[Any]] = {}
        self.messages: list[list[Any]] = []
        self._theirs = Wire.for_runner(theirs)
        runner = Runner(
            app.registry,
            self._theirs,
            self.status_page,
            mark="test",
            folder=folder,
            settings=Settings(),
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(runner.serve("{}")))
        self._thread.start()
        self._seq = 0
        self.until(lambda: ["ready", "{}"] in self.messages)

    def run(self, kind: str, payload: Any = None, *, send: bool = True, **changes: Any) -> Any:
        self._seq += 1
        lease = create_lease(kind, payload, self._seq)._replace(**changes)
        message = leases_to_wire([self._seq], [lease], {})
        if send:
            self.wire.send(message)
            return self._seq
        return self._seq, message

    def send_together(self, *messages: list[Any]) -> None:
        """Send messages in one packet, so that the runner handles them in one iteration."""
        for message in messages[:-1]:
            body = marshal.dumps(message)
            self.wire._outgoing += len(body).to_bytes(4, "big") + body
        self.wire.send(messages[-1])

    def until(self, condition: Callable[[], Any], timeout: float = 10) -> Any:
        deadline = time.monotonic() + timeout
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"ended: {self.ended}, messages: {self.messages}"
            select.select([self.wire], [self.wire] if self.wire.pending else [], [], 0.05)
            self.wire.flush()
            for message in self.wire.receive():
                self.messages.append(message)
                if message[0] == "ended":
                    self.ended |= {item[0]: item for item in message[1]}
                if message[0] == "returned":
                    ended = zip(*returned_from_wire(message[1]), strict=True)
                    self.ended |= {
                        seq: outcome_to_wire(seq, JUST_RETURNED, ms) for seq, ms in ended
                    }
        return answer

    def end(self, seq: int) -> list[Any]:
        return self.until(lambda: self.ended.get(seq))

    def close(self) -> None:
        self.wire.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()
        self.status_page.close()


def create_lease(kind: str, payload: Any, token: int) -> Lease:
    empty = dict.fromkeys(Lease._fields)
    known = {
        "id": f"job{token}",
        "kind": kind,
        "queue": "default",
        "owner": "",
        "worker": "w",
        "token": token,
    }
    known |= {
        "attempt": 1,
        "generation": 1,
        "priority": 0,
        "payload": json.dumps(payload or {}),
        "uses": "",
    }
    known |= {
        "failures": 0,
        "losses": 0,
        "snoozes": 0,
        "alone": False,
        "created_at": 0,
        "run_at": 0,
        "started_at": 0,
        "version": 1,
    }
    return Lease(**(empty | known))


@pytest.fixture
def app() -> Mulligan:
    return Mulligan(settings=Settings())


@pytest.fixture
def serve(app: Mulligan, tmp_path: Path) -> Iterator[Callable[..., RunnerHarness]]:
    harnesses: list[RunnerHarness] = []

    def start(slots: int = 4) -> RunnerHarness:
        harnesses.append(RunnerHarness(app, tmp_path, slots))
        return harnesses[-1]

    yield start
    for harness in harnesses:
        harness.close()


def test_a_stop_that_arrives_with_its_job_is_answered(app, serve):
    begun = []

    @app.job(name="a")
    async def handler() -> None:
        begun.append(1)

    harness = serve()
    seq, run = harness.run("a", send=False)
    harness.send_together(run, ["stop", seq, False])
    assert harness.end(seq)[1] in {"stopped", "returned"}


def test_repeated_failures_are_sent_with_their_messages(app, serve):
    @app.job(name="fails")
    async def handler(n: int) -> None:
        raise ConnectionError(f"request {n} was reset")

    harness = serve()
    for n in range(3):
        harness.end(harness.run("fails", {"n": n}))
    seqs, runs = zip(
        *[harness.run("fails", {"n": n}, send=False) for n in range(3, 6)], strict=True
    )
    harness.send_together(*runs, ["stop", seqs[0], False])
    outcomes = [outcome_from_wire(harness.end(seq)) for seq in range(1, 7) if seq != seqs[0]]
    assert [one.failure.private["message"] for one in outcomes] == [
        f"request {n} was reset" for n in (0, 1, 2, 4, 5)
    ]


def test_a_checkpoint_answer_after_a_cancellation_is_ignored(app, serve):
    @app.job(name="saves")
    async def saves(ctx: Context) -> None:
        await ctx.checkpoint_async("n", 1)

    @app.job(name="next")
    def following() -> str:
        return "fine"

    harness = serve()
    seq = harness.run("saves")
    [request] = harness.until(lambda: [m[1] for m in harness.messages if m[0] == "step"])
    harness.send_together(["stop", seq, False])
    assert harness.end(seq)[1] == "stopped"
    after, run = harness.run("next", send=False)
    harness.send_together(["step_saved", request, True], run)
    assert harness.end(after)[1] == "returned"


def test_a_job_of_an_unknown_kind_is_returned(app, serve):
    harness = serve()
    assert harness.end(harness.run("unknown"))[1] == "stopped"


def test_a_job_that_cannot_be_accepted_is_returned_and_the_others_run(app, serve):
    @app.job(name="a")
    def handler() -> str:
        return "fine"

    harness = serve()
    leases = [create_lease("a", None, seq) for seq in (1, 2, 3)]
    for bad in ([{"page": "no JSON at all"}, None], [{}], [1, 2, 3]):
        word, seqs, same, columns, _ = leases_to_wire([1, 2, 3], leases, {})
        harness.ended.clear()
        harness.send_together([word, seqs, same, columns, {2: bad}])
        assert [harness.end(seq)[1] for seq in seqs] == ["returned", "stopped", "returned"]
        assert harness.ended[2][2:] == [0, 0.0, ""]


def test_leases_that_cannot_be_decoded_are_all_returned(app, serve):
    @app.job(name="a")
    def handler() -> str:
        return "fine"

    harness = serve()
    word, seqs, same, columns, previous_attempts = leases_to_wire(
        [1, 2], [create_lease("a", None, seq) for seq in (1, 2)], {}
    )
    (index, column), *_ = columns.items()
    for bad in (columns | {index: column[:1]}, {}, columns | {index: None}):
        harness.ended.clear()
        harness.send_together([word, seqs, same, bad, previous_attempts])
        assert [harness.end(seq)[1] for seq in seqs] == ["stopped", "stopped"]
    harness.ended.clear()
    harness.send_together([word, seqs, same, columns, previous_attempts])
    assert [harness.end(seq)[1] for seq in seqs] == ["returned", "returned"]


@pytest.mark.parametrize("many", [1, 2, 7])
def test_leases_are_decoded_as_they_were_encoded(many):
    leases = [
        create_lease("a", {"n": n % 2}, n)._replace(alone=n % 2 == 0, uses="b" * (n % 3))
        for n in range(many)
    ]
    step = RecordedStep("step", "finished", 1, "3", "", 1)
    previous_attempts = {many: PreviousAttempts({"page": step}, {"code": "GW_5XX"})}
    encoded = marshal.dumps(leases_to_wire([*range(1, many + 1)], leases, previous_attempts))
    _, seqs, shared, columns, history = marshal.loads(encoded)  # noqa: S302 - encoded above
    assert [*leases_from_wire(len(seqs), shared, columns)] == leases
    assert {seq: PreviousAttempts(*values) for seq, values in history.items()} == previous_attempts


def test_all_of_many_attempts_that_end_at_once_are_reported(app, serve):
    together = threading.Barrier(16)

    @app.job(name="ends")
    def ends() -> None:
        together.wait(10)

    harness = serve(slots=16)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads meet between any two steps
    try:
        for _ in range(60):
            seqs = [harness.run("ends") for _ in range(16)]
            harness.until(lambda seqs=seqs: all(seq in harness.ended for seq in seqs), 5)
    finally:
        sys.setswitchinterval(before)


var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="clean")


def test_context_variables_of_a_job_are_not_visible_to_the_next_job_on_its_thread(app, serve):
    @app.job(name="sets")
    def sets() -> None:
        var.set("dirty")
        decimal.getcontext().prec = 3

    @app.job(name="looks")
    def looks() -> list[Any]:
        return [var.get(), decimal.getcontext().prec]

    harness = serve(slots=1)
    harness.end(harness.run("sets"))
    assert json.loads(harness.end(harness.run("looks"))[4]) == ["clean", 28]


class Liar(Exception):
    """Exception whose `__class__` raises."""

    @property
    def __class__(self) -> type:
        raise ZeroDivisionError


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_exception_with_a_raising_class_property_is_a_failure(app, serve, colour):
    @app.job(name="sync")
    def lies() -> None:
        raise Liar

    @app.job(name="async")
    async def lies_too() -> None:
        raise Liar

    harness = serve(slots=1)
    outcome = outcome_from_wire(harness.end(harness.run(colour)))
    assert outcome.failure is not None
    assert outcome.failure.code == "UNKNOWN_ERROR"
    assert outcome_from_wire(harness.end(harness.run(colour))).failure is not None


def test_frequent_progress_is_sent_in_few_messages(app, serve):
    release = threading.Event()

    @app.job(name="talks")
    def talks(ctx: Context) -> None:
        for n in range(20_000):
            ctx.progress(n / 20_000, f"step {n}")
        release.wait(10)

    harness = serve()
    seq = harness.run("talks")
    last = ["progress", [[seq, 19_999 / 20_000, "step 19999"]]]
    harness.until(lambda: last in harness.messages)
    release.set()
    harness.end(seq)
    assert len([m for m in harness.messages if m[0] == "progress"]) < 10


def test_the_status_page_shows_an_attempt_before_its_first_line_and_not_afterwards(app, serve):
    recorded = []

    @app.job(name="looks")
    def looks() -> None:
        recorded.append([running.seq for running in harness.status_page.running()])

    harness = serve()
    seq = harness.run("looks")
    harness.end(seq)
    assert recorded == [[seq]]
    until(lambda: harness.status_page.running() == [], 5)


def test_a_closed_connection_ends_the_runner_and_calls_on_stop(app, serve):
    left = []
    app.on_stop(lambda: left.append("closed"))
    harness = serve()
    harness.wire.close()
    until(lambda: left == ["closed"], 5)
