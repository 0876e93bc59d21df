"""What time alone does to guards, and what was left behind for them: folded by whoever comes by."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.engine.causes import Causes
from mulligan.engine.watch import Watch
from mulligan.store.base import Store


def tend(store: Store, watch: Watch, causes: Causes) -> None:
    """Quick where no guard is at work."""
    with store.read() as unit:
        keys, kinds = watch.waits(unit), causes.waits(unit)
    if keys or kinds:
        _fold(store, watch, causes, keys, kinds)


def _fold(store: Store, watch: Watch, causes: Causes, keys: Iterable[str], kinds: Iterable[str]) -> None:
    seen = watch.taken()
    try:
        with store.begin() as unit:
            now = unit.now()
            watch.tend(unit, keys, seen, now)
            causes.tend(unit, kinds, now)
    except BaseException:
        watch.give_back(seen)
        raise
