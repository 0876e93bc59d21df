"""Sentences about the history of one job, for people who have to answer its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Decision, Ended, Ground, Verb, is_system_rule
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import (
    as_sentence,
    format_actor,
    format_duration,
    format_elapsed,
    format_size,
    format_time_after,
    one_line,
)
from mulligan.core.job import AttemptRow, JobRow, parse_job_settings
from mulligan.failures.codes import PROGRAMMING_ERROR_RULE, RETRY_REQUESTED
from mulligan.retries.backoff import Backoff, explain_delay
from mulligan.retries.limits import parse_counts
from mulligan.retries.policy import EffectivePolicy, Policy
from mulligan.retries.reasons import class_not_retryable, read_ground

MAX_STEPS_NAMED = 10
CLASS_MEANINGS: Mapping[str, str] = {
    Cls.TRANSIENT: "usually passes by itself",
    Cls.TIMEOUT: "something took too long",
    Cls.RATE_LIMITED: "a service asked us to slow down",
    Cls.RESOURCE: "memory, disk or another resource ran out",
    Cls.QUOTA: "an allowance is used up",
    Cls.AUTH: "credentials were not accepted",
    Cls.INVALID_INPUT: "the input is wrong",
    Cls.PERMANENT: "a retry would not help",
    Cls.CANCELLED: "it was cancelled",
    Cls.UNKNOWN: "no rule knows the cause",
}


# --- Advice for a dead job: what to change so that such a failure is retried ---
# Verdicts of Mulligan itself: no classification rule can change them.
_SYSTEM_RULE_ADVICE = {
    "mulligan.unknown-kind": "Start a worker whose app has this kind, then retry the job.",
    "mulligan.kind-unknown": "Start a worker whose app has this kind, then retry the job.",
    "mulligan.deadline-passed": (
        "Give such jobs a longer deadline=; a manual retry starts the deadline again."
    ),
    "mulligan.payload-refused": "The payload does not fit the handler: correct one of them.",
    "mulligan.result-not-json": "The handler must return a value that JSON can represent.",
    "mulligan.result-too-large": "Return less, or raise the setting limits.result.",
    "mulligan.snooze-limit": "To allow more snoozes: Policy(max_snoozes=…).",
    "mulligan.hold-unknown-dependency": "Name the dependency in uses= of the kind.",
    "mulligan.bad-outcome": "Correct what the handler returns.",
}
_GROUND_ADVICE = {
    Ground.CLASS_EXCLUDED: (
        "To have it retried, add {cls} to the setting retry.only (MULLIGAN_RETRY__ONLY)."
    ),
    Ground.UNKNOWN_NOT_RETRIED: (
        "To have unknown errors retried, remove retry_unknown=False from the policy."
    ),
    Ground.RULE_LIMIT: "Rule {rule} allows no more retries of code {code}: raise its max_retries=.",
    Ground.MAX_AGE: "To allow later retries: a longer Policy(max_age=…).",
}
_LIMIT_GROUNDS = frozenset({Ground.MAX_RETRIES, Ground.CLASS_LIMIT})


def suggest_remedy(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    """Return one sentence of advice; empty if there is nothing to change."""
    ground = read_ground(attempt.judged)
    if ground is Ground.HOST_GAVE_UP:
        return "Another job queue ran the task and gave up. A manual retry sends it there again."
    if ground is Ground.FINAL:
        return "The handler returned final=True. To have such failures retried, remove it."
    if not policy.enabled or ground is Ground.RETRIES_DISABLED:
        return "Retries are switched off by the setting retry.enabled (MULLIGAN_RETRY__ENABLED)."
    if ground is Ground.MAX_LOSSES:
        return f"To allow more than {policy.max_losses} losses: Policy(max_losses=…)."
    if attempt.rule in _SYSTEM_RULE_ADVICE:
        return _SYSTEM_RULE_ADVICE[attempt.rule]
    if ground in _GROUND_ADVICE:
        advice = _GROUND_ADVICE[ground]
        return advice.format(rule=attempt.rule, code=attempt.code, cls=attempt.cls)
    is_retryable = attempt.cls is None or attempt.cls in RETRYABLE
    if not is_retryable and ground not in _LIMIT_GROUNDS:
        return _advise_about_rule(attempt)
    return _advise_about_limit(attempt, policy)


def _advise_about_rule(attempt: AttemptRow) -> str:
    rule = attempt.rule or ""
    if rule == PROGRAMMING_ERROR_RULE:
        return (
            "To have such errors retried: Policy(retry_unknown=True) for the kind, "
            f"or your own rule, which comes first. {_example_rule(attempt)}"
        )
    if is_system_rule(rule):
        return ""
    if rule == "handler.declared":
        return (
            f"The handler declared {attempt.code}. To have it retried, return Retry() there "
            f"instead of Fail(), or add a rule for the code. {_example_rule(attempt)}"
        )
    return (
        "To have it retried: your own rule, which comes before the built-in ones, "
        f"or return Retry() from the handler. {_example_rule(attempt)}"
    )


def _example_rule(attempt: AttemptRow) -> str:
    code = attempt.code
    name = (code or "this").lower().replace("_", "-")
    rule = f'Rule("retry-{name}", verdict="{code}", code="{code}", cls="{Cls.TRANSIENT}")'
    return f"Example: {rule}."


def _advise_about_limit(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    cls = attempt.cls
    manual = "or a manual retry with --max-retries."
    if cls is not None and policy.max_retries_for(Cls(cls)) < policy.max_retries:
        setting = f'Policy(classes={{"{cls}": Policy(max_retries=…)}})'
        return f"To allow more retries of this class: {setting}, {manual}"
    return f"To allow more retries: Policy(max_retries=…) for the kind, {manual}"


# --- Enqueue and start ---
def describe_enqueue(row: JobRow, event: Event | None) -> str:
    """Return how the job was enqueued. `event` is None if retention has deleted it."""
    data: Mapping[str, Any] = {} if event is None else event.data
    # An escalation step may have moved the job since.
    home = parse_job_settings(row.settings).get("home", row.queue)
    parts = [f"kind {row.kind}", f"queue {data.get('queue') or home}"]
    if row.unique_key:
        parts.append(f"unique key {one_line(row.unique_key)}")
    if row.batch_id:
        parts.append(f"batch {row.batch_id}")
    parts.append(_describe_due(row, data.get("run_at")))
    # A manual retry restarts the deadline, so only the first generation's is known here.
    if row.deadline_at is not None and row.generation == 1:
        parts.append(f"deadline {format_time_after(row.deadline_at, row.created_at)}")
    owner = f" for owner {one_line(row.owner)}" if row.owner else ""
    return f"Enqueued{_enqueued_by(event)}{owner}: {', '.join(parts)}."


def _enqueued_by(event: Event | None) -> str:
    if event is None:
        return ""
    text = ""
    schedule = event.data.get("schedule")
    if schedule:
        text = f" by schedule {one_line(str(schedule))}"
    if event.actor not in ("", "schedule"):
        text += f", started by {format_actor(event.actor)}"
    return text


def _describe_due(row: JobRow, run_at: Any) -> str:
    if not isinstance(run_at, int) or run_at - row.created_at < SECOND:
        return "due at once"
    due = format_time_after(run_at, row.created_at)
    return f"due {due}, {format_elapsed(row.created_at, run_at)} later"


def describe_running_attempt(row: JobRow) -> str:
    """Return that an attempt started and still runs."""
    attempt = f"Attempt {row.attempt}"
    if row.generation > 1:
        attempt += f" of generation {row.generation}"
    return f"{attempt} started on worker {row.worker} and is still running."


def describe_late_start(due: Micros, started: Micros, closures: list[str]) -> str:
    """Return how late an attempt started, and which closed gates delayed it."""
    delay = format_elapsed(due, started)
    if closures:
        return f"Started {delay} late because {'; '.join(closures)}."
    return (
        f"Started {delay} late: no worker was free, no worker was running, or a limit was "
        "reached. Which of these is not recorded."
    )


# --- End of an attempt ---
def describe_attempt(attempt: AttemptRow, row: JobRow) -> str:
    """Return when an attempt started, where it ran, how long, and how it ended."""
    name = f"Attempt {attempt.attempt}"
    if row.generation > 1:
        name += f" of generation {attempt.generation}"
    started = format_time_after(attempt.started_at, attempt.ended_at)
    return f"{name}, started {started} on worker {attempt.worker}, {_describe_end(attempt, row)}"


def _describe_end(attempt: AttemptRow, row: JobRow) -> str:
    elapsed = format_elapsed(attempt.started_at, attempt.ended_at)
    reason = as_sentence(one_line(attempt.reason))
    if attempt.ended == Ended.RETURNED:
        return _describe_success(attempt, row, elapsed)
    if attempt.verb == Verb.STOP:
        return f"was stopped after {elapsed}: {reason}"
    if attempt.ended == Ended.LOST:
        verdict = _describe_verdict(attempt)
        return f"was lost after {elapsed} because its process or worker died{verdict}"
    if not attempt.has_run:
        return f"was only claimed, and returned after {elapsed} before it began: {reason}"
    if attempt.ended == Ended.RELEASED:
        return f"went back to the queue after {elapsed} at no charge: {reason}"
    if attempt.ended == Ended.PARKED and attempt.verb == Verb.PARK:
        return f"parked the job after {elapsed} to ask a person: {reason}"
    if attempt.ended in _POSTPONES and attempt.verb in {Verb.SNOOZE, Verb.HOLD, Verb.WAIT}:
        return f"postponed the job after {elapsed} at no charge: {reason}"
    action = _END_VERBS.get(attempt.ended, "failed")
    return f"{action} after {elapsed}{_describe_verdict(attempt)}"


_POSTPONES = frozenset({Ended.SNOOZED, Ended.HELD, Ended.WAITING})
_END_VERBS: Mapping[str, str] = {
    Ended.RETRY: "requested a retry",
    Ended.REFUSED: "was refused by its app (can_retry)",
}


def _describe_success(attempt: AttemptRow, row: JobRow, elapsed: str) -> str:
    if attempt.verb != Verb.SUCCEED:
        return f"undid the steps of the job in {elapsed}: {as_sentence(one_line(attempt.reason))}"
    text = f"succeeded after {elapsed}"
    if read_judgement(attempt).get("skipped"):
        text += " without calling the handler: the result already existed"
    unused = read_judgement(attempt).get("unused_steps")
    if unused:
        text += f" without asking for {_list_steps(unused)}"
    if row.result is None or attempt.token != row.token:
        return f"{text}."
    if row.result == "null":
        return f"{text}; it returned nothing."
    return f"{text}; its result has {format_size(len(row.result.encode()))}."


def _list_steps(names: Sequence[str]) -> str:
    """Return `the recorded steps a, b`; at most ten names."""
    more = f" and {len(names) - MAX_STEPS_NAMED} more" if len(names) > MAX_STEPS_NAMED else ""
    noun = "step" if len(names) == 1 else "steps"
    listed = ", ".join(map(one_line, names[:MAX_STEPS_NAMED]))
    return f"the recorded {noun} {listed}{more}"


def _describe_verdict(attempt: AttemptRow) -> str:
    """Return ` with TIMEOUT (class timeout: …; rule py.timeout): The service took too long.`."""
    if not attempt.code:
        return "."
    cls = f"class {attempt.cls}"
    meaning = CLASS_MEANINGS.get(attempt.cls or "")
    if meaning:
        cls += f": {meaning}"
    message = as_sentence(attempt.public or "")
    evidence = _describe_evidence(attempt)
    return f" with {attempt.code} ({cls}; rule {attempt.rule}){evidence}: {message}"


def _describe_evidence(attempt: AttemptRow) -> str:
    text = ""
    for name, value in json.loads(attempt.evidence or "{}").items():
        text += f", {name} {one_line(str(value), 80)}"
    return text


# --- Decision about an attempt ---
class FailureNumber(NamedTuple):
    """Counted failures of a generation up to this one: in total, of its class, of its code."""

    total: int
    of_class: int
    of_code: int


_EXPLAINED_BY_REASON = frozenset({Verb.HOLD, Verb.UNDO, Verb.PARK})


def describe_decision(
    attempt: AttemptRow, number: FailureNumber, policy: EffectivePolicy
) -> Iterator[str]:
    """Yield what was decided after an attempt, and advice if the job died."""
    judgement = read_judgement(attempt)
    if attempt.verb == Verb.RETRY:
        yield _describe_retry(attempt, number, policy, judgement)
    elif attempt.verb in _EXPLAINED_BY_REASON and attempt.code:
        yield as_sentence(_capitalise(attempt.reason))
    elif attempt.verb == Verb.LOSE:
        yield f"Queued again at once: {as_sentence(attempt.reason)}"
    elif attempt.verb == Verb.DIE:
        yield f"The job died: {as_sentence(_death_reason(attempt))}"
        advice = suggest_remedy(attempt, policy)
        if advice:
            yield advice
    other_rules = judgement.get("also")
    if other_rules:
        yield f"Other rules matched too and were not applied: {', '.join(map(str, other_rules))}."
    next_attempt = judgement.get("then")
    if next_attempt:
        yield f"The next attempt differs: {', '.join(_describe_escalation(next_attempt))}."


def _death_reason(attempt: AttemptRow) -> str:
    """Return why the job died, without the advice that `suggest_remedy` gives in full."""
    if read_ground(attempt.judged) is Ground.CLASS_NOT_RETRYABLE:
        return class_not_retryable(attempt.cls or "", attempt.rule or "").text
    return attempt.reason


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _describe_retry(
    attempt: AttemptRow,
    number: FailureNumber,
    policy: EffectivePolicy,
    judgement: Mapping[str, Any],
) -> str:
    cls = Cls(attempt.cls) if attempt.cls in list(Cls) else Cls.UNKNOWN
    count = judgement.get("retry_count") or f"{number.total} of {policy.max_retries_for(cls)}"
    at = attempt.next_run_at or attempt.ended_at
    wait = max(0, at - attempt.ended_at) / SECOND
    if attempt.ended == Ended.RETRY:
        why = "requested by the handler"
    else:
        backoff, n = _applied_backoff(policy, cls, number, judgement)
        why = explain_delay(backoff, n, wait, _retry_after_hint(attempt))
    due = format_time_after(at, attempt.ended_at)
    return f"Retry {count} scheduled for {due}, in {format_duration(wait)}: {why}."


def explain_wait(policy: EffectivePolicy, decision: Decision, now: Micros) -> str:
    """Return why a retry that was just decided waits as long as it does."""
    failure = decision.failure
    if failure is None or failure.code == RETRY_REQUESTED:
        return "requested by the handler"
    counts = parse_counts(decision.counts)
    number = FailureNumber(
        decision.failures, counts.for_class(failure.cls), counts.for_code(failure.code)
    )
    wait = max(0, (decision.run_at or now) - now) / SECOND
    backoff, n = _applied_backoff(policy, failure.cls, number, {"terms": failure.terms})
    return explain_delay(backoff, n, wait, failure.retry_after)


def _applied_backoff(
    policy: EffectivePolicy, cls: Cls, number: FailureNumber, judgement: Mapping[str, Any]
) -> tuple[Backoff, int]:
    """Return the backoff of the rule or policy, and how many failures advanced it before."""
    terms = judgement.get("terms") or {}
    if "backoff" in terms:
        backoff = Policy.from_dict({"backoff": terms["backoff"]}).backoff
        if backoff is not None:
            return backoff, number.of_code - 1
    is_for_class = policy.by_class[cls].backoff_is_for_class
    advanced = number.of_class if is_for_class else number.total
    return policy.backoff_for(cls), advanced - 1


def _retry_after_hint(attempt: AttemptRow) -> float | None:
    hint = json.loads(attempt.evidence or "{}").get("retry_after")
    return float(hint) if isinstance(hint, int | float) else None


def read_judgement(attempt: AttemptRow) -> dict[str, Any]:
    """Return stored details of a verdict: other rules, terms of its rule, the next escalation."""
    text = getattr(attempt, "judged", None)
    judgement = json.loads(text) if text else {}
    return judgement if isinstance(judgement, dict) else {}


def _describe_escalation(changes: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the next attempt differs. Values of settings may be secret and are left out."""
    if "queue" in changes:
        yield f"queue {one_line(str(changes['queue']))}"
    if "memory_limit" in changes:
        yield f"memory limit {format_size(changes['memory_limit'])}"
    if "timeout" in changes:
        yield f"time limit {format_duration(changes['timeout'])}"
    if "settings" in changes:
        yield f"other settings ({', '.join(map(one_line, sorted(changes['settings'])))})"


# --- Events without an attempt ---
def describe_event(event: Event) -> str:
    """Return a sentence about an event that no attempt covers; empty if there is nothing to say."""
    describe = _DESCRIBE_EVENT.get(event.type)
    return describe(event) if describe else ""


def _because(event: Event) -> str:
    operation = event.data.get("operation")
    part = f" as part of operation {one_line(str(operation))}" if operation else ""
    reason = event.data.get("reason")
    return f"{part}: {as_sentence(str(reason))}" if reason else f"{part}."


def _actor(event: Event) -> str:
    """Return the actor as the subject of a sentence. Names of people keep their spelling."""
    name = format_actor(event.actor)
    if event.actor in ("", "python", "handler", "schedule"):
        return _capitalise(name)
    return name


def _describe_manual_retry(event: Event) -> str:
    generation = event.data.get("generation", "?")
    run_at = event.data.get("run_at")
    later = f" for {format_time_after(run_at, event.at)}" if isinstance(run_at, int) else ""
    return (
        f"{_actor(event)} retried it manually{later}{_describe_overrides(event)}{_because(event)} "
        f"Generation {generation} begins: counters restart, history stays."
    )


def _describe_undo(event: Event) -> str:
    """Describe an undo that began outside of an attempt; the others are part of an attempt."""
    if event.token is not None:
        return ""
    return f"{_actor(event)} ended it, and its steps are undone first{_because(event)}"


def _describe_overrides(event: Event) -> str:
    parts = []
    max_retries = event.data.get("max_retries")
    if max_retries is not None:
        parts.append(f"at most {max_retries} retries")
    for name, change in (event.data.get("changes") or {}).items():
        if name != "max_retries":
            after = _format_value(change.get("after"))
            before = _format_value(change.get("before"))
            parts.append(f"{one_line(name)} {after} (was {before})")
    return f" with {', '.join(parts)}" if parts else ""


def _format_value(value: Any) -> str:
    if value is None:
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value)
    return one_line(text, 80)


def _describe_release(event: Event) -> str:
    if "from" not in event.data:  # A worker gave the job back; its attempt describes that.
        return ""
    choice = event.data.get("choice")
    chosen = f" with the choice {one_line(str(choice))!r}" if choice else ""
    return f"{_actor(event)} released it{chosen}{_because(event)}"


def _describe_stop_request(event: Event) -> str:
    return f"{_actor(event)} asked the running attempt to stop{_because(event)}"


def _describe_cancel(event: Event) -> str:
    if event.token is not None:  # Its attempt describes that.
        return ""
    return f"{_actor(event)} cancelled it{_because(event)}"


def _describe_undiscard(event: Event) -> str:
    state = event.data.get("after", {}).get("state", "dead")
    return f"{_actor(event)} undid the discard: it is {state} again{_because(event)}"


def _describe_discard(event: Event) -> str:
    return f"{_actor(event)} discarded it{_because(event)}"


def _describe_death(event: Event) -> str:
    if event.token is not None:  # Its attempt describes that.
        return ""
    data = event.data
    message = as_sentence(str(data.get("message") or ""))
    return (
        f"Died while waiting, without another attempt, with {data.get('code')} "
        f"(class {data.get('class')}; rule {data.get('rule')}): {message}"
    )


def _describe_edit(event: Event) -> str:
    before = (event.data.get("before") or {}).get("queue")
    after = (event.data.get("after") or {}).get("queue")
    if before and after:
        queues = f"queue {one_line(str(before))} to {one_line(str(after))}"
        return f"{_actor(event)} moved it from {queues}{_because(event)}"
    return f"{_actor(event)} changed it{_because(event)}"


def _describe_stale_report(event: Event) -> str:
    worker = one_line(str(event.data.get("worker", "")))
    return (
        f"Worker {worker} reported the end of attempt {event.attempt} after it had lost the "
        "lease. The report was refused and changed nothing."
    )


def _describe_probe(event: Event) -> str:
    dependency = one_line(str(event.data.get("dependency", "")))
    return f"Started alone as a probe, to test whether dependency {dependency} has recovered."


def _describe_trial(event: Event) -> str:
    return f"{_actor(event)} let it run although its kind was held{_because(event)}"


_DESCRIBE_EVENT: Mapping[str, Callable[[Event], str]] = {
    EventType.JOB_RETRIED: _describe_manual_retry,
    EventType.JOB_RELEASED: _describe_release,
    EventType.JOB_UNDOING: _describe_undo,
    EventType.JOB_CANCEL_REQUESTED: _describe_stop_request,
    EventType.JOB_CANCELLED: _describe_cancel,
    EventType.JOB_DISCARDED: _describe_discard,
    EventType.JOB_UNDISCARDED: _describe_undiscard,
    EventType.JOB_DIED: _describe_death,
    EventType.JOB_STALE_REFUSED: _describe_stale_report,
    EventType.DEPENDENCY_PROBING: _describe_probe,
    EventType.JOB_TRIED: _describe_trial,
    EventType.JOB_EDITED: _describe_edit,
}
