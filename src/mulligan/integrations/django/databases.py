"""Databases: the Mulligan app of each backend, its URL, and Django's open transaction.

Backends on one database share one app. Its URL follows `DATABASES` until the first use and after
each change: test runners rename the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from mulligan.app.mulligan import Mulligan
from mulligan.integrations.django.connections import attempt_connections
from mulligan.retries.policy import Policy
from mulligan.storage import open_store

DEFAULT_BACKEND = "default"
# Options of psycopg.connect() that Django's entry may have and that are no parameters of libpq.
NOT_LIBPQ = frozenset(
    {
        "assume_role",
        "client_encoding",
        "context",
        "cursor_factory",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "row_factory",
        "server_side_binding",
    }
)
IN_MEMORY = (
    "DATABASES[{alias!r}] is a SQLite database in memory, which Mulligan cannot share. In tests "
    'set "TEST": {{"NAME": BASE_DIR / "test.sqlite3"}} in that entry, or use a backend of Django.'
)
OTHER_ENGINE = (
    "DATABASES[{alias!r}] uses {engine!r}. Mulligan needs PostgreSQL or SQLite. Name another "
    'database in OPTIONS: "database", or "url" for one that Django does not use.'
)


class BackendOptions(NamedTuple):
    """OPTIONS of a backend in TASKS."""

    database: str | None = DEFAULT_DB_ALIAS  # whose transactions an enqueue joins
    url: str | None = None  # of Mulligan's database, if it is another one than Django's
    settings: Mapping[str, Any] = {}  # of Mulligan
    policy: Policy | None = None  # of tasks without one
    modules: tuple[str, ...] = ("tasks",)  # of each installed app, to find tasks in

    @property
    def joins(self) -> bool:
        """True if jobs and rows are in one database, so that one transaction writes both."""
        return self.url is None and self.database is not None


OPTION_TYPES = {
    "settings": (Mapping, "mapping"),
    "policy": (Policy | None, "Policy"),
    "modules": (Sequence, "list"),
}


def read_options(alias: str, options: Mapping[str, Any]) -> BackendOptions:
    """Check the OPTIONS of a backend."""
    for name in options:
        if name not in BackendOptions._fields:
            known = ", ".join(BackendOptions._fields)
            message = f"TASKS[{alias!r}]: OPTIONS has no {name!r}. It may have {known}."
            raise ImproperlyConfigured(message)
    found = BackendOptions(**options)
    for name, (expected, noun) in OPTION_TYPES.items():
        value = getattr(found, name)
        if not isinstance(value, expected) or isinstance(value, str):
            message = f"TASKS[{alias!r}]: OPTIONS[{name!r}] must be a {noun}, not {value!r:.80}"
            raise ImproperlyConfigured(message)
    if found.database is not None and found.database not in connections:
        message = (
            f"TASKS[{alias!r}]: OPTIONS['database'] is {found.database!r}, which is not in "
            f"DATABASES. It has {', '.join(connections)}."
        )
        raise ImproperlyConfigured(message)
    if found.database is None and found.url is None:
        message = f'TASKS[{alias!r}]: without a database, OPTIONS needs "url".'
        raise ImproperlyConfigured(message)
    return found._replace(modules=tuple(found.modules))


def mulligan_backends() -> dict[str, BackendOptions]:
    """Return the options of each entry of TASKS whose backend is Mulligan's."""
    found = {}
    for alias, entry in getattr(settings, "TASKS", {}).items():
        if is_mulligan_backend(entry.get("BACKEND")):
            found[alias] = read_options(alias, entry.get("OPTIONS", {}))
    return found


def is_mulligan_backend(path: Any) -> bool:
    """True if a dotted path names our backend, or a class that is derived from it."""
    try:
        backend = import_string(path)
    except (ImportError, AttributeError, TypeError):
        return False  # Django reports it
    return getattr(backend, "is_mulligan", False) is True


# --- URLs ---


def database_url(options: BackendOptions) -> str:
    """Return the URL of Mulligan's database, as Django's settings are now."""
    if options.url is not None:
        return options.url
    alias = options.database or DEFAULT_DB_ALIAS
    entry = connections[alias].settings_dict
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        return _postgres_url(entry)
    if vendor == "sqlite":
        name = str(entry["NAME"])
        if name == ":memory:" or name.startswith("file:"):
            raise ImproperlyConfigured(IN_MEMORY.format(alias=alias))
        return f"sqlite+stdlib:///{name}"
    raise ImproperlyConfigured(OTHER_ENGINE.format(alias=alias, engine=entry["ENGINE"]))


def _postgres_url(entry: Mapping[str, Any]) -> str:
    """Return the libpq URL of an entry. A host may be a folder with a socket."""
    parameters = {
        name: str(value)
        for name, value in (entry.get("OPTIONS") or {}).items()
        if name not in NOT_LIBPQ
    }
    user = quote(str(entry.get("USER") or ""), safe="")
    password = quote(str(entry.get("PASSWORD") or ""), safe="")
    login = ""
    if user or password:
        login = f"{user}:{password}@" if password else f"{user}@"
    host = str(entry.get("HOST") or "")
    if host.startswith("/"):
        parameters["host"] = host
        host = ""
    port = f":{entry['PORT']}" if entry.get("PORT") else ""
    if port and not host:
        parameters["port"] = str(entry["PORT"])
        port = ""
    if ":" in host:
        host = f"[{host}]"
    name = quote(str(entry.get("NAME") or ""), safe="")
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"postgresql://{login}{host}{port}/{name}{query}"


# --- Apps ---


class _Apps:
    """One app for each database that backends use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._apps: dict[tuple[str | None, str | None], Mulligan] = {}

    def get(self, options: BackendOptions) -> Mulligan:
        """Return the app of a database. Move it if Django's database has another name now."""
        url = database_url(options)
        key = (options.database if options.url is None else None, options.url)
        app = self._apps.get(key)
        if app is not None and app.settings.database_url == url:
            return app
        with self._lock:
            app = self._apps.get(key)
            if app is None:
                app = self._apps[key] = _build_app(url, _shared_settings(key))
            if app.settings.database_url != url:
                app.close()
                app.settings = app.settings.model_copy(update={"database_url": url})
            return app


_apps = _Apps()


def _shared_settings(key: tuple[str | None, str | None]) -> dict[str, Any]:
    """Merge the settings of all backends on one database; a later backend wins."""
    merged: dict[str, Any] = {}
    for options in mulligan_backends().values():
        if key == (options.database if options.url is None else None, options.url):
            merged |= options.settings
    return merged


def _build_app(url: str, declared: Mapping[str, Any]) -> Mulligan:
    module = getattr(settings, "SETTINGS_MODULE", None) or "django"
    app = Mulligan(url, name=module.partition(".")[0], settings=dict(declared))
    app.around(attempt_connections)
    return app


def app_of(options: BackendOptions) -> Mulligan:
    """Return the app of a backend."""
    return _apps.get(options)


def get_app(backend: str = DEFAULT_BACKEND) -> Mulligan:
    """Return the app behind a backend in TASKS, to declare rules, dependencies and schedules."""
    backends = mulligan_backends()
    if backend not in backends:
        known = ", ".join(backends) or "none"
        message = f"no backend {backend!r} of Mulligan in TASKS. It has {known}."
        raise ImproperlyConfigured(message)
    return app_of(backends[backend])


# --- Transactions ---


def open_transaction(options: BackendOptions) -> Any:
    """Return Django's connection if it is in a transaction; None: nothing to join."""
    if options.database is None:
        return None
    connection = connections[options.database]
    if connection.in_atomic_block:
        return connection
    if connection.connection is not None and not connection.get_autocommit():
        return connection
    return None


# --- Tables and test databases ---


def migrate(app: Mulligan) -> None:
    """Create Mulligan's tables, or bring them up to date."""
    with closing(open_store(app.settings.database_url, schema=app.settings.schema_name)) as store:
        store.migrate()


_before_drop: list[Callable[[], None]] = []


def call_before_drop(close: Callable[[], None]) -> None:
    """Register what must be closed before Django drops a test database."""
    _before_drop.append(close)


def close_before_drop(app: Mulligan, database: str) -> None:
    """Close the app before Django drops a test database: PostgreSQL refuses while it is in use."""
    creation = connections[database].creation
    if getattr(creation, "closes_mulligan", False):
        return
    drop = creation.destroy_test_db

    def close_and_drop(*args: Any, **kwargs: Any) -> Any:
        for close in _before_drop:
            close()
        app.close()
        return drop(*args, **kwargs)

    creation.destroy_test_db = close_and_drop
    creation.closes_mulligan = True
