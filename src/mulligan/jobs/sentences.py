"""One sentence for each thing that can happen to a job. Plain English for whoever has to answer its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Decision, Ended, Ground, Verb, is_system_rule
from mulligan.core.event import Event, EventType
from mulligan.core.format import clock, duration, one_line, size, span, stopped, who
from mulligan.core.job import SECOND, AttemptRow, JobRow, Micros
from mulligan.failures.codes import PROGRAMMING_ERROR, REQUESTED
from mulligan.retries.backoff import AnyBackoff, arithmetic
from mulligan.retries.limits import read_counts
from mulligan.retries.policy import EffectivePolicy, Policy, given
from mulligan.retries.reasons import class_not_retryable, read_ground

# A job that was not tried again: what would have to be said, and where, for it to be tried next time.

# Verdicts of our own about a fact: no rule about an error text can change them.
_FACTS = {
    "mulligan.unknown-kind": "Start a worker whose app has this kind, then retry it by hand.",
    "mulligan.kind-unknown": "Start a worker whose app has this kind, then retry it by hand.",
    "mulligan.deadline-passed": "Give such jobs a longer deadline=; a retry by hand begins it anew.",
    "mulligan.payload-refused": "The payload does not fit the handler: correct one of them.",
    "mulligan.result-not-json": "The handler must return what can be written as JSON.",
    "mulligan.result-too-large": "Return less, or raise the setting limits.result.",
    "mulligan.snooze-limit": "Allow more with Policy(max_snoozes=…).",
    "mulligan.hold-unknown-dependency": "Name the dependency in uses= of the kind.",
    "mulligan.bad-outcome": "Correct what the handler returns.",
}


def remedy(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    """One sentence; empty: there is nothing to change, or nothing is known."""
    ground = read_ground(attempt.judged)
    if ground is Ground.FINAL:
        return "The handler itself said so (final=True): to have such failures tried again, leave that out."
    if not policy.enabled or ground is Ground.RETRIES_DISABLED:
        return "Retries are switched off by the setting retry.enabled (MULLIGAN_RETRY__ENABLED)."
    if ground is Ground.MAX_LOSSES:
        return f"To allow more than {policy.max_losses} losses: Policy(max_losses=…)."
    if attempt.rule in _FACTS:
        return _FACTS[attempt.rule]
    if ground in _BY_GROUND:
        return _BY_GROUND[ground].format(rule=attempt.rule, code=attempt.code, cls=attempt.cls)
    if attempt.cls is not None and attempt.cls not in RETRYABLE and ground not in _COUNTED:
        return _by_verdict(attempt)
    return _by_count(attempt, policy)


_COUNTED = frozenset({Ground.MAX_RETRIES, Ground.CLASS_LIMIT})
_BY_GROUND = {
    Ground.CLASS_EXCLUDED: "To have it tried again: add {cls} to the setting retry.only (MULLIGAN_RETRY__ONLY).",
    Ground.UNKNOWN_NOT_RETRIED: "To have unknown errors tried again: leave retry_unknown=False out of the policy.",
    Ground.RULE_LIMIT: "Rule {rule} allows no more for code {code}: give it a larger max_retries=.",
    Ground.MAX_AGE: "To allow later tries: a longer Policy(max_age=…).",
}


def _by_verdict(attempt: AttemptRow) -> str:
    rule = attempt.rule or ""
    if rule == PROGRAMMING_ERROR:
        return (
            "To have such errors tried again: Policy(retry_unknown=True) for the kind, "
            f"or a rule of your own before it. {_own_rule(attempt)}"
        )
    if is_system_rule(rule):
        return ""
    if rule == "handler.declared":
        return (
            f"The handler declared {attempt.code}. To have it tried again, return Retry() there instead of Fail(), "
            f"or say what the code means. {_own_rule(attempt)}"
        )
    return (
        "To have it tried again: a rule of your own, which comes before the built-in ones, or Retry() returned by "
        f"the handler. {_own_rule(attempt)}"
    )


def _own_rule(attempt: AttemptRow) -> str:
    name = (attempt.code or "this").lower().replace("_", "-")
    return f'Such a rule: Rule("retry-{name}", verdict="{attempt.code}", code="{attempt.code}", cls="{Cls.TRANSIENT}").'


def _by_count(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    cls = attempt.cls
    if cls is not None and policy.limit_for(Cls(cls)) < policy.max_retries:
        return (
            f'To allow more for this class: Policy(classes={{"{cls}": Policy(max_retries=…)}}), '
            "or a retry by hand with --max-retries."
        )
    return (
        "To allow more: Policy(max_retries=…) for the kind, or a retry by hand with --max-retries."
    )


# One sentence for each thing that can happen to a job. Plain English for whoever has to answer its owner.

MEANS: Mapping[str, str] = {
    Cls.TRANSIENT: "trouble that usually passes",
    Cls.TIMEOUT: "something took too long",
    Cls.RATE_LIMITED: "somebody asked us to slow down",
    Cls.RESOURCE: "memory, disk or another resource ran out",
    Cls.QUOTA: "an allowance is used up",
    Cls.AUTH: "credentials were not accepted",
    Cls.INVALID_INPUT: "the input is at fault",
    Cls.PERMANENT: "trying again would not help",
    Cls.CANCELLED: "it was not wanted any more",
    Cls.UNKNOWN: "a cause no rule knows",
}


# -- begin ------------------------------------------------------------------------------------------
def enqueued(row: JobRow, event: Event | None) -> str:
    data: Mapping[str, Any] = {} if event is None else event.data
    by = f" by schedule {one_line(str(data['schedule']))}" if data.get("schedule") else ""
    if event is not None and event.actor not in ("", "schedule"):
        by += f", started by {who(event.actor)}"
    owner = f" for owner {one_line(row.owner)}" if row.owner else ""
    key = f", under the unique key {one_line(row.unique_key)}" if row.unique_key else ""
    batch = f", in batch {row.batch_id}" if row.batch_id else ""
    when = _due(row, data.get("run_at"))
    queue = data.get("queue") or given(row.settings).get(
        "home", row.queue
    )  # it may have been moved since
    return f"The job was enqueued{by}{owner}: kind {row.kind}, queue {queue}{key}{batch}, {when}{_deadline(row)}."


def _due(row: JobRow, run_at: Any) -> str:
    if not isinstance(run_at, int) or run_at - row.created_at < SECOND:
        return "to start at once"
    return (
        f"to start not before {clock(run_at, row.created_at)}, {span(row.created_at, run_at)} later"
    )


def _deadline(row: JobRow) -> str:
    """A retry by hand begins a deadline anew, so only the first life can be told here."""
    if row.deadline_at is None or row.generation > 1:
        return ""
    return f", to be done by {clock(row.deadline_at, row.created_at)}"


def began(row: JobRow) -> str:
    life = f" of life {row.generation}" if row.generation > 1 else ""
    return f"Attempt {row.attempt}{life} began on worker {row.worker} and is still running."


# -- attempts ---------------------------------------------------------------------------------------
def attempt_ended(attempt: AttemptRow, row: JobRow) -> str:
    """When it began, where it ran, how long, and how it ended."""
    life = f" of life {attempt.generation}" if row.generation > 1 else ""
    begun = f"begun {clock(attempt.started_at, attempt.ended_at)} on worker {attempt.worker}"
    ran = span(attempt.started_at, attempt.ended_at)
    return f"Attempt {attempt.attempt}{life}, {begun}, {_how(attempt, row, ran)}"


def _how(attempt: AttemptRow, row: JobRow, ran: str) -> str:
    reason = one_line(attempt.reason)
    if attempt.ended == Ended.RETURNED:
        skipped = judged_of(attempt).get("skipped")
        there = " without calling the handler: the result already existed" if skipped else ""
        return f"succeeded after {ran}{there}{_result(attempt, row)}."
    if attempt.verb == Verb.STOP:
        return f"was stopped after {ran}: {stopped(reason)}"
    if attempt.ended == Ended.LOST:
        return (
            f"was lost after {ran}, because its process or worker died under it{_verdict(attempt)}"
        )
    if attempt.ended == Ended.RELEASED:
        return f"was given back unharmed after {ran}, at no cost: {stopped(reason)}"
    if attempt.ended == Ended.PARKED and attempt.verb == Verb.PARK:
        return f"stopped after {ran} to ask a person: {stopped(reason)}"
    if attempt.ended in {Ended.SNOOZED, Ended.HELD} and attempt.verb in {Verb.SNOOZE, Verb.HOLD}:
        return f"put the job off after {ran}, which costs no retry: {stopped(reason)}"
    return f"{_FAILED.get(attempt.ended, 'failed')} after {ran}{_verdict(attempt)}"


_FAILED: Mapping[str, str] = {
    Ended.RETRY: "asked for another try",
    Ended.REFUSED: "was not let run again by its app",
}


def _result(attempt: AttemptRow, row: JobRow) -> str:
    if row.result is None or attempt.token != row.token:
        return ""
    if row.result == "null":
        return "; it returned nothing"
    return f"; its result has {size(len(row.result.encode()))}"


def _verdict(attempt: AttemptRow) -> str:
    """` with TIMEOUT (class timeout, …; judged by rule py.timeout): The service took too long.`."""
    if not attempt.code:
        return "."
    means = MEANS.get(attempt.cls or "", "")
    judged = f"class {attempt.cls}{means and f': {means}'}; judged by rule {attempt.rule}"
    return f" with {attempt.code} ({judged}){_evidence(attempt)}: {stopped(attempt.public or '')}"


def _evidence(attempt: AttemptRow) -> str:
    found = [
        f"{name} {one_line(str(value), 80)}"
        for name, value in json.loads(attempt.evidence or "{}").items()
    ]
    return f", {', '.join(found)}" if found else ""


# -- what was decided -------------------------------------------------------------------------------
class Nth(NamedTuple):
    """The how manieth counted failure of its generation: of all, of its class, of its code."""

    total: int
    of_class: int
    of_code: int


def decided(attempt: AttemptRow, nth: Nth, policy: EffectivePolicy) -> Iterator[str]:
    judged = judged_of(attempt)
    if attempt.verb == Verb.RETRY:
        yield _retry(attempt, nth, policy, judged)
    elif attempt.verb == Verb.HOLD and attempt.code:
        yield stopped(_capitalised(attempt.reason))
    elif attempt.verb == Verb.LOSE:
        yield f"It goes back to the queue at once; {stopped(attempt.reason)}"
    elif attempt.verb == Verb.DIE:
        yield f"That was the end: {stopped(_end(attempt))}"
        if change := remedy(attempt, policy):
            yield change
    if also := judged.get("also"):
        yield f"Other rules saw it differently and were not followed: {', '.join(map(str, also))}."
    if then := judged.get("then"):
        yield f"The next attempt differs from this one: {', '.join(_changes(then))}."


def _end(attempt: AttemptRow) -> str:
    """Return why the job died, without the advice that `remedy` gives at greater length."""
    if read_ground(attempt.judged) is Ground.CLASS_NOT_RETRYABLE:
        return class_not_retryable(attempt.cls or "", attempt.rule or "").text
    return attempt.reason


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _retry(
    attempt: AttemptRow, nth: Nth, policy: EffectivePolicy, judged: Mapping[str, Any]
) -> str:
    cls = Cls(attempt.cls) if attempt.cls in list(Cls) else Cls.UNKNOWN
    number = judged.get("retry_count") or f"{nth.total} of {policy.limit_for(cls)}"
    at = attempt.next_run_at or attempt.ended_at
    drawn = max(0, at - attempt.ended_at) / SECOND
    if attempt.ended == Ended.RETRY:
        why = "the handler asked for it"
    else:
        why = arithmetic(*_backoff(policy, cls, nth, judged), drawn, _hint(attempt))
    when = clock(at, attempt.ended_at)
    return f"Retry {number} was set for {when}, a wait of {duration(drawn)}: {why}."


def waited(policy: EffectivePolicy, decision: Decision, now: Micros) -> str:
    """Why a retry that was just decided waits as long as it does."""
    failure = decision.failure
    if failure is None or failure.code == REQUESTED:
        return "the handler asked for it"
    counts = read_counts(decision.counts)
    nth = Nth(decision.failures, counts.of_class(failure.cls), counts.of_code(failure.code))
    drawn = max(0, (decision.run_at or now) - now) / SECOND
    return arithmetic(
        *_backoff(policy, failure.cls, nth, {"terms": failure.terms}), drawn, failure.retry_after
    )


def _backoff(
    policy: EffectivePolicy, cls: Cls, nth: Nth, judged: Mapping[str, Any]
) -> tuple[AnyBackoff, int]:
    """The schedule that held, a rule's own or the policy's, and how many came before this one of what it is about."""
    terms = judged.get("terms") or {}
    if "backoff" in terms:
        own = Policy.from_plain({"backoff": terms["backoff"]}).backoff
        if own is not None:
            return own, nth.of_code - 1
    of_class = getattr(policy.by_class[cls], "backoff_of_class", False)
    return policy.backoff_for(cls), (nth.of_class if of_class else nth.total) - 1


def _hint(attempt: AttemptRow) -> float | None:
    found = json.loads(attempt.evidence or "{}").get("retry_after")
    return float(found) if isinstance(found, int | float) else None


def judged_of(attempt: AttemptRow) -> dict[str, Any]:
    """What else is stored about a verdict: who disagreed, what its rule changes, how the next attempt differs."""
    text = getattr(attempt, "judged", None)
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _changes(then: Mapping[str, Any]) -> Iterator[str]:
    """Of settings only the names: their values may be secret."""
    if "queue" in then:
        yield f"it goes to queue {one_line(str(then['queue']))}"
    if "memory_limit" in then:
        yield f"it gets {size(then['memory_limit'])} of memory"
    if "timeout" in then:
        yield f"it gets {duration(then['timeout'])} of time"
    if "settings" in then:
        yield f"it gets other settings ({', '.join(map(one_line, sorted(then['settings'])))})"


# -- by hand, and without an attempt ----------------------------------------------------------------
def happened(event: Event) -> str:
    """Moves that no attempt tells of; empty: nothing to say."""
    say = _MOVES.get(event.type)
    return say(event) if say else ""


def _because(event: Event) -> str:
    reason, operation = event.data.get("reason"), event.data.get("operation")
    part = f" as part of operation {one_line(str(operation))}" if operation else ""
    return f"{part}: {stopped(str(reason))}" if reason else f"{part}."


def _name(event: Event) -> str:
    name = who(event.actor)
    return (
        name[0].upper() + name[1:] if event.actor in ("", "python", "handler", "schedule") else name
    )


def _retried(event: Event) -> str:
    life = event.data.get("generation", "?")
    at = event.data.get("run_at")
    later = f" for {clock(at, event.at)}" if isinstance(at, int) else ""
    return (
        f"{_name(event)} retried it by hand{later}{_changed(event)}{_because(event)} "
        f"That began life {life} (generation {life}): the counters start at zero, the history stays."
    )


def _changed(event: Event) -> str:
    """What is different in this life."""
    more, changes = event.data.get("max_retries"), event.data.get("changes") or {}
    told = [] if more is None else [f"at most {more} retries"]
    told += [
        f"{one_line(name)} {_value(one.get('after'))} (was {_value(one.get('before'))})"
        for name, one in changes.items()
        if name != "max_retries"
    ]
    return f" with {', '.join(told)}" if told else ""


def _value(value: Any) -> str:
    return (
        "unset"
        if value is None
        else one_line(value if isinstance(value, str) else json.dumps(value), 80)
    )


def _released(event: Event) -> str:
    if "from" not in event.data:  # given back by a worker: the attempt has said it
        return ""
    choice = event.data.get("choice")
    chosen = f" with the choice {one_line(str(choice))!r}" if choice else ""
    return f"{_name(event)} released it{chosen}{_because(event)}"


def _cancelled(event: Event) -> str:
    return "" if event.token is not None else f"{_name(event)} cancelled it{_because(event)}"


def _died(event: Event) -> str:
    if event.token is not None:
        return ""
    data = event.data
    judged = f"{data.get('code')} (class {data.get('class')}; judged by rule {data.get('rule')})"
    said = stopped(str(data.get("message") or ""))
    return f"It ended while it waited, without a further attempt, with {judged}: {said}"


def _edited(event: Event) -> str:
    """Of fields whose values are short and nobody's secret both are told."""
    before, after = event.data.get("before") or {}, event.data.get("after") or {}
    queues = before.get("queue"), after.get("queue")
    if all(queues):
        told = " to ".join(one_line(str(queue)) for queue in queues)
        return f"{_name(event)} moved it from queue {told}{_because(event)}"
    return f"{_name(event)} changed it{_because(event)}"


def _stale(event: Event) -> str:
    return (
        f"Worker {one_line(str(event.data.get('worker', '')))} reported an end of attempt {event.attempt} after it had "
        "lost the job; nothing was changed by that."
    )


def _probing(event: Event) -> str:
    name = one_line(str(event.data.get("dependency", "")))
    return f"It was let through alone as a probe, to see whether dependency {name} answers again."


_MOVES: Mapping[str, Callable[[Event], str]] = {
    EventType.JOB_RETRIED: _retried,
    EventType.JOB_RELEASED: _released,
    EventType.JOB_CANCEL_REQUESTED: lambda event: (
        f"{_name(event)} asked the running attempt to stop{_because(event)}"
    ),
    EventType.JOB_CANCELLED: _cancelled,
    EventType.JOB_DISCARDED: lambda event: f"{_name(event)} discarded it{_because(event)}",
    EventType.JOB_DIED: _died,
    EventType.JOB_STALE_REFUSED: _stale,
    EventType.DEPENDENCY_PROBING: _probing,
    EventType.JOB_EDITED: _edited,
}


def late(due: Micros, started: Micros, kept: list[str]) -> str:
    """It could have begun at `due`."""
    waited = span(due, started)
    if kept:
        return f"It began {waited} after its time, because {'; '.join(kept)}."
    return (
        f"It began {waited} after its time: no worker was free for it, none was there, or a limit left no room. "
        "Which of these is not recorded."
    )
