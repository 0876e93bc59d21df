"""python -m storm.clients python|http: one client, in a process of its own, until the file `stop` is there.

It asks for everything a promise is about, and writes down what it was told. What is no answer of ours (an exception
of a driver, a traceback) is a surprise, and surprises are a violation.
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

from storm.wishes import FATES, Wish, a_wish, drawn

from mulligan import Mulligan
from mulligan.core.errors import MulliganError
from mulligan.doctor.verify import records

REMEMBERED = 200
PATIENCE = 15.0  # seconds an HTTP client waits for an answer


class Unwanted(Exception):
    """The transaction is to be rolled back."""


class Client:
    """What both sorts of clients have in common: a seed, a notebook, a memory of jobs, a loop."""

    deeds: ClassVar[dict[str, float]]

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.folder = folder
        self.rng = Random(f"{seed} {name}")
        self.name = name
        self.book = records.Clients(folder / "clients.jsonl", name)
        self.known: deque[str] = deque(maxlen=REMEMBERED)
        self.number = self.rng.randrange(10**9) * 1000

    def run(self, every: float) -> None:
        while not (self.folder / "stop").exists():
            calm = (self.folder / "calm").exists()
            deed = drawn(self.rng, self.deeds)
            if not calm or deed in records.MOVES:
                self._tried(deed)
            self._rest(self.rng.expovariate(1 / every))

    def _tried(self, deed: str) -> None:
        try:
            getattr(self, deed)()
        except (MulliganError, OSError, HTTPException):  # told in the book already
            self._rest(0.05)
        except Exception:  # noqa: BLE001 - whatever else there is: that is what is looked for
            records.append(
                self.folder / "surprises.jsonl",
                {"client": self.name, "trace": traceback.format_exc()},
            )

    def _rest(self, seconds: float) -> None:
        with suppress(OSError):  # with a clock that is wrong a sleep may be refused
            time.sleep(seconds)

    def wish(self) -> Wish:
        self.number += 1
        return a_wish(self.rng, self.number)

    def wishes(self) -> list[Wish]:
        """Of one kind, without options: what `enqueue_many` takes."""
        self.number += 20
        return [Wish("plain", {"n": self.number + i}, {}) for i in range(self.rng.randint(2, 20))]

    def remember(self, *ids: str) -> None:
        self.known.extend(ids)

    def some_job(self) -> str | None:
        return self.rng.choice(self.known) if self.known else None

    def move(self, what: str, act: Callable[[str], Any]) -> None:
        if (job := self.some_job()) is None:
            return
        with self.book.call(what, job=job) as call:
            act(job)
            call.ok(job)


class InPython(Client):
    deeds: ClassVar[dict[str, float]] = {
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
        from storm.app import app  # noqa: PLC0415 - handlers check payloads; only this sort of client has them

        self.app: Mulligan = app

    def enqueue(self) -> None:
        wish = self.wish()
        said = {"kind": wish.kind, "owner": wish.options["owner"], "payload": wish.payload}
        with self.book.call("enqueue", **said) as call:
            job = self.app.enqueue(wish.kind, wish.payload, **wish.options)
            call.ok(job)
        self.remember(job.id)

    def enqueue_many(self) -> None:
        wishes = self.wishes()
        with self.book.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in wishes]
        ) as call:
            jobs = self.app.insert([self.app.prepared(w.kind, w.payload) for w in wishes])
            call.ok(*jobs)
        self.remember(*(job.id for job in jobs))

    def in_a_transaction(self) -> None:
        wishes = self.wishes()[:5]
        with self.book.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in wishes]
        ) as call:
            with self.app.transaction() as connection:
                jobs = [self.app.enqueue(w.kind, w.payload, connection=connection) for w in wishes]
            call.ok(*jobs)
        self.remember(*(job.id for job in jobs))

    def rolled_back(self) -> None:
        wishes, ids = self.wishes()[:5], []
        with self.book.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in wishes]
        ) as call:
            try:
                with self.app.transaction() as connection:
                    ids = [
                        self.app.enqueue(w.kind, w.payload, connection=connection).id
                        for w in wishes
                    ]
                    raise Unwanted
            except Unwanted:
                call.rolled_back(*ids)

    def a_batch(self) -> None:
        with self.book.call("batch") as call:
            batch = self.app.batch(
                f"batch {self.number}", on_complete="completed", tolerance=self.rng.choice((0, 2))
            )
            call.ok()
        for _ in range(self.rng.randint(0, 8)):
            self.number += 1
            payload = {"n": self.number, "fate": drawn(self.rng, dict(FATES))}
            with self.book.call("enqueue", kind="member", payload=payload, batch=batch.id) as call:
                job = self.app.enqueue("member", payload, batch=batch)
                call.ok(job)
            self.remember(job.id)
        with self.book.call("seal", batch=batch.id) as call:
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
        action, words = self.rng.choice((("retry", "state:dead"), ("release", "state:parked")))
        choice = {"choice": "go"} if action == "release" else {}
        self.app.operations.start(action, words, steps=[5, "rest"], reason="storm", **choice)

    def look(self) -> None:
        if (job := self.some_job()) is not None:
            self.app.jobs.explain(job)


class OverHttp(Client):
    deeds: ClassVar[dict[str, float]] = {
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

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
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

    def told(self, call: records.Call, status: int, body: Any) -> list[str]:
        """Notes what an answer says; returns the ids in it."""
        if status >= 500 or status == 429:
            call.unknown(f"{status} {body}")
            self._expected(status, body)
            return []
        if status >= 400:
            call.refused(f"{status} {body}")
            return []
        ids = [job["id"] for job in body.get("jobs", [body])]
        call.ok(*ids)
        return ids

    def _expected(self, status: int, body: Any) -> None:
        if status == 500:
            raise AssertionError(f"500: {body}")

    def enqueue(self) -> None:
        self._enqueue(self.wish(), uuid4().hex)

    def _enqueue(self, wish: Wish, key: str) -> list[str]:
        body = {"kind": wish.kind, "payload": wish.payload, **wish.options}
        with self.book.call(
            "enqueue", kind=wish.kind, owner=wish.options["owner"], payload=wish.payload
        ) as call:
            ids = self.told(call, *self.ask("POST", "/jobs", body, key))
        self.remember(*ids)
        return ids

    def again(self) -> None:
        """The same request twice, as a client does that heard nothing: one job."""
        wish, key = self.wish(), uuid4().hex
        first, second = self._enqueue(wish, key), self._enqueue(wish, key)
        if first and second and first != second:
            raise AssertionError(f"one Idempotency-Key, two jobs: {first} {second}")

    def enqueue_many(self) -> None:
        wishes = self.wishes()
        body = {"jobs": [{"kind": w.kind, "payload": w.payload} for w in wishes]}
        with self.book.call(
            "enqueue_many", kind="plain", payloads=[w.payload for w in wishes]
        ) as call:
            self.remember(*self.told(call, *self.ask("POST", "/jobs", body)))

    def _moved(self, what: str, body: Any) -> None:
        if (job := self.some_job()) is None:
            return
        with self.book.call(what, job=job) as call:
            self.told(call, *self.ask("POST", f"/jobs/{job}/{what}", body))

    def retry(self) -> None:
        self._moved("retry", {"reason": "storm"})

    def cancel(self) -> None:
        self._moved("cancel", {"reason": "storm"})

    def release(self) -> None:
        self._moved("release", {"choice": "go", "reason": "storm"})

    def look(self) -> None:
        status, body = self.ask(
            "GET", self.rng.choice(("/jobs?limit=20", "/queues", "/failures", "/workers"))
        )
        self._expected(status, body)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sort", choices=["python", "http"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--every", type=float, default=0.2)
    args = parser.parse_args()
    folder = Path(os.environ["STORM_FOLDER"])
    (InPython if args.sort == "python" else OverHttp)(folder, args.name, args.seed).run(args.every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
