"""Settings of the project in which the contract with Django is tested.

DATABASE_URL names the database of the shop, REPORTS_URL a second one. DATABASE_OF_TESTS=1: both are
the databases of a test run, so that a worker of a test finds them.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

import django

from mulligan import Policy

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "mulligan.integrations.django",
    "orders",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LOGIN_URL = "/admin/login/"


def database(variable: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a URL in the environment."""
    url = os.environ[variable]
    parts = urlsplit(url)
    if url.startswith("sqlite"):
        name = url.partition("///")[2]
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": name,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0",
                "timeout": 20,
            },
            "TEST": {"NAME": f"{name}.test"},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
    }


DATABASES = {"default": database("DATABASE_URL"), "reports": database("REPORTS_URL")}

MULLIGAN = "mulligan.integrations.django.MulliganBackend"
WORKER = {"worker.lease": 4, "worker.heartbeat": 1, "worker.sweep": 1}
TASKS = {
    "default": {
        "BACKEND": MULLIGAN,
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"policy": Policy(max_retries=2), "settings": WORKER},
    },
    "reports": {"BACKEND": MULLIGAN, "OPTIONS": {"database": "reports", "settings": WORKER}},
    "apart": {"BACKEND": MULLIGAN, "OPTIONS": {"url": os.environ["APART_URL"]}},
}
