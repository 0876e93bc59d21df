"""Processes that write, migrate, fork or die; each is started afresh and imports this module."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import apsw

from mulligan.core.errors import StoreUnavailable
from mulligan.jobs.queries import JobQueries
from mulligan.storage import migrations, open_store
from support.store import BackgroundCall, a_job, enqueue, is_postgres, migrated, prefix


def started(work: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start a process without the connections of this one."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    return process


def ended_well(*processes: SpawnProcess) -> None:
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def acknowledge(path: str, text: str) -> None:
    """Append one line, which survives the death of this process."""
    with open(path, "a", encoding="utf-8", buffering=1) as file:  # noqa: PTH123 - a log file
        file.write(f"{text}\n")


def enqueue_for(url: str, seconds: float, log: str) -> None:
    """Enqueue one by one and log each acknowledged id. Any error ends the process."""
    with closing(open_store(url)) as store:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            acknowledge(log, enqueue(store)[0])


def enqueue_once(url: str, log: str) -> None:
    with closing(open_store(url)) as store:
        acknowledge(log, enqueue(store)[0])


def enqueue_for_through_sqlite3(url: str, seconds: float, log: str) -> None:
    """Enqueue in transactions of the standard library's sqlite3."""
    with closing(open_store(url.replace("sqlite:", "sqlite+stdlib:"))) as store:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with store.transaction() as connection:
                assert isinstance(connection, sqlite3.Connection)
                (answer,) = JobQueries(store.join(connection)).insert_jobs(
                    [a_job()], announce=False
                )
            acknowledge(log, answer.id)


def enqueue_once_through_sqlite3(url: str, log: str) -> None:
    enqueue_for_through_sqlite3(url, 0.001, log)


def migrate_once(url: str, log: str) -> None:
    with closing(open_store(url)) as store:
        acknowledge(log, " ".join(store.migrate()))


def die_in_the_middle_of_a_migration(url: str) -> None:
    """Run the first migration step and exit before its commit."""
    with closing(open_store(url)) as store, store.transaction() as connection:
        text = next(
            iter(
                migrations.load_steps(
                    "postgres" if url.startswith("postgres") else "sqlite", prefix(store)
                )
            )
        ).text
        if is_postgres(store):
            connection.execute(f"CREATE SCHEMA {prefix(store)[:-1]}")
        connection.execute(text)
        os._exit(0)


def stored(path: str | Path) -> set[str]:
    """Return the ids that a new process finds."""
    with closing(apsw.Connection(str(path))) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM mulligan_job")}


def write_stored(file: str, to: str) -> None:
    Path(to).write_text(" ".join(stored(file)))


def daemon(url: str, folder: str) -> None:
    log = f"{folder}/log"
    with migrated(url) as store:
        enqueue(store)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            enqueue(store)
            os.read(read, 1)  # until the parent has closed and another process has written
            for _ in range(3):
                acknowledge(log, enqueue(store)[0])
            os._exit(0)
        os.close(read)
    ended_well(started(enqueue_once, url, os.devnull))
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert status == 0


def fork_often(url: str, log: str) -> None:
    with migrated(url) as store:
        children = []
        for _ in range(20):
            acknowledge(log, enqueue(store)[0])
            child = os.fork()
            if child == 0:
                for _ in range(2):
                    acknowledge(log, enqueue(store)[0])
                os._exit(0)
            children.append(child)
            acknowledge(log, enqueue(store)[0])
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20


def fork_while_writing(url: str, log: str) -> None:
    with migrated(url) as store:
        inside, leave = threading.Event(), threading.Event()

        def write() -> str:
            with store.begin() as tx:
                (answer,) = JobQueries(tx).insert_jobs([a_job()], announce=True)
                inside.set()
                assert leave.wait(30)
            return answer.id

        writer = BackgroundCall(write)
        assert inside.wait(30)
        child = os.fork()
        if child == 0:
            try:
                acknowledge(log, enqueue(store)[0])
            except StoreUnavailable as error:
                os._exit(0 if "was forked while" in str(error) else 1)
            os._exit(2)  # the parent has not committed yet, so no other process can write
        _, status = os.waitpid(child, 0)
        leave.set()
        acknowledge(log, writer.result())
        assert status == 0
