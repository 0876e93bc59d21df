"""Read the settings of an app in a separate process: the supervisor imports no user code.

`python -m mulligan.cli.app_facts APP` imports the app and prints its settings as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from typing import Any

from mulligan.config import Settings, read_settings
from mulligan.core.errors import ConfigError, MulliganError
from mulligan.storage import use_apsw

URL_VARIABLE = "MULLIGAN_DATABASE_URL"


class AppImportFailed(MulliganError):
    """The app cannot be imported. Its traceback was already printed."""

    code = "APP_BROKEN"


def load_app_settings(app: str, flags: dict[str, Any]) -> Settings:
    """Return the settings with the flags on top.

    The app is imported only if no flag, variable or file names a database: it may set one in code.
    Otherwise the import is skipped and the worker starts sooner.
    """
    settings = read_settings(flags)
    origin = settings.origin_of("database_url")
    if origin == "flag":
        # An app without its own database must use this one too, in every process started from here.
        os.environ[URL_VARIABLE] = settings.database_url
    if origin == "default":
        set_flags = {name: value for name, value in flags.items() if value is not None}
        settings = read_settings({**read_app_settings(app), **set_flags})
    return settings.model_copy(update={"database_url": use_apsw(settings.database_url)})


def read_app_settings(app: str) -> dict[str, Any]:
    """Import the app in a child process. Return its settings by dotted name."""
    child = subprocess.run(
        [sys.executable, "-m", __name__, app], stdout=subprocess.PIPE, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        message = f"cannot load {app}: the import ended with exit code {child.returncode}"
        raise AppImportFailed(message) from None
    if "error" in answer:
        error_class = ConfigError if answer["is_config_error"] else AppImportFailed
        raise error_class(f"cannot load {app}: {answer['error']}")
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
        return dict(load_app(app).settings.values())
    except ConfigError as error:
        return {"error": str(error), "is_config_error": True}
    except BaseException as error:  # noqa: BLE001 - importing the app may raise anything
        missing = _is_missing_module(error, app)
        if not missing:
            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "is_config_error": missing}


def _is_missing_module(error: BaseException, app: str) -> bool:
    """Return True if the app's own module was not found: a typo, where a traceback is no help."""
    module = app.partition(":")[0]
    return isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]


if __name__ == "__main__":
    main()
