"""Every way in which an attempt can end, by name."""

from __future__ import annotations

from mulligan.core.attempt import Cls, Ended, Failure, Outcome
from mulligan.core.durations import SECOND
from mulligan.failures import codes as ends
from support.builders import make_failure

SUCCESS = Outcome(Ended.RETURNED, result='{"healthy":true}')


def failed(failure: Failure, **fields: object) -> Outcome:
    return Outcome(Ended.FAILED, failure=failure, **fields)


OUTCOMES: dict[str, Outcome] = {
    "returned": SUCCESS,
    "returned nothing": Outcome(Ended.RETURNED, cost=0.5),
    "skipped": Outcome(Ended.RETURNED, result="1", skipped=True),
    **{
        f"failed {cls}": failed(make_failure(cls, f"E_{cls.upper()}", fingerprint=f"v1-{cls}"))
        for cls in Cls
    },
    "failed finally": failed(make_failure(Cls.TRANSIENT, "E_LAST"), final=True),
    "failed of one cause": failed(make_failure(Cls.PERMANENT, "E_SAME", fingerprint="v1-same")),
    "rate limited": failed(make_failure(Cls.RATE_LIMITED, "E_429", retry_after=20.0)),
    "quota exceeded": failed(make_failure(Cls.QUOTA, "E_QUOTA", retry_after=60.0)),
    "too large": failed(
        make_failure(Cls.RESOURCE, "E_OOM", terms={"then": [{"queue": "big"}, {"queue": "huge"}]})
    ),
    "few retries by rule": failed(make_failure(Cls.TRANSIENT, "E_FEW", terms={"max_retries": 1})),
    "unreported": Outcome(Ended.FAILED),
    "timed out": failed(ends.timed_out(300)),
    "out of memory": failed(ends.memory_limit_exceeded(100, 200)),
    "asks again": Outcome(Ended.RETRY, after=15 * SECOND, reason="not ready"),
    "asks again now": Outcome(Ended.RETRY),
    "snoozes": Outcome(Ended.SNOOZED, after=45 * SECOND, reason="later"),
    "parks": Outcome(Ended.PARKED, reason="who pays?", choices=("us", "them")),
    "holds gateway": Outcome(Ended.HELD, dependency="gateway", after=30 * SECOND),
    "holds bucket": Outcome(Ended.HELD, dependency="bucket"),
    "stops": Outcome(Ended.CANCELLED, reason="not wanted"),
    "process dies": Outcome(Ended.LOST, failure=ends.process_died(signal=9)),
    "process dies of memory": Outcome(Ended.LOST, failure=ends.process_died(signal=9, oom=True)),
    "given back": Outcome(Ended.RELEASED),
    "given back alone": Outcome(Ended.RELEASED, alone=True, after=5 * SECOND),
    "refused by its app": Outcome(Ended.REFUSED, failure=ends.retry_refused("no")),
}
NAMES = list(OUTCOMES)


def outcome_for(name: str, *, cancel_requested: bool) -> Outcome:
    """Return the outcome; after a cancel request an attempt that did not return is cancelled."""
    outcome = OUTCOMES[name]
    if cancel_requested and outcome.ended is not Ended.RETURNED:
        return OUTCOMES["stops"]
    return outcome
