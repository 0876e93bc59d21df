"""Every method of the services has an API route, or a reason why it has none."""

from __future__ import annotations

import inspect
from functools import cached_property

import pytest

from mulligan import Mulligan
from mulligan.app.services import Services
from support.web_table import ROUTES


@pytest.fixture
def store_url(sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return sqlite_url


BY_A_PREFIX = "for people who type the beginning of an id; programs use the whole id"
IN_CODE = "declared in code"

ROUTE_OF_METHOD = {
    "jobs.list": "GET /jobs",
    "jobs.count": "GET /jobs/count",
    "jobs.get": "GET /jobs/{job_id}",
    "jobs.attempts": "GET /jobs/{job_id}/attempts",
    "jobs.log": "GET /jobs/{job_id}/attempts/{token}/log",
    "jobs.history": "GET /jobs/{job_id}/events",
    "jobs.explain": "GET /jobs/{job_id}/explain",
    "jobs.retry": "POST /jobs/{job_id}/retry",
    "jobs.preview_retry": "POST /jobs/{job_id}/retry",
    "jobs.cancel": "POST /jobs/{job_id}/cancel",
    "jobs.release": "POST /jobs/{job_id}/release",
    "jobs.tell": "POST /jobs/{job_id}/tell/{name}",
    "jobs.discard": "POST /jobs/{job_id}/discard",
    "jobs.undo": "POST /jobs/{job_id}/undo",
    "jobs.undiscard": "POST /jobs/{job_id}/undiscard",
    "jobs.rerun": "POST /jobs/{job_id}/rerun",
    "failures.groups": "GET /failures",
    "failures.get": "GET /failures/{fingerprint}",
    "failures.mute": "POST /failures/{fingerprint}/mute",
    "failures.unmute": "POST /failures/{fingerprint}/unmute",
    "failures.resolve": "POST /failures/{fingerprint}/resolve",
    "failures.reopen": "POST /failures/{fingerprint}/reopen",
    "failures.assign": "POST /failures/{fingerprint}/assign",
    "operations.start": "POST /operations",
    "operations.list": "GET /operations",
    "operations.get": "GET /operations/{operation_id}",
    "operations.items": "GET /operations/{operation_id}/items",
    "operations.pause": "POST /operations/{operation_id}/pause",
    "operations.resume": "POST /operations/{operation_id}/resume",
    "operations.abort": "POST /operations/{operation_id}/abort",
    "batches.begin": "POST /batches",
    "batches.list": "GET /batches",
    "batches.get": "GET /batches/{batch_id}",
    "batches.members": "GET /batches/{batch_id}/jobs",
    "batches.failures": "GET /batches/{batch_id}/failures",
    "batches.history": "GET /batches/{batch_id}/events",
    "batches.seal": "POST /batches/{batch_id}/seal",
    "batches.retry_failed": "POST /batches/{batch_id}/retry-failed",
    "batches.cancel": "POST /batches/{batch_id}/cancel",
    "queues.list": "GET /queues",
    "queues.get": "GET /queues/{name}",
    "queues.pause": "POST /queues/{name}/pause",
    "queues.resume": "POST /queues/{name}/resume",
    "queues.set": "PATCH /queues/{name}",
    "queues.clear": "PATCH /queues/{name}",
    "kinds.list": "GET /kinds",
    "kinds.get": "GET /kinds/{name}",
    "kinds.hold": "POST /kinds/{name}/hold",
    "kinds.release": "POST /kinds/{name}/release",
    "kinds.try_one": "POST /kinds/{name}/try",
    "releases.list": "GET /releases",
    "releases.get": "GET /releases/{name}",
    "releases.compare": "GET /releases/{name}/compare",
    "releases.find_previous": "GET /releases/{name}/compare",
    "releases.hold": "POST /releases/{name}/hold",
    "releases.unhold": "POST /releases/{name}/unhold",
    "dependencies.list": "GET /dependencies",
    "dependencies.get": "GET /dependencies/{key}",
    "dependencies.open": "POST /dependencies/{key}/open",
    "dependencies.close": "POST /dependencies/{key}/close",
    "dependencies.probe": "POST /dependencies/{key}/probe",
    "dependencies.set": "PATCH /dependencies/{key}",
    "dependencies.clear": "PATCH /dependencies/{key}",
    "policy.kinds": "GET /policies",
    "policy.system": "GET /policies",
    "policy.explain": "GET /policies/{kind}",
    "policy.backtest": "POST /policies/backtest",
    "app.metrics": "GET /metrics",
    "schedules.list": "GET /schedules",
    "schedules.next": "GET /schedules/{name}/next",
    "schedules.get": "GET /schedules/{name}",
    "schedules.pause": "POST /schedules/{name}/pause",
    "schedules.resume": "POST /schedules/{name}/resume",
    "schedules.run": "POST /schedules/{name}/run",
    "alerts.list": "GET /alerts",
    "alerts.rules": "GET /alerts/rules",
    "alerts.silence": "POST /alerts/{name}/silence",
    "alerts.unsilence": "POST /alerts/{name}/unsilence",
    "subscriptions.list": "GET /webhooks",
    "subscriptions.get": "GET /webhooks/{webhook_id}",
    "subscriptions.add": "POST /webhooks",
    "subscriptions.remove": "DELETE /webhooks/{webhook_id}",
    "subscriptions.test": "POST /webhooks/{webhook_id}/test",
    "subscriptions.enable": "POST /webhooks/{webhook_id}/enable",
    "subscriptions.disable": "POST /webhooks/{webhook_id}/disable",
    "subscriptions.rotate": "POST /webhooks/{webhook_id}/rotate",
    "deliveries.list": "GET /deliveries",
    "deliveries.get": "GET /deliveries/{delivery_id}",
    "deliveries.retry": "POST /deliveries/{delivery_id}/retry",
    "keys.list": "GET /keys",
    "keys.get": "GET /keys/{key_id}",
    "keys.create": "POST /keys",
    "keys.revoke": "POST /keys/{key_id}/revoke",
    "events.list": "GET /audit",
    "status.link": "POST /jobs/{job_id}/status-link",
    "app.enqueue": "POST /jobs",
    "app.tell": "POST /jobs/{job_id}/tell/{name}",
    "app.insert": "POST /jobs/bulk",
    "app.batch": "POST /batches",
    "app.insight": "GET /insight",
}
METHODS_WITHOUT_ROUTE = {
    "jobs.titles": "for lists and pages that people read",
    "jobs.resolve": BY_A_PREFIX,
    "jobs.find_by_key": "for app.tell(key=) and the command line",
    "batches.resolve": BY_A_PREFIX,
    "operations.resolve": BY_A_PREFIX,
    "subscriptions.resolve": BY_A_PREFIX,
    "failures.complete_fingerprint": BY_A_PREFIX,
    "events.follow": "GET /events",
    "events.follow_async": "GET /events",
    "jobs.wait": "GET /events?filter=job:… reports it without polling",
    "jobs.wait_async": "the same as wait",
    "jobs.value": "converts to a type of Python",
    "batches.wait": "GET /events?filter=batch:… reports it without polling",
    "batches.wait_async": "the same as wait",
    "batches.jobs": "GET /jobs?filter=batch:… in pages",
    "batches.results": "GET /jobs?filter=batch:… in pages",
    "batches.seal_async": "the same as seal",
    "keys.authenticate": "done with every request",
    "keys.record_use": "done with every request",
    "status.verify": "done by the page itself",
    "rules.add": IN_CODE,
    "rules.use": IN_CODE,
    "rules.all": "GET /policies/{kind} lists the rules of a kind",
    "app.job": IN_CODE,
    "app.step": IN_CODE,
    "app.queue": IN_CODE,
    "app.dependency": IN_CODE,
    "app.notify": IN_CODE,
    "app.schedule": IN_CODE,
    "app.on": IN_CODE,
    "app.on_start": IN_CODE,
    "app.around": IN_CODE,
    "app.on_failure": IN_CODE,
    "app.on_stop": IN_CODE,
    "app.manifest": IN_CODE,
    "app.open": "of one process",
    "app.close": "of one process",
    "app.redirected": "for tests",
    "app.build_job": "part of enqueue",
    "app.stored_specs": "part of enqueue",
    "app.new_job_by_name": "part of enqueue",
    "app.join_transaction": "of one connection",
    "app.insert_async": "the same as insert",
    "app.transaction": "of one connection",
    "app.run_inline": "runs code",
    "app.inline": "runs code",
}


def service_methods(app):
    cached = {
        name: getattr(app, name)
        for name, part in vars(Services).items()
        if isinstance(part, cached_property)
    }
    assert len(cached) > 10
    for name, service in {**vars(app), **cached}.items():
        if name.startswith("_") or name in {"settings", "registry", "actor", "aio", "store"}:
            continue
        for method, _ in inspect.getmembers(type(service), inspect.isfunction):
            if not method.startswith("_"):
                yield f"{name}.{method}"
    for method, _ in inspect.getmembers(Mulligan, inspect.isfunction):
        if not method.startswith("_"):
            yield f"app.{method}"


def test_every_service_method_has_a_route_or_a_reason(app):
    assert set(service_methods(app)) == set(ROUTE_OF_METHOD) | set(METHODS_WITHOUT_ROUTE)
    assert set(ROUTE_OF_METHOD.values()) <= set(ROUTES)
    assert not set(ROUTE_OF_METHOD) & set(METHODS_WITHOUT_ROUTE)
