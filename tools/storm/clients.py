"""Run one client of a storm until the file `stop` exists: python -m storm.clients python|http.

It uses every operation that Mulligan guarantees something about, and records requests and answers.
An answer that is not documented (an exception of a driver, a 500) is a violation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

from storm.workload import MEMBER_OUTCOMES, JobRequest, draw_request, draw_weighted

from mulligan import Mulligan
from mulligan.core.errors import MulliganError
from mulligan.doctor.verify import records

KNOWN_JOBS = 200
HTTP_TIMEOUT = 15.0  # seconds


class RollBack(Exception):
    """Raised to roll a transaction back."""


class Client:
    """Base of both clients: seed, records of calls, recently created jobs, main loop."""

    actions: ClassVar[dict[str, float]]

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.folder = folder
        self.rng = Random(f"{seed} {name}")
        self.name = name
        self.records = records.Clients(folder / "clients.jsonl", name)
        self.known: deque[str] = deque(maxlen=KNOWN_JOBS)
        self.number = self.rng.randrange(10**9) * 1000

    def run(self, every: float) -> None:
        while not (self.folder / "stop").exists():
            calm = (self.folder / "calm").exists()
            action = draw_weighted(self.rng, self.actions)
            if not calm or action in records.MOVES:
                self._try(action)
            self._rest(self.rng.expovariate(1 / every))

    def _try(self, action: str) -> None:
        try:
            getattr(self, action)()
        except (MulliganError, OSError, HTTPException):  # already recorded
            self._rest(0.05)
        except Exception:  # noqa: BLE001 - any other error is a violation
            records.append(
                self.folder / "surprises.jsonl",
                {"client": self.name, "trace": traceback.format_exc()},
            )

    def _rest(self, seconds: float) -> None:
        with suppress(OSError):  # a wrong clock may make sleep fail
            time.sleep(seconds)

    def request(self) -> JobRequest:
        self.number += 1
        return draw_request(self.rng, self.number)

    def requests(self) -> list[JobRequest]:
        """Return requests of one kind without options, for `enqueue_many`."""
        self.number += 20
        return [
            JobRequest("plain", {"n": self.number + i}, {}) for i in range(self.rng.randint(2, 20))
        ]

    def remember(self, *ids: str) -> None:
        self.known.extend(ids)

    def some_job(self) -> str | None:
        return self.rng.choice(self.known) if self.known else None

    def move(self, what: str, act: Callable[[str], Any]) -> None:
        if (job := self.some_job()) is None:
            return
        with self.records.call(what, job=job) as call:
            act(job)
            call.ok(job)


class PythonClient(Client):
    """A client that imports the app."""

    actions: ClassVar[dict[str, float]] = {
        "enqueue": 50,
        "enqueue_many": 6,
        "in_a_transaction": 8,
        "rolled_back": 6,
        "a_batch": 4,
        "retry": 10,
        "cancel": 8,
        "release": 6,
        "discard": 3,
        "in_bulk": 1,
        "look": 5,
    }

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        super().__init__(folder, name, seed)
        from storm.app import app  # noqa: PLC0415 - only this client has the handlers

        self.app: Mulligan = app

    def enqueue(self) -> None:
        request = self.request()
        record = {
            "kind": request.kind,
            "owner": request.options["owner"],
            "payload": request.payload,
        }
        with self.records.call("enqueue", **record) as call:
            job = self.app.enqueue(request.kind, request.payload, **request.options)
            call.ok(job)
        self.remember(job.id)

    def enqueue_many(self) -> None:
        requests = self.requests()
        with self.records.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in requests]
        ) as call:
            jobs = self.app.insert([self.app.build_job(w.kind, w.payload) for w in requests])
            call.ok(*jobs)
        self.remember(*(job.id for job in jobs))

    def in_a_transaction(self) -> None:
        requests = self.requests()[:5]
        with self.records.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in requests]
        ) as call:
            with self.app.transaction() as connection:
                jobs = [
                    self.app.enqueue(w.kind, w.payload, connection=connection) for w in requests
                ]
            call.ok(*jobs)
        self.remember(*(job.id for job in jobs))

    def rolled_back(self) -> None:
        requests = self.requests()[:5]
        ids: list[str] = []
        with self.records.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in requests]
        ) as call:
            try:
                with self.app.transaction() as connection:
                    ids = [
                        self.app.enqueue(w.kind, w.payload, connection=connection).id
                        for w in requests
                    ]
                    raise RollBack
            except RollBack:
                call.rolled_back(*ids)

    def a_batch(self) -> None:
        with self.records.call("batch") as call:
            batch = self.app.batch(
                f"batch {self.number}", on_complete="completed", tolerance=self.rng.choice((0, 2))
            )
            call.ok()
        for _ in range(self.rng.randint(0, 8)):
            self.number += 1
            payload = {"n": self.number, "fate": draw_weighted(self.rng, dict(MEMBER_OUTCOMES))}
            with self.records.call(
                "enqueue", kind="member", payload=payload, batch=batch.id
            ) as call:
                job = self.app.enqueue("member", payload, batch=batch)
                call.ok(job)
            self.remember(job.id)
        with self.records.call("seal", batch=batch.id) as call:
            batch.seal()
            call.ok()

    def retry(self) -> None:
        self.move("retry", lambda job: self.app.jobs.retry(job, reason="storm"))

    def cancel(self) -> None:
        self.move("cancel", lambda job: self.app.jobs.cancel(job, reason="storm"))

    def release(self) -> None:
        self.move("release", lambda job: self.app.jobs.release(job, choice="go", reason="storm"))

    def discard(self) -> None:
        self.move("discard", lambda job: self.app.jobs.discard(job, reason="storm"))

    def in_bulk(self) -> None:
        action, filter_ = self.rng.choice((("retry", "state:dead"), ("release", "state:parked")))
        choice = {"choice": "go"} if action == "release" else {}
        self.app.operations.start(action, filter_, steps=[5, "rest"], reason="storm", **choice)

    def look(self) -> None:
        if (job := self.some_job()) is not None:
            self.app.jobs.explain(job)


class HttpClient(Client):
    """A client of the HTTP API."""

    actions: ClassVar[dict[str, float]] = {
        "enqueue": 50,
        "enqueue_many": 6,
        "again": 6,
        "retry": 8,
        "cancel": 6,
        "release": 6,
        "look": 10,
    }

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        super().__init__(folder, name, seed)
        self.port = int(os.environ["STORM_WEB"])
        self.key = os.environ["STORM_KEY"]

    def send(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HTTP_TIMEOUT)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = key or uuid4().hex
        try:
            connection.request(
                method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers
            )
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text else None

    def record_answer(self, call: records.Call, status: int, body: Any) -> list[str]:
        """Record an answer and return the job ids in it."""
        if status >= 500 or status == 429:
            call.unknown(f"{status} {body}")
            self._refuse_500(status, body)
            return []
        if status >= 400:
            call.refused(f"{status} {body}")
            return []
        ids = [job["id"] for job in body.get("jobs", [body])]
        call.ok(*ids)
        return ids

    def _refuse_500(self, status: int, body: Any) -> None:
        if status == 500:
            raise AssertionError(f"500: {body}")

    def enqueue(self) -> None:
        self._enqueue(self.request(), uuid4().hex)

    def _enqueue(self, request: JobRequest, key: str) -> list[str]:
        body = {"kind": request.kind, "payload": request.payload, **request.options}
        with self.records.call(
            "enqueue", kind=request.kind, owner=request.options["owner"], payload=request.payload
        ) as call:
            ids = self.record_answer(call, *self.send("POST", "/jobs", body, key))
        self.remember(*ids)
        return ids

    def again(self) -> None:
        """Send one request twice, as after a lost answer. It must create one job."""
        request = self.request()
        key = uuid4().hex
        first = self._enqueue(request, key)
        second = self._enqueue(request, key)
        if first and second and first != second:
            raise AssertionError(f"one Idempotency-Key created two jobs: {first} {second}")

    def enqueue_many(self) -> None:
        requests = self.requests()
        body = {"jobs": [{"kind": w.kind, "payload": w.payload} for w in requests]}
        with self.records.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in requests]
        ) as call:
            self.remember(*self.record_answer(call, *self.send("POST", "/jobs", body)))

    def _move(self, what: str, body: Any) -> None:
        if (job := self.some_job()) is None:
            return
        with self.records.call(what, job=job) as call:
            self.record_answer(call, *self.send("POST", f"/jobs/{job}/{what}", body))

    def retry(self) -> None:
        self._move("retry", {"reason": "storm"})

    def cancel(self) -> None:
        self._move("cancel", {"reason": "storm"})

    def release(self) -> None:
        self._move("release", {"choice": "go", "reason": "storm"})

    def look(self) -> None:
        status, body = self.send(
            "GET", self.rng.choice(("/jobs?limit=20", "/queues", "/failures", "/workers"))
        )
        self._refuse_500(status, body)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("type", choices=["python", "http"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--every", type=float, default=0.2)
    args = parser.parse_args()
    folder = Path(os.environ["STORM_FOLDER"])
    client_class = PythonClient if args.type == "python" else HttpClient
    client_class(folder, args.name, args.seed).run(args.every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
