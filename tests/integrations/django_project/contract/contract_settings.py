"""Entries of TASKS and DATABASES, and what is wrong with them: run by `manage.py test`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest import mock

import django
import psycopg.conninfo
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import SimpleTestCase, override_settings

from contract.contract_tasks import PROJECT, environ_of_test, manage
from mulligan.integrations.django import get_app
from mulligan.integrations.django.checks import check_backend
from mulligan.integrations.django.databases import (
    BackendOptions,
    _postgres_url,
    mulligan_backends,
    read_options,
)
from mulligan.integrations.django.worker import load_backend


class Settings(SimpleTestCase):
    """Settings that are read without a connection."""

    def test_entries_of_postgresql_become_urls(self) -> None:
        entries: list[tuple[dict[str, Any], dict[str, str]]] = [
            (
                {"NAME": "shop", "USER": "a@b", "PASSWORD": "p/w:d %x", "HOST": "db", "PORT": 5433},
                {
                    "dbname": "shop",
                    "user": "a@b",
                    "password": "p/w:d %x",
                    "host": "db",
                    "port": "5433",
                },
            ),
            (
                {"NAME": "shop", "HOST": "/var/run/postgresql", "PORT": ""},
                {"dbname": "shop", "host": "/var/run/postgresql"},
            ),
            ({"NAME": "", "PORT": "6000", "HOST": ""}, {"port": "6000"}),
            ({"NAME": "shop", "HOST": "::1"}, {"dbname": "shop", "host": "::1"}),
            (
                {
                    "NAME": "shop",
                    "HOST": "db",
                    "OPTIONS": {
                        "sslmode": "require",
                        "options": "-c lock_timeout=5s",
                        "pool": {"max_size": 4},
                        "isolation_level": 2,
                        "server_side_binding": True,
                    },
                },
                {
                    "dbname": "shop",
                    "host": "db",
                    "sslmode": "require",
                    "options": "-c lock_timeout=5s",
                },
            ),
            ({"NAME": "", "OPTIONS": {"service": "shop"}}, {"service": "shop"}),
        ]
        for entry, expected in entries:
            url = _postgres_url(entry)
            self.assertEqual(psycopg.conninfo.conninfo_to_dict(url), expected, url)

    def test_wrong_options_are_refused_by_name(self) -> None:
        for options, problem in (
            ({"databse": "default"}, "OPTIONS has no 'databse'"),
            ({"database": "shop"}, "'shop', which is not in DATABASES"),
            ({"database": None}, 'OPTIONS needs "url"'),
            ({"modules": "tasks"}, "modules"),
            ({"settings": ["worker.lease"]}, "settings"),
            ({"policy": 3}, "policy"),
        ):
            with self.subTest(options), self.assertRaisesRegex(ImproperlyConfigured, problem):
                read_options("default", options)

    def test_checks_find_a_wrong_setting_of_mulligan_and_a_wrong_url(self) -> None:
        wrong = BackendOptions(url="mysql://db/shop")
        self.assertEqual([one.id for one in check_backend("default", wrong)], ["mulligan.E002"])

    def test_checks_find_databases_that_cannot_be_shared(self) -> None:
        for entry, vendor, found in (
            ({"ENGINE": "x.sqlite3", "NAME": ":memory:"}, "sqlite", ["mulligan.E001"]),
            ({"ENGINE": "x.sqlite3", "NAME": "file:m?mode=memory"}, "sqlite", ["mulligan.E001"]),
            ({"ENGINE": "x.mysql", "NAME": "shop"}, "mysql", ["mulligan.E001"]),
            (
                {"ENGINE": "x.sqlite3", "NAME": f"{PROJECT}/none.db", "OPTIONS": {}},
                "sqlite",
                ["mulligan.W001", "mulligan.W002"],
            ),
        ):
            fake = mock.Mock(settings_dict=entry, vendor=vendor)
            found_connections = {**{name: connections[name] for name in connections}, "fake": fake}
            target = "mulligan.integrations.django"
            with (
                self.subTest(entry),
                mock.patch(f"{target}.databases.connections", found_connections),
                mock.patch(f"{target}.checks.connections", found_connections),
            ):
                options = BackendOptions(database="fake")
                self.assertEqual([one.id for one in check_backend("x", options)], found)

    def test_an_unknown_backend_is_named(self) -> None:
        with self.assertRaisesRegex(ImproperlyConfigured, "default, reports, apart"):
            get_app("none")
        with self.assertRaisesRegex(ImproperlyConfigured, "'none'"):
            load_backend("none")

    def test_other_backends_are_left_alone(self) -> None:
        package = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
        other = {"BACKEND": f"{package}.backends.dummy.DummyBackend"}
        gone = {"BACKEND": "gone.Backend"}
        with override_settings(TASKS={"default": other, "gone": gone}):
            self.assertEqual(mulligan_backends(), {})

    def test_backends_on_one_database_share_an_app(self) -> None:
        entry = {"BACKEND": "mulligan.integrations.django.MulliganBackend"}
        with override_settings(TASKS={"one": entry, "two": entry}):
            self.assertIs(get_app("one"), get_app("two"))

    def test_a_worker_without_settings_says_what_is_missing(self) -> None:
        environ = environ_of_test()
        del environ["DJANGO_SETTINGS_MODULE"]
        command = ["-m", "mulligan", "worker", "mulligan.integrations.django.worker:default"]
        ran = subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, check=False
        )
        self.assertEqual(ran.returncode, 2)
        self.assertIn("python manage.py mulligan worker", ran.stderr)

    def test_wrong_commands_are_explained(self) -> None:
        wrong = manage("mulligan", "--backend", "none", "worker")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no backend 'none' of Mulligan in TASKS", wrong.stderr)
        unknown = manage("mulligan", "wrk")
        self.assertIn("Did you mean 'worker'?", unknown.stderr)
