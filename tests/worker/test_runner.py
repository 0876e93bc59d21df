"""A runner by itself: what a supervisor may say to it, in which order, and what it must answer."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulligan import Context, Mulligan
from mulligan.config import Settings
from mulligan.core.attempt import Lease
from mulligan.core.job import PreviousAttempts
from mulligan.failures.facts import PrivateTemplate
from mulligan.worker.fast.lease_batch import LeaseBatch
from mulligan.worker.protocol import (
    JUST_RETURNED,
    StatusPage,
    Wire,
    failed_from_wire,
    leases_from_wire,
    leases_to_wire,
    outcome_from_wire,
    outcome_to_wire,
    returned_from_wire,
    shared_failure_from_wire,
)
from mulligan.worker.runner.main import Runner
from support.waiting import until

pytestmark = pytest.mark.processes


class Other:
    """The supervisor's end of the wire, and the runner on a thread with a loop of its own."""

    def __init__(self, app: Mulligan, folder: Path, slots: int) -> None:
        ours, theirs = socket.socketpair()
        self.wire = Wire.for_supervisor(ours)
        self.board = StatusPage.create(slots)
        self.ended: dict[int, list[Any]] = {}
        self.heard: list[list[Any]] = []
        self._theirs = Wire.for_runner(theirs)
        runner = Runner(
            app.registry, self._theirs, self.board, mark="test", folder=folder, settings=Settings()
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(runner.serve("{}")))
        self._thread.start()
        self._seq = 0
        self.until(lambda: ["ready", "{}"] in self.heard)

    def run(self, kind: str, payload: Any = None, *, send: bool = True, **changes: Any) -> Any:
        self._seq += 1
        lease = a_lease(kind, payload, self._seq)._replace(**changes)
        message = leases_to_wire([self._seq], LeaseBatch([lease]).columns, {})
        if send:
            self.wire.send(message)
            return self._seq
        return self._seq, message

    def say(self, *messages: list[Any]) -> None:
        """All in one packet: the runner hears them in one turn of its loop."""
        for message in messages[:-1]:
            body = marshal.dumps(message)
            self.wire._outgoing += len(body).to_bytes(4, "big") + body
        self.wire.send(messages[-1])

    def until(self, moment: Callable[[], Any], timeout: float = 10) -> Any:
        deadline = time.monotonic() + timeout
        while not (answer := moment()):
            assert time.monotonic() < deadline, f"ended: {self.ended}, heard: {self.heard}"
            select.select([self.wire], [self.wire] if self.wire.pending else [], [], 0.05)
            self.wire.flush()
            for message in self.wire.receive():
                self.heard.append(message)
                if message[0] == "ended":
                    self.ended |= {item[0]: item for item in message[1]}
                if message[0] == "returned":
                    told = zip(*returned_from_wire(message[1]), strict=True)
                    self.ended |= {seq: outcome_to_wire(seq, JUST_RETURNED, ms) for seq, ms in told}
                if message[0] == "failed":
                    self.ended |= _failed(*message[1:])
        return answer

    def end(self, seq: int) -> list[Any]:
        return self.until(lambda: self.ended.get(seq))

    def leave(self) -> None:
        self.wire.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()
        self.board.close()


def _failed(item: list[Any], head: str, tail: str, told: list[Any]) -> dict[int, list[Any]]:
    """Each as it would be told alone."""
    outcome = shared_failure_from_wire(item, head, tail)
    failure = outcome.failure
    assert failure is not None
    assert isinstance(failure.private, PrivateTemplate)
    ended = {}
    for seq, ms, words in zip(*failed_from_wire(told), strict=True):
        whole = outcome._replace(failure=replace(failure, private=failure.private.render(words)))
        ended[seq] = outcome_to_wire(seq, whole, ms)
    return ended


def a_lease(kind: str, payload: Any, token: int) -> Lease:
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
    }
    return Lease(**(empty | known))


@pytest.fixture
def app() -> Mulligan:
    return Mulligan(settings=Settings())


@pytest.fixture
def serve(app: Mulligan, tmp_path: Path) -> Iterator[Callable[..., Other]]:
    made: list[Other] = []

    def start(slots: int = 4) -> Other:
        made.append(Other(app, tmp_path, slots))
        return made[-1]

    yield start
    for other in made:
        other.leave()


def test_a_stop_that_arrives_with_its_job_is_answered(app, serve):
    begun = []

    @app.job(name="a")
    async def handler() -> None:
        begun.append(1)

    other = serve()
    seq, run = other.run("a", send=False)
    other.say(run, ["stop", seq])
    assert other.end(seq)[1] in {"stopped", "returned"}


def test_repeated_failures_are_sent_with_their_messages_only(app, serve):
    @app.job(name="fails")
    async def handler(n: int) -> None:
        raise ConnectionError(f"request {n} was reset")

    other = serve()
    for n in range(3):
        other.end(other.run("fails", {"n": n}))
    seqs, runs = zip(*[other.run("fails", {"n": n}, send=False) for n in range(3, 6)], strict=True)
    other.say(*runs, ["stop", seqs[0]])
    outcomes = [outcome_from_wire(other.end(seq)) for seq in range(1, 7) if seq != seqs[0]]
    assert [one.failure.private["message"] for one in outcomes] == [
        f"request {n} was reset" for n in (0, 1, 2, 4, 5)
    ]
    told = [message[-1] for message in other.heard if message[0] == "failed"]
    assert [told[n] for n in range(2)] == [
        [seq, told[seq - 2][1], f"request {seq - 1} was reset"] for seq in (2, 3)
    ]


def test_a_checkpoint_answer_after_a_cancellation_is_ignored(app, serve):
    @app.job(name="saves")
    async def saves(ctx: Context) -> None:
        await ctx.checkpoint_async("n", 1)

    @app.job(name="next")
    def following() -> str:
        return "fine"

    other = serve()
    seq = other.run("saves")
    [request] = other.until(lambda: [m[1] for m in other.heard if m[0] == "checkpoint"])
    other.say(["stop", seq])
    assert other.end(seq)[1] == "stopped"
    after, run = other.run("next", send=False)
    other.say(["checkpoint_written", request, True], run)
    assert other.end(after)[1] == "returned"


def test_a_job_of_an_unknown_kind_is_returned(app, serve):
    other = serve()
    assert other.end(other.run("nobody"))[1] == "stopped"


def test_a_job_that_cannot_be_accepted_is_returned_and_the_others_run(app, serve):
    @app.job(name="a")
    def handler() -> str:
        return "fine"

    other = serve()
    leases = [a_lease("a", None, seq) for seq in (1, 2, 3)]
    for bad in ([{"page": "no JSON at all"}, None], [{}], [1, 2, 3]):
        word, seqs, same, own, _ = leases_to_wire([1, 2, 3], LeaseBatch(leases).columns, {})
        other.ended.clear()
        other.say([word, seqs, same, own, {2: bad}])
        assert [other.end(seq)[1] for seq in seqs] == ["returned", "stopped", "returned"]
        assert other.ended[2][2:] == [0, 0.0]


def test_leases_that_cannot_be_decoded_are_all_returned(app, serve):
    @app.job(name="a")
    def handler() -> str:
        return "fine"

    other = serve()
    word, seqs, same, own, memories = leases_to_wire(
        [1, 2], LeaseBatch([a_lease("a", None, seq) for seq in (1, 2)]).columns, {}
    )
    (place, column), *_ = own.items()
    for bad in (own | {place: column[:1]}, {}, own | {place: None}):
        other.ended.clear()
        other.say([word, seqs, same, bad, memories])
        assert [other.end(seq)[1] for seq in seqs] == ["stopped", "stopped"]
    other.ended.clear()
    other.say([word, seqs, same, own, memories])
    assert [other.end(seq)[1] for seq in seqs] == ["returned", "returned"]


@pytest.mark.parametrize("many", [1, 2, 7])
def test_leases_are_decoded_as_they_were_encoded(many):
    leases = [
        a_lease("a", {"n": n % 2}, n)._replace(alone=n % 2 == 0, uses="b" * (n % 3))
        for n in range(many)
    ]
    memories = {many: PreviousAttempts({"page": "3"}, {"code": "GW_5XX"})}
    said = marshal.dumps(leases_to_wire([*range(1, many + 1)], LeaseBatch(leases).columns, memories))
    _, seqs, same, own, kept = marshal.loads(said)  # noqa: S302 - our own
    assert [*leases_from_wire(len(seqs), same, own)] == leases
    assert {seq: PreviousAttempts(*values) for seq, values in kept.items()} == memories


def test_all_of_many_attempts_that_end_at_once_are_reported(app, serve):
    together = threading.Barrier(16)

    @app.job(name="ends")
    def ends() -> None:
        together.wait(10)

    other = serve(slots=16)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads meet between any two steps
    try:
        for _ in range(60):
            seqs = [other.run("ends") for _ in range(16)]
            other.until(lambda seqs=seqs: all(seq in other.ended for seq in seqs), 5)
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

    other = serve(slots=1)
    other.end(other.run("sets"))
    assert json.loads(other.end(other.run("looks"))[4]) == ["clean", 28]


class Liar(Exception):
    """Whoever asks what it is gets an error for an answer."""

    @property
    def __class__(self) -> type:
        raise ZeroDivisionError


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_exception_with_a_raising_class_property_is_a_failure(
    app, serve, colour
):
    @app.job(name="sync")
    def lies() -> None:
        raise Liar

    @app.job(name="async")
    async def lies_too() -> None:
        raise Liar

    other = serve(slots=1)
    outcome = outcome_from_wire(other.end(other.run(colour)))
    assert outcome.failure is not None
    assert outcome.failure.code == "UNKNOWN_ERROR"
    assert outcome_from_wire(other.end(other.run(colour))).failure is not None


def test_frequent_progress_is_sent_in_few_messages(app, serve):
    release = threading.Event()

    @app.job(name="talks")
    def talks(ctx: Context) -> None:
        for n in range(20_000):
            ctx.progress(n / 20_000, f"step {n}")
        release.wait(10)

    other = serve()
    seq = other.run("talks")
    last = ["progress", [[seq, 19_999 / 20_000, "step 19999"]]]
    other.until(lambda: last in other.heard)
    release.set()
    other.end(seq)
    assert len([m for m in other.heard if m[0] == "progress"]) < 10


def test_the_status_page_shows_an_attempt_before_its_first_line_and_not_afterwards(app, serve):
    seen = []

    @app.job(name="looks")
    def looks() -> None:
        seen.append([running.seq for running in other.board.running()])

    other = serve()
    seq = other.run("looks")
    other.end(seq)
    assert seen == [[seq]]
    until(lambda: other.board.running() == [], 5)


def test_a_closed_connection_ends_the_runner_and_calls_on_stop(app, serve):
    left = []
    app.on_stop(lambda: left.append("closed"))
    other = serve()
    other.wire.close()
    until(lambda: left == ["closed"], 5)
