"""The metrics as Prometheus reads them. One exporter for a database is enough: all of it comes from there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mulligan.observe import gauges, metrics
from mulligan.store.base import Store

FRESH = 5.0  # seconds for which an answer is good enough
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_lock = threading.Lock()
_answers: WeakKeyDictionary[Store, tuple[float, str]] = WeakKeyDictionary()


def text(store: Store, now: float | None = None) -> str:
    """At most once in five seconds the database is asked. `now`: seconds of a clock that only grows."""
    moment = time.monotonic() if now is None else now
    with _lock:  # whoever scrapes at the same time gets the same answer
        known = _answers.get(store)
        if known is None or not 0 <= moment - known[0] < FRESH:
            known = (moment, fresh(store))
            _answers[store] = known
    return known[1]


def fresh(store: Store) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(store))
    return generate_latest(registry).decode()


class _Collected(Collector):
    def __init__(self, store: Store) -> None:
        with store.read() as unit:
            self._scene, self._counted = gauges.look(unit), unit.stats_ever()

    def collect(self) -> Iterator[Metric]:
        yield from metrics.families(self._counted)
        yield from gauges.families(self._scene)
