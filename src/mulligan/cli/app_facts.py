"""Read the settings of an app in a separate process: the supervisor imports no user code.

`python -m mulligan.cli.app_facts APP` imports the app and prints as JSON its settings and the
folders of its source files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from mulligan.config import Settings, read_database_url
from mulligan.core.errors import ConfigError, MulliganError
from mulligan.storage import use_apsw

URL_VARIABLE = "MULLIGAN_DATABASE_URL"


class AppImportFailed(MulliganError):
    """The app cannot be imported. Its traceback was already printed."""

    code = "APP_BROKEN"

    def __init__(self, message: str, folders: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.folders = folders  # of the source files that were imported


class AppFacts(NamedTuple):
    """Settings and source folders of an app, which the command line needs."""

    settings: Settings
    folders: Sequence[str]  # of its source files, installed packages excluded


def load_app_settings(app: str, flags: dict[str, Any]) -> Settings:
    """Return the settings of the app with the flags on top."""
    return load_app_facts(app, flags).settings


def load_app_facts(app: str, flags: dict[str, Any]) -> AppFacts:
    """Return the settings of the app with the flags on top, and its folders."""
    url, origin = read_database_url(flags)
    if origin == "flag":
        # An app without its own database must use this one too, in every process started from here.
        os.environ[URL_VARIABLE] = url
    set_flags = {name: value for name, value in flags.items() if value is not None}
    facts = read_app_facts(app)
    settings = facts.settings.with_values(set_flags, "flag")
    if origin != "default":
        # Not that of the app: the supervisor compares the two and refuses to work on both.
        settings = settings.with_values({"database_url": url}, origin)
    url = use_apsw(settings.database_url)
    return facts._replace(settings=settings.model_copy(update={"database_url": url}))


def read_app_facts(app: str) -> AppFacts:
    """Import the app in a child process. Return its settings and folders."""
    try:
        answer = _import_in_child(app)
    except KeyboardInterrupt:
        click.echo(f"mulligan: interrupted while {app} was imported", err=True)
        raise click.Abort from None
    if "error" not in answer:
        return AppFacts(Settings.from_json(answer["settings"]), answer["folders"])
    message = f"cannot load {app}: {answer['error']}"
    if answer["is_config_error"]:
        raise ConfigError(message)
    raise AppImportFailed(message, answer["folders"])


def _import_in_child(app: str) -> dict[str, Any]:
    """Return the answer of the child process. Ctrl-C reaches it first or us: both interrupt."""
    child = subprocess.run(
        [sys.executable, "-m", __name__, app], stdout=subprocess.PIPE, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        message = f"cannot load {app}: the import ended with exit code {child.returncode}"
        raise AppImportFailed(message) from None
    if "interrupted" in answer:
        raise KeyboardInterrupt
    return answer


# --- In the child process ---


def main() -> None:
    """Print the settings of the app named on the command line."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever the app prints while it is imported must not mix with the answer
    answer = json.dumps(_describe_app(sys.argv[1]))
    with os.fdopen(stdout, "w") as out:
        out.write(answer)
    os._exit(0)  # do not wait for threads that the app has started


def _describe_app(app: str) -> dict[str, Any]:
    from mulligan.worker.startup import load_app

    try:
        settings = load_app(app).settings.to_json()
        return {"settings": settings, "folders": sorted(_source_folders())}
    except ConfigError as error:
        return {"error": str(error), "is_config_error": True}
    except KeyboardInterrupt:
        return {"interrupted": True}
    except BaseException as error:  # noqa: BLE001 - importing the app may raise anything
        missing = _is_missing_module(error, app)
        if not missing:
            traceback.print_exc()
        advice = ". Start it in the folder that has this module" if missing else ""
        return {
            "error": f"{type(error).__name__}: {error}{advice}",
            "is_config_error": missing,
            "folders": sorted(_source_folders(error)),
        }


def _is_missing_module(error: BaseException, app: str) -> bool:
    """Return True if the app's own module was not found: a typo, where a traceback is no help."""
    module = app.partition(":")[0]
    return isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]


# --- Source files, for `mulligan worker --reload` ---


def _source_folders(error: BaseException | None = None) -> set[str]:
    """Return the folders of all imported source files, and of those that an error names."""
    installed = (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parent.parent),  # Mulligan itself
    )
    folders = set()
    for file in (*_imported_files(), *_files_of_error(error)):
        path = Path(file)
        if path.suffix == ".py" and not any(map(path.is_relative_to, installed)):
            folders.add(str(path.parent.absolute()))
    return folders


def _imported_files() -> Iterator[str]:
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield file


def _files_of_error(error: BaseException | None) -> Iterable[str]:
    """Yield the files of the traceback: modules that could not be imported are not in a list."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        yield error.filename
    if error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield frame.f_code.co_filename


if __name__ == "__main__":
    main()
