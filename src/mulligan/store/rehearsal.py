"""What a worker asks of PostgreSQL all day, asked for nobody while its app is still being loaded: what a connection
does once for each statement (to read it, to learn of its tables, to plan it) takes longer than many a claim.
"""

from __future__ import annotations

from mulligan.store.base import Around, Finished, Mark, Plain, Retried, Settlement, Unit

NOBODY = ""
TIMES = 2  # until the driver prepares it
MANY = 10  # are written as thousands would be


def rehearse(unit: Unit) -> None:
    now = unit.now()
    names = [str(number) for number in range(MANY)]  # nobody's: what lies where they are said to lie is left alone
    returned = [Finished(name, 1, 1, 1, now, "null", "", None, name, f"(0,{name})") for name in names]
    failed = [Retried(name, f"(0,{name})", now, "", 0, 0) for name in names]
    for _ in range(TIMES):
        unit.look_and_take(NOBODY, Plain((), now, now), 1)
        unit.take_on(NOBODY, Mark("", 0, now, now, now), 1)
        unit.take_due(NOBODY, "", 0, 1)
        unit.finish_alone(NOBODY, returned)
        unit.retry_alone(_one_that_failed(now), Around("", "", "", "", ""), failed)


def _one_that_failed(now: int) -> Settlement:
    """Values as they are: a statement is prepared for their types."""
    return Settlement(
        id="", worker=NOBODY, token=1, saw_cancel=False, state="queued", run_at=now, failures=1, losses=0, snoozes=0,
        alone=False, result=None, error=None, choices=None, reason="", finished=False, free_key=False, cost=0.0,
        generation=1, attempt=1, settled_by=NOBODY, started_at=now, ended="failed", verb="retry", code="", cls="",
        rule="", public="", evidence="{}", private="", fingerprint="", event="", owner="", batch_id=None, data="",
        counts="{}", judged="{}",
    )  # fmt: skip
