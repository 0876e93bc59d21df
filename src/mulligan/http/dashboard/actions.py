"""Actions of the dashboard: the table of forms, bulk actions and their preview."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.batches.service import Batch
from mulligan.core.durations import parse_seconds
from mulligan.core.errors import MulliganError, Refused
from mulligan.core.format import format_duration, format_rate
from mulligan.core.job import Job
from mulligan.guards.operator_limits import UNCHANGED
from mulligan.http.dashboard.charts import Bar, bars
from mulligan.http.dashboard.history import cause_titles, describe_target
from mulligan.http.dashboard.renderer import Renderer, form_route, root_path, screen
from mulligan.http.dashboard.sign_in import local_path
from mulligan.http.dashboard.view_models import filter_link, needs_no_quotes, split_filter
from mulligan.http.services import VisitorServices
from mulligan.insight.rules import format_percent
from mulligan.operations.request import OperationPreview
from mulligan.operations.rules import Action as BulkAction
from mulligan.operations.service import StartOptions
from mulligan.waits.service import parse_value
from mulligan.worker.service import drain_workers

Form = Mapping[str, str]
ActionFunction = Callable[[VisitorServices, str, Form], str]
WEEK = 7 * 86_400.0  # seconds
HOUR = 3600.0  # seconds
GROUP_RETRIES = ("1", "10")  # jobs that the buttons of a failure group retry without a preview


class PageAction(NamedTuple):
    """A form of a page: what it runs and which key it needs."""

    run: ActionFunction  # returns a sentence about what was done
    back: str  # path to return to
    role: Role = Role.OPERATOR
    shared: bool = False  # affects all owners, so it needs scope *


def _reason(form: Form) -> str:
    return form.get("reason", "")


def _until(form: Form) -> float | None:
    text = form.get("until", "")
    if not text:
        return None
    length = parse_seconds(text)
    if length is None:
        message = f"until: invalid duration {text!r:.40}. Use 30m, 2h or 1d."
        raise Refused(message)
    return length


# --- Jobs ---


def _retry_job(services: VisitorServices, job_id: str, form: Form) -> str:
    from_step = form.get("from_step") or None
    job = services.jobs.retry(
        job_id, from_step=from_step, reason=_reason(form), owner=services.owner
    )
    return f"Retried: generation {job.generation} starts. {job.why}"


def _cancel_job(services: VisitorServices, job_id: str, form: Form) -> str:
    job = services.jobs.cancel(job_id, reason=_reason(form), owner=services.owner)
    if job.state == "cancelled":
        return "Cancelled."
    return "Cancel requested. The job is cancelled as soon as its code has stopped."


def _release_job(services: VisitorServices, job_id: str, form: Form) -> str:
    choice = form.get("choice") or None
    services.jobs.release(job_id, choice=choice, reason=_reason(form), owner=services.owner)
    return "Released: the job is queued again."


def _answer_job(services: VisitorServices, job_id: str, form: Form) -> str:
    name = form.get("name", "")
    value = parse_value(form.get("value", ""))
    services.jobs.tell(job_id, name, value, owner=services.owner)
    return f"Answered {name}."


def _discard_job(services: VisitorServices, job_id: str, form: Form) -> str:
    services.jobs.discard(job_id, reason=_reason(form), owner=services.owner)
    return "Discarded. The job stays in the history and needs no more attention."


def _undiscard_job(services: VisitorServices, job_id: str, form: Form) -> str:
    job = services.jobs.undiscard(job_id, reason=_reason(form), owner=services.owner)
    return f"Discard undone: the job is {job.state} again."


def _rerun_job(services: VisitorServices, job_id: str, form: Form) -> str:
    copy = services.jobs.rerun(job_id, reason=_reason(form), owner=services.owner)
    return f"Enqueued a copy of this job: /jobs/{copy.id}"


# --- Failure groups ---


def _mute_group(services: VisitorServices, group: str, form: Form) -> str:
    services.failures.mute(group, until=_until(form), reason=_reason(form), owner=services.owner)
    return "Muted."


def _resolve_group(services: VisitorServices, group: str, form: Form) -> str:
    in_release = form.get("in_release") or ""
    services.failures.resolve(
        group, in_release=in_release, note=_reason(form), owner=services.owner
    )
    if in_release:
        return f"Resolved in release {in_release}. Deaths under older releases are no regression."
    return "Resolved. If another job dies of this cause, the group is marked as regressed."


def _assign_group(services: VisitorServices, group: str, form: Form) -> str:
    person = (form.get("person") or "").strip()
    services.failures.assign(group, person, reason=_reason(form), owner=services.owner)
    return f"Assigned to {person}." if person else "Assigned to nobody."


def _reopen_group(services: VisitorServices, group: str, form: Form) -> str:
    services.failures.reopen(group, reason=_reason(form), owner=services.owner)
    return "Reopened."


def _retry_group(services: VisitorServices, group: str, form: Form) -> str:
    """Retry a few jobs of a group and leave the others dead."""
    jobs = form.get("jobs", "")
    if jobs not in GROUP_RETRIES:
        message = f"jobs: {jobs!r:.40} is not one of {', '.join(GROUP_RETRIES)}"
        raise Refused(message)
    operation = services.operations.start(
        "retry",
        f"state:dead group:{group}",
        steps=[int(jobs)],
        reason=_reason(form),
        owner=services.owner,
    )
    noun = "job" if jobs == "1" else "jobs"
    return f"Retrying {jobs} {noun}; the others stay dead. Operation {operation.id} has the result."


# --- Batches and operations ---


def _retry_batch(services: VisitorServices, batch: str, form: Form) -> str:
    services.batches.get(batch, owner=services.owner)
    result = services.batches.retry_failed(batch, reason=_reason(form))
    return f"Retried {len(result.jobs):,} members."


def _cancel_batch(services: VisitorServices, batch: str, form: Form) -> str:
    services.batches.get(batch, owner=services.owner)
    services.batches.cancel(batch, reason=_reason(form))
    return "Cancelled: queued members are cancelled, running members are asked to stop."


def _owner_action(noun: str, verb: str, sentence: str) -> ActionFunction:
    """Return an action of a service whose objects belong to owners."""

    def run(services: VisitorServices, name: str, form: Form) -> str:
        method = getattr(getattr(services, noun), verb)
        method(name, reason=_reason(form), owner=services.owner)
        return sentence

    return run


# --- Status links ---


def _share_job(services: VisitorServices, job_id: str, form: Form) -> str:
    return _share(services, services.jobs.get(job_id, owner=services.owner), form)


def _share_batch(services: VisitorServices, batch_id: str, form: Form) -> str:
    return _share(services, services.batches.get(batch_id, owner=services.owner), form)


def _share(services: VisitorServices, target: Job | Batch, form: Form) -> str:
    expires = _until(form) or WEEK
    may_retry = form.get("may_retry") == "1"
    link = services.status.link(target, retry=may_retry, expires=expires)
    return f"Status page for its owner, no key needed, valid for {format_duration(expires)}: {link}"


# --- Limits ---


def _limits(form: Form) -> dict[str, Any]:
    """Parse limits: an empty field leaves the limit unchanged, "none" removes it."""
    return {
        "concurrency": _parse_concurrency(form.get("concurrency", "")),
        "rate": _parse_rate(form.get("rate", "")),
        "until": _until(form),
        "reason": _reason(form),
    }


def _parse_concurrency(text: str) -> Any:
    if not text:
        return UNCHANGED
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        message = f"concurrency: {text!r:.40} is not a whole number. Use none for no limit."
        raise Refused(message)
    return int(text[:9])


def _parse_rate(text: str) -> Any:
    if not text:
        return UNCHANGED
    return None if text == "none" else text


def _limit_action(noun: str, verb: str, sentence: str) -> PageAction:
    """Return an action that sets or clears limits. `sentence` gets the name and the new limits."""

    def run(services: VisitorServices, name: str, form: Form) -> str:
        options = _limits(form) if verb == "set" else {"reason": _reason(form)}
        status = getattr(getattr(services, noun), verb)(name, **options)
        return sentence.format(name, format_limits(status.concurrency, status.rate))

    return PageAction(run, f"/{noun}", shared=True)


def format_limits(concurrency: int | None, rate: float | None) -> str:
    """Format limits for people: "4 at once, 10/s", or "no limit"."""
    limits = []
    if concurrency is not None:
        limits.append(f"{concurrency:,} at once")
    if rate is not None:
        limits.append(format_rate(rate))
    return ", ".join(limits) or "no limit"


# --- Gates and workers ---


class GateVerb(NamedTuple):
    """An action that closes or opens a gate, or lets something through it."""

    noun: str  # of the service, as in addresses
    verb: str
    sentence: str  # gets the name
    is_timed: bool = False  # until a time, if the form names one
    method: str = ""  # of the service, if it is not the verb
    back: str = ""  # path to return to, if it is not that of the noun


GATE_VERBS = (
    GateVerb(
        "queues",
        "pause",
        "Queue {} is paused: no more jobs start. Running jobs continue.",
        is_timed=True,
    ),
    GateVerb("queues", "resume", "Queue {} is resumed."),
    GateVerb("kinds", "hold", "Kind {} is held: its jobs wait.", is_timed=True, back="/queues"),
    GateVerb("kinds", "release", "Kind {} is released.", back="/queues"),
    GateVerb(
        "kinds",
        "try",
        "One job of {} will run as soon as a worker is free; the others wait.",
        method="try_one",
        back="/queues",
    ),
    GateVerb("dependencies", "open", "The breaker of {} is open: its jobs wait.", is_timed=True),
    GateVerb(
        "dependencies", "close", "The breaker of {} is closed: its jobs start, slowly at first."
    ),
    GateVerb("dependencies", "probe", "Probe of {} requested. A worker will run it shortly."),
    GateVerb(
        "schedules",
        "pause",
        "Schedule {} is paused. A job due in the next seconds may still be enqueued.",
        is_timed=True,
    ),
    GateVerb(
        "schedules",
        "resume",
        "Schedule {} is resumed. Times that passed meanwhile are not made up for.",
    ),
)


def _gate_action(gate: GateVerb) -> PageAction:
    def run(services: VisitorServices, name: str, form: Form) -> str:
        options = {"until": _until(form)} if gate.is_timed else {}
        method = getattr(getattr(services, gate.noun), gate.method or gate.verb)
        method(name, reason=_reason(form), **options)
        return gate.sentence.format(name)

    return PageAction(run, gate.back or f"/{gate.noun}", shared=True)


def _drain_worker(services: VisitorServices, worker: str, form: Form) -> str:
    drain_workers(services.store, [worker], services.visitor.actor, _reason(form))
    return "Drain requested: the worker claims no more jobs, finishes its running ones and stops."


# --- Alerts and notifications ---


def _silence_alert(services: VisitorServices, rule: str, form: Form) -> str:
    length = _until(form) or HOUR
    services.alerts.silence(rule, length, reason=_reason(form))
    return f"Alert {rule} is silenced for {format_duration(length)}."


def _unsilence_alert(services: VisitorServices, rule: str, form: Form) -> str:
    services.alerts.unsilence(rule, reason=_reason(form))
    return f"Alert {rule} is no longer silenced."


def _test_subscription(services: VisitorServices, subscription: str, form: Form) -> str:
    del form
    delivery = services.subscriptions.test(subscription, owner=services.owner)
    return f"Test message {delivery.message} will be sent shortly."


def _retry_delivery(services: VisitorServices, delivery: str, form: Form) -> str:
    services.deliveries.retry(delivery, owner=services.owner, reason=_reason(form))
    return "The message will be sent again."


# --- Schedules ---


def _run_schedule(services: VisitorServices, schedule: str, form: Form) -> str:
    job = services.schedules.run(schedule, reason=_reason(form))
    return f"Enqueued job {job.id}."


# --- Releases ---


def _hold_release(services: VisitorServices, release: str, form: Form) -> str:
    kind = form.get("kind") or None
    services.releases.hold(release, kind=kind, until=_until(form), reason=_reason(form))
    return f"{kind or 'Every kind'} is held under release {release}."


def _unhold_release(services: VisitorServices, release: str, form: Form) -> str:
    kind = form.get("kind") or None
    services.releases.unhold(release, kind=kind, reason=_reason(form))
    return f"The hold of {kind or 'every kind'} under release {release} is over."


# --- The table of actions ---

ACTIONS: Mapping[tuple[str, str], PageAction] = {
    ("jobs", "retry"): PageAction(_retry_job, "/jobs/{id}"),
    ("jobs", "cancel"): PageAction(_cancel_job, "/jobs/{id}"),
    ("jobs", "release"): PageAction(_release_job, "/jobs/{id}"),
    ("jobs", "tell"): PageAction(_answer_job, "/jobs/{id}"),
    ("jobs", "discard"): PageAction(_discard_job, "/jobs/{id}"),
    ("jobs", "undiscard"): PageAction(_undiscard_job, "/jobs/{id}"),
    ("jobs", "rerun"): PageAction(_rerun_job, "/jobs/{id}"),
    ("failures", "mute"): PageAction(_mute_group, "/failures/{id}"),
    ("failures", "resolve"): PageAction(_resolve_group, "/failures/{id}"),
    ("failures", "retry"): PageAction(_retry_group, "/failures/{id}"),
    ("failures", "reopen"): PageAction(_reopen_group, "/failures/{id}"),
    ("failures", "assign"): PageAction(_assign_group, "/failures/{id}"),
    ("batches", "retry"): PageAction(_retry_batch, "/batches/{id}"),
    ("batches", "cancel"): PageAction(_cancel_batch, "/batches/{id}"),
    ("operations", "pause"): PageAction(
        _owner_action("operations", "pause", "Paused: no more jobs are processed for now."),
        "/operations/{id}",
    ),
    ("operations", "resume"): PageAction(
        _owner_action("operations", "resume", "Resumed."), "/operations/{id}"
    ),
    ("operations", "abort"): PageAction(
        _owner_action("operations", "abort", "Aborted. Jobs not yet processed stay untouched."),
        "/operations/{id}",
    ),
    ("jobs", "share"): PageAction(_share_job, "/jobs/{id}"),
    ("batches", "share"): PageAction(_share_batch, "/batches/{id}"),
    ("queues", "set"): _limit_action(
        "queues", "set", "Queue {}: {}. This overrides the limits in code."
    ),
    ("queues", "clear"): _limit_action("queues", "clear", "Queue {} uses the limits in code: {}."),
    ("dependencies", "set"): _limit_action(
        "dependencies", "set", "{}: {}. This overrides the limits in code."
    ),
    ("dependencies", "clear"): _limit_action(
        "dependencies", "clear", "{} uses the limits in code: {}."
    ),
    ("workers", "drain"): PageAction(_drain_worker, "/queues", shared=True),
    ("alerts", "silence"): PageAction(_silence_alert, "/alerts", shared=True),
    ("alerts", "unsilence"): PageAction(_unsilence_alert, "/alerts", shared=True),
    ("subscriptions", "test"): PageAction(_test_subscription, "/notifications"),
    ("subscriptions", "enable"): PageAction(
        _owner_action("subscriptions", "enable", "Enabled."), "/notifications"
    ),
    ("subscriptions", "disable"): PageAction(
        _owner_action("subscriptions", "disable", "Disabled."), "/notifications"
    ),
    ("deliveries", "retry"): PageAction(_retry_delivery, "/notifications"),
    ("releases", "hold"): PageAction(_hold_release, "/releases?release={id}", shared=True),
    ("releases", "unhold"): PageAction(_unhold_release, "/releases?release={id}", shared=True),
    ("schedules", "run"): PageAction(_run_schedule, "/schedules", shared=True),
    **{(gate.noun, gate.verb): _gate_action(gate) for gate in GATE_VERBS},
}


def find_action(noun: str, verb: str) -> PageAction:
    """Return the action of a form's address."""
    action = ACTIONS.get((noun, verb))
    if action is None:
        message = f"unknown action {verb!r:.40} for {noun!r:.40}"
        raise Refused(message)
    return action


# --- Screens ---

MAX_SELECTED = 200
MUST_CONFIRM_ABOVE = 100  # jobs; above this number a person types the number to confirm


class ActionScreens:
    """Runs the forms of all screens, and bulk actions with their preview."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @form_route("/{noun}/{name}/{verb}")
    async def act(self, request: Request, noun: str, name: str, verb: str) -> Response:
        """Run one action of the table."""
        action = find_action(noun, verb)
        back = action.back.format(id=quote(name, safe=""))

        def work(services: VisitorServices, form: dict[str, str]) -> str:
            nonlocal back
            if form.get("back"):
                back = local_path(form["back"])
            return action.run(services, name, form)

        try:
            sentence = await self._renderer.submit(request, work, action.role, shared=action.shared)
        except MulliganError as refused:
            return self._renderer.redirect(request, back, f"Not done: {refused}", "bad")
        return self._renderer.redirect(request, back, sentence)

    @form_route("/jobs")
    async def act_on_jobs(self, request: Request) -> Response:
        """Run an action on the selected jobs."""
        return await self._act_on_selected(request, "jobs")

    @form_route("/failures")
    async def act_on_groups(self, request: Request) -> Response:
        """Mute, resolve or reopen the selected causes, or preview a retry of their jobs."""
        return await self._act_on_selected(request, "failures")

    async def _act_on_selected(self, request: Request, noun: str) -> Response:
        back = f"/{noun}"

        def work(services: VisitorServices, form: dict[str, str]) -> str:
            nonlocal back
            back = local_path(form.get("back") or back)
            selected = filter(None, form.get("id", "").split(","))
            names = list(selected)[:MAX_SELECTED]
            if not names:
                raise Refused("nothing is selected")
            if noun == "failures" and form.get("verb") == "retry":
                text = f"state:dead group:{','.join(names)}"
                back = f"/operations/new?{urlencode({'action': 'retry', 'filter': text})}"
                return ""
            return _act_on_all(services, noun, names, form)

        try:
            sentence = await self._renderer.submit(request, work, Role.OPERATOR)
        except MulliganError as refused:
            return self._renderer.redirect(request, back, f"Not done: {refused}", "bad")
        return self._renderer.redirect(request, back, sentence)

    @screen("/operations/new")
    async def preview(
        self,
        request: Request,
        action: str = "retry",
        filter: str = "",  # noqa: A002 - as in the URL
        queue: str = "",
        choice: str = "",
    ) -> Response:
        """Show what a bulk action would do."""
        options = {"queue": queue, "choice": choice}

        def load(services: VisitorServices) -> dict[str, Any]:
            if action == "move" and not queue:
                return EMPTY_PREVIEW
            preview = services.operations.start(
                action, filter, dry_run=True, **_start_options(services, options)
            )
            causes = cause_titles(services, [filter])
            return {**_preview_context(preview, root_path(request)), "causes": causes}

        values = {
            "action": action,
            "job_filter": filter,
            "actions": [one.value for one in BulkAction],
            **options,
            **await self._renderer.read(request, load),
        }
        values["sentence"] = describe_target(action, values["count"], filter, values["causes"])
        return self._renderer.page(request, "preview.html", "operations", **values)

    @form_route("/operations")
    async def start(self, request: Request) -> Response:
        """Start a bulk action."""

        def work(services: VisitorServices, form: dict[str, str]) -> str:
            operations = services.operations
            action = form.get("action", "retry")
            text = form.get("filter", "")
            options = _start_options(services, form)
            preview = operations.start(action, text, dry_run=True, **options)
            _check_confirmation(preview, form)
            return operations.start(action, text, **options).id

        try:
            operation = await self._renderer.submit(request, work, Role.OPERATOR)
        except MulliganError as refused:
            text = f"Not done: {refused}"
            return self._renderer.redirect(request, "/operations", text, "bad")
        text = "Started. This page shows its progress."
        return self._renderer.redirect(request, f"/operations/{operation}", text)


def _act_on_all(services: VisitorServices, noun: str, names: Sequence[str], form: Form) -> str:
    """Run one action on several objects, one by one. A refused one does not stop the rest."""
    action = find_action(noun, form.get("verb", ""))
    refusals = []
    for name in names:
        try:
            action.run(services, name, form)
        except MulliganError as refused:
            refusals.append(str(refused))
    done = f"{len(names) - len(refusals):,} of {len(names):,} done"
    if not refusals:
        return f"{done}."
    return f"{done}; not done: {'; '.join(dict.fromkeys(refusals))}"


EMPTY_PREVIEW: dict[str, Any] = {
    "count": "0",
    "number": 0,
    "must_confirm": False,
    "steps": "",
    "codes": (),
    "kinds": (),
    "owners": (),
    "cost": "",
    "estimated_cost": "",
    "chance": "",
    "recovered": "",
    "held": (),
    "refused": (),
    "jobs": "",
    "causes": {},
}


def _start_options(services: VisitorServices, form: Form) -> StartOptions:
    options: StartOptions = {"owner": services.owner, "reason": _reason(form)}
    options["queue"] = form.get("queue") or None
    options["choice"] = form.get("choice") or None
    options["rate"] = form.get("rate") or None
    if "filter" in form and not form.get("careful"):
        options["steps"] = ["rest"]
    if form.get("stop_if"):
        options["stop_if"] = _parse_share(form["stop_if"])
    return options


def _parse_share(text: str) -> float:
    """Parse `10` or `10 %`."""
    number = text.removesuffix("%").strip()
    if not (number.isascii() and number.isdecimal() and int(number[:4]) <= 100):
        message = f"stop if more than: invalid share {text!r:.40}. Use 10 for 10 %."
        raise Refused(message)
    return int(number) / 100


def _check_confirmation(preview: OperationPreview, form: Form) -> None:
    """Require the number of jobs to be typed, so that nobody moves many jobs by mistake."""
    if preview.count <= MUST_CONFIRM_ABOVE:
        return
    if form.get("count", "").replace(",", "") != str(preview.count):
        message = f"type the number of jobs, {preview.count:,}, to confirm. Nothing was changed."
        raise MulliganError(message)


def _narrowing_links(
    preview: OperationPreview, root: str, field: str, names: Iterable[str]
) -> dict[str, str]:
    """Return links to the jobs of each name. None if the filter already contains the field."""
    if any(part.startswith(f"{field}:") for part in split_filter(preview.filter)):
        return {}
    return {
        name: filter_link(f"{root}/jobs", [preview.filter, f"{field}:{name}"])
        for name in names
        if needs_no_quotes(name)
    }


def _owner_bars(preview: OperationPreview, root: str) -> tuple[Bar, ...]:
    if len(preview.owners) <= 1:
        return ()
    counts = {owner or "no owner": count for owner, count in preview.owners.items()}
    return bars(counts, _narrowing_links(preview, root, "owner", preview.owners))


def _preview_context(preview: OperationPreview, root: str) -> dict[str, Any]:
    or_more = "+" if preview.capped else ""
    chance = "" if preview.chance is None else format_percent(preview.chance)
    return {
        "count": f"{preview.count:,}{or_more}",
        "number": preview.count,
        "must_confirm": preview.count > MUST_CONFIRM_ABOVE,
        "steps": ", ".join(f"{step:,}" for step in preview.steps),
        "codes": bars(preview.codes, _narrowing_links(preview, root, "code", preview.codes)),
        "kinds": bars(preview.kinds, _narrowing_links(preview, root, "kind", preview.kinds)),
        "owners": _owner_bars(preview, root),
        "cost": f"{preview.cost:g}" if preview.cost else "",
        "estimated_cost": f"{preview.estimated_cost:g}" if preview.estimated_cost else "",
        "chance": chance,
        "recovered": f"{preview.recovered:,} of {preview.retried:,}",
        "held": preview.held,
        "refused": preview.refused,
        "jobs": f"{root}/jobs?filter={quote(preview.filter)}",
    }
