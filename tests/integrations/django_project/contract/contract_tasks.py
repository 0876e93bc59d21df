"""What Django promises about tasks, and what Mulligan adds: run by `manage.py test`.

Each test is a sentence about the API; `test_django.py` runs all of them on each database.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import django
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from orders import tasks
from orders.models import Order

from mulligan import Policy, Unique
from mulligan.core.errors import PayloadRefused
from mulligan.integrations.django import AttemptFailed, configure, get_app
from mulligan.integrations.django.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from mulligan.integrations.django.databases import mulligan_backends
from mulligan.integrations.django.kinds import discover_tasks
from mulligan.testing import assert_enqueued, drain

PROJECT = Path(__file__).parents[1]
READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED
RUNNING, SUCCESSFUL = TaskResultStatus.RUNNING, TaskResultStatus.SUCCESSFUL
PATIENCE = 60.0  # seconds


def run_due_tasks(alias: str = "default", *, scheduled: bool = False) -> None:
    """Run due tasks in this process, as a worker would. `scheduled`: later ones and retries too."""
    app = get_app(alias)
    discover_tasks(app, {alias: mulligan_backends()[alias]})
    drain(app, scheduled=scheduled, anywhere=True)


def cancel_all() -> None:
    """Cancel what an earlier test has left: Django empties its own tables only."""
    for alias in ("default", "reports"):
        for job in get_app(alias).jobs.list("state:queued"):
            job.cancel("left by another test")


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)
    return found


def environ_of_test() -> dict[str, str]:
    """Return the environment of a process that works on the databases of this test run."""
    found = dict(os.environ)
    for variable, alias in (("DATABASE_URL", "default"), ("REPORTS_URL", "reports")):
        url = os.environ[variable]
        name = str(connections[alias].settings_dict["NAME"])
        found[variable] = (
            f"sqlite:///{name}"
            if url.startswith("sqlite")
            else (f"{url.rpartition('/')[0]}/{name}")
        )
    return found


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env=environ_of_test(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextlib.contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `manage.py mulligan worker` on the test databases."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "mulligan", *arguments, "worker"],
        cwd=PROJECT,
        env=environ_of_test(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


class Enqueued(TestCase):
    """Tasks that are only enqueued. TestCase never commits, so no worker sees them."""

    databases = {"default", "reports"}

    def test_the_backend_supports_everything(self) -> None:
        backend = task_backends["default"]
        self.assertTrue(backend.supports_defer)
        self.assertTrue(backend.supports_async_task)
        self.assertTrue(backend.supports_get_result)
        self.assertTrue(backend.supports_priority)

    def test_a_new_result_is_ready_and_has_the_arguments_of_the_call(self) -> None:
        result = tasks.ship.enqueue(7, carrier="dhl")
        self.assertEqual(result.status, READY)
        self.assertEqual((result.args, result.kwargs), ([7], {"carrier": "dhl"}))
        self.assertEqual(result.backend, "default")
        self.assertEqual(result.task, tasks.ship)
        self.assertEqual((result.attempts, result.errors, result.worker_ids), (0, [], []))
        self.assertLess(len(result.id), 64)
        self.assertTrue(timezone.is_aware(result.enqueued_at))
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.finished_at)
        self.assertFalse(result.is_finished)
        with self.assertRaisesRegex(ValueError, "not finished"):
            _ = result.return_value

    def test_the_open_transaction_sees_its_tasks(self) -> None:
        result = tasks.ship.enqueue(7)
        found = tasks.ship.get_result(result.id)
        self.assertEqual(found, result)
        assert_enqueued(
            get_app(),
            "orders.tasks.ship",
            connection=connection,
            payload={"order": 7, "_positional": 1},
        )

    def test_arguments_of_every_sort_come_back_as_they_were_passed(self) -> None:
        for args, kwargs in (
            ([1], {}),
            ([1], {"second": [2, None]}),
            ([1, 2, 3, "four"], {}),
            ([{"a": 1}, 2, 3], {"other": True, "name": "x"}),
        ):
            result = tasks.collect.enqueue(*args, **kwargs)
            found = tasks.collect.get_result(result.id)
            self.assertEqual((found.args, found.kwargs), (args, kwargs))

    def test_arguments_that_the_function_does_not_take_are_refused(self) -> None:
        with self.assertRaisesRegex(PayloadRefused, "colour"):
            tasks.ship.enqueue(1, colour="red")
        with self.assertRaisesRegex(PayloadRefused, "missing"):
            tasks.ship.enqueue()

    def test_arguments_must_be_json(self) -> None:
        with self.assertRaises(TypeError):
            tasks.ship.enqueue(datetime.now(UTC))

    def test_priorities_are_mapped_and_come_first_when_larger(self) -> None:
        for given, stored in ((100, -9), (50, -4), (0, 0), (-50, 4), (-100, 9), (42, -4)):
            result = tasks.mail.using(priority=given).enqueue("ada")
            job = self.job(result)
            self.assertEqual(job.priority, stored)
            self.assertEqual(job.queue, "mail")

    def test_priorities_queues_and_times_are_checked_by_django(self) -> None:
        for changes in ({"priority": 101}, {"priority": 1.5}, {"queue_name": "none"}):
            with self.assertRaises(InvalidTask):
                tasks.ship.using(**changes)
        with self.assertRaises(InvalidTask):
            tasks.ship.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - naive on purpose

    def test_a_deferred_task_waits(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.ship.using(run_after=later).enqueue(1)
        self.assertEqual(self.job(result).run_at, later)
        self.assertEqual(tasks.ship.get_result(result.id).task.run_after, later)

    def test_a_nested_function_is_no_task(self) -> None:
        def nested() -> None: ...

        with self.assertRaises(InvalidTask):
            replace(tasks.ship, func=nested)

    def test_another_task_cannot_claim_a_result(self) -> None:
        result = tasks.ship.enqueue(1)
        with self.assertRaisesRegex(Exception, "orders.tasks.ship"):
            tasks.mail.get_result(result.id)

    def test_an_unknown_result_does_not_exist(self) -> None:
        for result_id in ("", "unknown", "0" * 28, "\x00"):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.ship.get_result(result_id)

    def test_a_job_that_is_no_task_has_no_result(self) -> None:
        job = get_app().enqueue("gone.tasks.work", {}, connection=connection)
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(job.id)

    def test_a_savepoint_that_is_rolled_back_leaves_no_task(self) -> None:
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            result = tasks.ship.enqueue(1)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.ship.get_result(result.id)

    def test_django_sends_a_signal_when_a_task_is_enqueued(self) -> None:
        with signals(task_enqueued) as sent:
            result = tasks.ship.enqueue(1)
        self.assertEqual(sent, [(type(task_backends["default"]), result.id, READY)])

    def test_one_unique_key_is_one_task_however_arguments_are_passed(self) -> None:
        first = tasks.send.enqueue("relay")
        self.assertEqual(tasks.send.enqueue(host="relay").id, first.id)
        self.assertNotEqual(tasks.send.enqueue("other").id, first.id)
        self.assertEqual(self.job(first).uses, ("relay-relay",))

    def test_options_of_one_enqueue(self) -> None:
        chosen = tasks.ship.using(owner="acme", unique="order-7", deadline=3600, max_attempts=4)
        result = chosen.enqueue(7)
        self.assertEqual(chosen.enqueue(7).id, result.id)
        job = self.job(result)
        self.assertEqual((job.owner, job.unique_key), ("acme", "order-7"))
        self.assertIsNotNone(job.deadline_at)
        with self.assertRaisesRegex(InvalidTask, "Did you mean owner"):
            tasks.ship.using(ownr="acme")

    def test_configure_names_wrong_options_and_leaves_other_backends_unchanged(self) -> None:
        with self.assertRaisesRegex(InvalidTask, "Did you mean policy"):
            configure(tasks.ship, polcy=Policy())
        with self.assertRaises(InvalidTask):
            configure(tasks.ship.func, policy=Policy())
        with self.assertRaisesRegex(InvalidTask, "at least 1"):
            configure(tasks.ship, max_attempts=0).using(max_attempts=0).enqueue(1)
        self.assertEqual(configure(tasks.ship, unique=Unique()).unique, Unique())

    def test_a_second_database_has_its_own_tasks(self) -> None:
        result = tasks.report.enqueue(2026)
        self.assertEqual(task_backends["reports"].get_result(result.id).args, [2026])
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)

    def test_async_enqueue_and_result(self) -> None:
        async def enqueue() -> Any:
            result = await tasks.look_up.aenqueue(order=1)
            return result, await tasks.look_up.aget_result(result.id)

        result, found = async_to_sync(enqueue)()
        self.assertEqual(found.kwargs, {"order": 1})
        self.assertEqual(found.id, result.id)

    def test_the_checks_find_no_fault(self) -> None:
        call_command("check", "--fail-level", "WARNING")

    def job(self, result: Any) -> Any:
        from mulligan.testing.asserts import _jobs_of_transaction

        return _jobs_of_transaction(get_app(), connection).get(result.id)


@contextlib.contextmanager
def signals(*watched: Any) -> Iterator[list[tuple[Any, ...]]]:
    sent: list[tuple[Any, ...]] = []

    def note(sender: Any, task_result: Any, **_: Any) -> None:
        sent.append((sender, task_result.id, task_result.status))

    for one in watched:
        one.connect(note)
    try:
        yield sent
    finally:
        for one in watched:
            one.disconnect(note)


class Run(TransactionTestCase):
    """Tasks that run in this process."""

    databases = {"default", "reports"}

    def setUp(self) -> None:
        cancel_all()

    def test_a_task_runs_and_its_result_can_be_refreshed(self) -> None:
        order = Order.objects.create(item="lamp")
        result = tasks.ship.enqueue(order.pk)
        run_due_tasks()
        self.assertEqual(result.status, READY)
        result.refresh()
        self.assertEqual(result.status, SUCCESSFUL)
        self.assertTrue(result.is_finished)
        self.assertEqual(result.return_value, "lamp by post")
        self.assertEqual((result.attempts, result.errors), (1, []))
        self.assertEqual(len(result.worker_ids), 1)
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertEqual(result.started_at, result.last_attempted_at)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertTrue(Order.objects.get().shipped)

    def test_an_async_task_runs(self) -> None:
        order = Order.objects.create(item="chair")
        result = tasks.look_up.enqueue(order.pk)
        run_due_tasks()
        async_to_sync(result.arefresh)()
        self.assertEqual(result.return_value, "chair")

    def test_a_rollback_leaves_neither_row_nor_task(self) -> None:
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            order = Order.objects.create(item="unicorn")
            result = tasks.ship.enqueue(order.pk)
            raise ZeroDivisionError
        self.assertEqual(Order.objects.count(), 0)
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.ship.get_result(result.id)

    def test_a_commit_keeps_both(self) -> None:
        with transaction.atomic():
            order = Order.objects.create(item="lamp")
            result = tasks.ship.enqueue(order.pk)
        self.assertEqual(tasks.ship.get_result(result.id).status, READY)

    def test_the_transaction_of_another_database_is_not_joined(self) -> None:
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="reports"):
            kept = tasks.mail.enqueue("ada")
            dropped = tasks.report.enqueue(2026)
            raise ZeroDivisionError
        self.assertEqual(tasks.mail.get_result(kept.id).status, READY)
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.report.get_result(dropped.id)

    def test_in_another_database_than_djangos_a_task_is_written_after_the_commit(self) -> None:
        get_app("apart").open()
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            dropped = tasks.notify.enqueue(1)
            raise ZeroDivisionError
        with signals(task_enqueued) as sent:
            with transaction.atomic():
                kept = tasks.notify.enqueue(2)
                self.assertEqual(sent, [])
            self.assertEqual([one[1] for one in sent], [kept.id])
        self.assertEqual(tasks.notify.get_result(kept.id).args, [2])
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.notify.get_result(dropped.id)

    def test_the_context_has_attempt_result_and_mulligans_context(self) -> None:
        result = tasks.count_attempts.enqueue(fail_first=True)
        run_due_tasks()
        result.refresh()
        self.assertEqual((result.status, result.attempts), (READY, 1))
        run_due_tasks(scheduled=True)
        result.refresh()
        self.assertEqual(
            result.return_value,
            {
                "attempt": 2,
                "id": result.id,
                "errors": ["builtins.ConnectionError"],
                "workers": 2,
            },
        )
        self.assertEqual(result.attempts, 2)

    def test_a_task_that_backs_off_is_ready_and_one_without_retries_left_has_failed(self) -> None:
        result = tasks.fail.enqueue("no route to password=hunter2")
        run_due_tasks()
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (READY, 1, 1))
        run_due_tasks(scheduled=True)
        result.refresh()
        self.assertEqual(result.status, FAILED)
        self.assertEqual(result.attempts, 3)
        self.assertEqual({one.exception_class for one in result.errors}, {ConnectionError})
        self.assertIn("in fail", result.errors[0].traceback)
        self.assertNotIn("hunter2", result.errors[0].traceback)
        with self.assertRaisesRegex(ValueError, "failed"):
            _ = result.return_value

    def test_options_of_a_task_apply(self) -> None:
        result = tasks.try_once.enqueue()
        run_due_tasks()
        result.refresh()
        self.assertEqual((result.status, result.attempts), (FAILED, 1))

    def test_a_cancelled_task_has_failed_and_says_why(self) -> None:
        result = tasks.mail.enqueue("ada")
        get_app().jobs.cancel(result.id, reason="not needed")
        result.refresh()
        self.assertEqual(result.status, FAILED)
        self.assertIs(result.errors[0].exception_class, AttemptFailed)
        self.assertIn("not needed", result.errors[0].traceback)

    def test_a_snoozed_task_is_ready(self) -> None:
        result = tasks.nap.enqueue()
        run_due_tasks()
        result.refresh()
        self.assertEqual((result.status, result.errors), (READY, []))

    def test_an_outcome_that_is_final_fails_the_task(self) -> None:
        result = tasks.give_up.enqueue()
        with signals(task_finished) as sent:
            run_due_tasks()
        result.refresh()
        self.assertEqual((result.status, len(result.errors)), (FAILED, 1))
        self.assertEqual([one[2] for one in sent], [FAILED])

    def test_signals_of_attempts_have_the_backend_and_the_status(self) -> None:
        backend = type(task_backends["default"])
        with signals(task_started, task_finished) as sent:
            good = tasks.mail.enqueue("ada")
            run_due_tasks()
            bad = tasks.count_attempts.enqueue(fail_first=True)
            run_due_tasks()
            last = tasks.try_once.enqueue()
            run_due_tasks()
        self.assertEqual(
            sent,
            [
                (backend, good.id, RUNNING),
                (backend, good.id, SUCCESSFUL),
                (backend, bad.id, RUNNING),
                (backend, bad.id, READY),
                (backend, last.id, RUNNING),
                (backend, last.id, FAILED),
            ],
        )

    def test_django_logs_the_exception_of_a_task_that_failed(self) -> None:
        tasks.try_once.enqueue()
        name = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
        with self.assertLogs(name, "ERROR") as logged:
            run_due_tasks()
        self.assertEqual(logged.records[0].exc_info[0], ConnectionError)

    def test_a_receiver_that_raises_changes_no_outcome(self) -> None:
        def receive(**_: Any) -> None:
            raise RuntimeError("of the receiver")

        task_started.connect(receive)
        try:
            result = tasks.mail.enqueue("ada")
            run_due_tasks()
        finally:
            task_started.disconnect(receive)
        result.refresh()
        self.assertEqual(result.status, SUCCESSFUL)

    def test_a_manual_retry_makes_a_failed_task_ready_again(self) -> None:
        result = tasks.try_once.enqueue()
        run_due_tasks()
        get_app().jobs.retry(result.id, reason="again")
        result.refresh()
        self.assertEqual((result.status, result.attempts), (READY, 1))

    @override_settings(USE_TZ=False)
    def test_without_time_zones_times_are_naive(self) -> None:
        result = tasks.mail.using(run_after=datetime(2030, 1, 1)).enqueue("ada")  # noqa: DTZ001
        self.assertTrue(timezone.is_naive(result.enqueued_at))
        self.assertEqual(tasks.mail.get_result(result.id).task.run_after, datetime(2030, 1, 1))  # noqa: DTZ001


class Workers(TransactionTestCase):
    """Tasks that real workers run."""

    databases = {"default", "reports"}

    def setUp(self) -> None:
        cancel_all()
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_result_is_visible_in_another_process(self) -> None:
        order = Order.objects.create(item="lamp")
        with transaction.atomic():
            result = tasks.ship.enqueue(order.pk)
            report = tasks.report.enqueue(2026)
        with worker(), worker("--backend", "reports"):
            self.wait_for(result, SUCCESSFUL)
            self.wait_for(report, SUCCESSFUL)
        self.assertTrue(Order.objects.get().shipped)
        shown = manage("mulligan", "jobs", "show", result.id, "-o", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(json.loads(shown.stdout)["result"], "lamp by post")
        code = f"from orders.tasks import ship; print(ship.get_result({result.id!r}).return_value)"
        other = manage("shell", "-c", code)
        self.assertIn("lamp by post", other.stdout)

    def test_kill_9_of_a_worker_loses_no_task(self) -> None:
        result = tasks.wait_for.enqueue(folder=str(self.folder))
        with worker() as first:
            wait_until(lambda: list(self.folder.glob("*.pid")))
            result.refresh()
            self.assertEqual((result.status, result.attempts), (RUNNING, 1))
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            (self.folder / "go").touch()
            with worker():
                self.wait_for(result, SUCCESSFUL)
        self.assertEqual(result.return_value, "done")
        self.assertEqual((result.attempts, len(set(result.worker_ids))), (2, 2))
        self.assertEqual([one.exception_class for one in result.errors], [AttemptFailed])

    def wait_for(self, result: Any, status: Any) -> None:
        def reached() -> bool:
            result.refresh()
            return bool(result.status == status)

        wait_until(reached)
