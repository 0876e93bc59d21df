"""Performance targets: each compares Mulligan with others, a database alone or a number, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.peers.contenders import CONTENDERS, LIMITS, OURS
from bench.peers.results import Run

STORES = ("postgres", "sqlite")
TITLES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
MAX_LOSSES = 2
INNOCENT_JOBS = 10


class Verdict(NamedTuple):
    """Result of one target."""

    what: str
    store: str
    bar: str
    text: str
    met: bool | None  # None: not measured in this run


class Bar(NamedTuple):
    """One target."""

    what: str
    store: str
    least: float | None  # minimum, or …
    most: float | None  # … maximum
    unit: str
    value: Callable[[Run], float | None]
    aim: float | None = None  # a higher goal
    alone: Callable[[Run], float | None] | None = None  # against the job's row without its event
    failed_condition: Callable[[Run], str | None] | None = (
        None  # why it is not met despite its value
    )

    def judge(self, run: Run) -> Verdict:
        value, failed_condition = (
            self.value(run),
            self.failed_condition(run) if self.failed_condition else None,
        )
        sign, bound = ("≥", self.least) if self.least is not None else ("≤", self.most)
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        text = self._format_value(run, value) + (
            f", {failed_condition}" if failed_condition else ""
        )
        met = None if value is None else self._is_met(value) and not failed_condition
        return Verdict(
            self.what, TITLES[self.store], f"{sign} {bound:g}{self.unit}{aim}", text, met
        )

    def _is_met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def _format_value(self, run: Run, value: float | None) -> str:
        if value is None:
            return "–"
        alone = self.alone(run) if self.alone else None
        return f"{value:.2f}{self.unit}" + (
            "" if alone is None else f" (the row alone: {alone:.2f})"
        )


def peers(store: str) -> list[str]:
    """Return the other systems on this database."""
    return [one.name for one in CONTENDERS if one.store == store and not one.ours and not one.limit]


def other_systems() -> list[str]:
    return [one.name for one in CONTENDERS if not one.ours and not one.limit]


def _share(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or not bottom else top / bottom


def _best(
    run: Run, case: str, names: list[str], name: str, best: Callable[..., float] = max
) -> float | None:
    found = [value for one in names if (value := run.figure(case, one, name)) is not None]
    return best(found) if found else None


def _drains() -> Iterator[Bar]:
    def ours(run: Run, store: str, case: str = "drain") -> float | None:
        return run.figure(case, OURS[store], "jobs/s")

    def limit(run: Run, store: str) -> float | None:
        return _share(ours(run, store), run.figure("drain", LIMITS[store], "batches of 100"))

    yield Bar(
        "drain against the fastest other system of the run",
        "postgres",
        1.5,
        None,
        " ×",
        lambda run: _share(ours(run, "postgres"), _best(run, "drain", other_systems(), "jobs/s")),
        aim=2,
    )
    yield Bar(
        "drain against plain batches of 100",
        "postgres",
        0.6,
        None,
        "",
        lambda run: limit(run, "postgres"),
    )
    yield Bar(
        "drain against Huey with fsync",
        "sqlite",
        8,
        None,
        " ×",
        lambda run: _share(ours(run, "sqlite"), run.figure("drain", "huey", "jobs/s")),
        aim=12,
    )
    yield Bar(
        "drain against plain batches of 100",
        "sqlite",
        0.4,
        None,
        "",
        lambda run: limit(run, "sqlite"),
    )
    for store in STORES:
        yield Bar(
            "two workers against one",
            store,
            1.0,
            None,
            " ×",
            lambda run, store=store: _share(ours(run, store, "drain, 2 workers"), ours(run, store)),
        )
    yield Bar(
        "two workers against one, 2 ms away",
        "postgres",
        1.6,
        None,
        " ×",
        lambda run: _share(
            ours(run, "postgres", "drain, 2 workers, 2 ms away"),
            ours(run, "postgres", "drain, 2 ms away"),
        ),
    )


def _retries() -> Iterator[Bar]:
    for store in STORES:
        yield Bar(
            "retry path against the best other system on this store",
            store,
            5,
            None,
            " ×",
            lambda run, store=store: _share(
                run.figure("retry", OURS[store], "jobs/s"),
                _best(run, "retry", peers(store), "jobs/s"),
            ),
        )


def _mixes() -> Iterator[Bar]:
    for store, least, aim in (("postgres", 5, 7), ("sqlite", 12, 18)):
        yield Bar(
            "mixed failures against the best other system on this store",
            store,
            least,
            None,
            " ×",
            lambda run, store=store: _share(
                run.figure("mixed failures", OURS[store], "jobs/s"),
                _best(run, "mixed failures", peers(store), "jobs/s"),
            ),
            aim=aim,
        )
    for store in STORES:
        yield Bar(
            "CPU of the worker per job that fails once, mixed failures",
            store,
            None,
            300,
            " µs",
            lambda run, store=store: run.figure("mixed failures", OURS[store], "CPU, µs/job"),
        )
        yield Bar(
            "mixed jobs against no-ops of the same measurement",
            store,
            0.45,
            None,
            "",
            lambda run, store=store: run.figure("mixed jobs", OURS[store], "jobs/s against no-ops"),
        )


def _enqueues() -> Iterator[Bar]:
    def share(run: Run, store: str, how: str, rows: str) -> float | None:
        return _share(
            run.figure("enqueue", OURS[store], how),
            run.figure("enqueue", LIMITS[store], f"{how}, {rows}"),
        )

    for store in STORES:
        yield Bar(
            "one at a time against the same rows by plain SQL",
            store,
            0.8,
            None,
            "",
            lambda run, store=store: share(run, store, "one", "same rows"),
            alone=lambda run, store=store: share(run, store, "one", "plain"),
        )
    yield Bar(
        "bulk against the best other system",
        "postgres",
        2,
        None,
        " ×",
        lambda run: _share(
            run.figure("enqueue", OURS["postgres"], "bulk"),
            _best(run, "enqueue", other_systems(), "bulk"),
        ),
    )
    yield Bar(
        "bulk against the same rows by plain SQL",
        "sqlite",
        0.4,
        None,
        "",
        lambda run: share(run, "sqlite", "bulk", "same rows"),
        alone=lambda run: share(run, "sqlite", "bulk", "plain"),
    )


def _latencies() -> Iterator[Bar]:
    for name in ("p50, ms", "p99, ms"):
        yield Bar(
            f"enqueue to start, {name[:3]} against the best other on this store",
            "postgres",
            None,
            1,
            " ×",
            lambda run, name=name: _share(
                run.figure("latency", OURS["postgres"], name),
                _best(run, "latency", peers("postgres"), name, min),
            ),
        )
    yield Bar(
        "enqueue to start, p50",
        "sqlite",
        None,
        3,
        " ms",
        lambda run: run.figure("latency", OURS["sqlite"], "p50, ms"),
    )


def _troubles(store: str) -> Iterator[Bar]:
    def seconds(run: Run, what: str) -> float | None:
        return run.figure(f"crash of {what}, default", OURS[store], "seconds")

    def poison_starts(run: Run, what: str) -> float | None:
        return run.worst(f"poison {what}, default", OURS[store], "starts")

    def unfinished_innocents(run: Run, what: str) -> str | None:
        done = min(
            run.numbers(f"poison {what}, default", OURS[store], "innocent done"),
            default=INNOCENT_JOBS,
        )
        return None if done >= INNOCENT_JOBS else f"{done:.0f} of {INNOCENT_JOBS} neighbours done"

    yield Bar(
        "kill -9 of the runner, until all are done",
        store,
        None,
        7,
        " s",
        lambda run: seconds(run, "handler"),
    )
    yield Bar(
        "kill -9 of everything, until all are done",
        store,
        None,
        8,
        " s",
        lambda run: seconds(run, "all"),
    )
    for what in ("handler", "worker"):
        yield Bar(
            f"starts of a job that kills its {what}, all neighbours done",
            store,
            None,
            MAX_LOSSES + 1,
            "",
            lambda run, what=what: poison_starts(run, what),
            failed_condition=lambda run, what=what: unfinished_innocents(run, what),
        )


def _costs(store: str) -> Iterator[Bar]:
    yield Bar(
        "drain beside 1,000,000 scheduled and 100,000 held jobs against an empty table",
        store,
        0.9,
        None,
        "",
        lambda run: run.figure("backlog", OURS[store], "full / empty"),
    )
    yield Bar(
        "idle worker, CPU",
        store,
        None,
        0.99,
        " %",
        lambda run: run.figure("idle", OURS[store], "CPU, %"),
    )
    yield Bar(
        "idle worker, memory",
        store,
        None,
        90,
        " MB",
        lambda run: run.figure("idle", OURS[store], "PSS, MB"),
    )


BARS = (
    *_drains(),
    *_retries(),
    *_mixes(),
    *_enqueues(),
    *_latencies(),
    *(bar for store in STORES for bar in (*_troubles(store), *_costs(store))),
)


def judge_all(run: Run) -> list[Verdict]:
    return [bar.judge(run) for bar in BARS]
