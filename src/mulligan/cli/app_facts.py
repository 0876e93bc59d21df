"""What an app says about itself, asked in a process of its own: the supervisor imports no user code.

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
from mulligan.storage.url import own_library

URL_VARIABLE = "MULLIGAN_DATABASE_URL"


class AppImportFailed(MulliganError):
    """The app cannot be imported; its traceback was printed already."""

    code = "APP_BROKEN"


def settings_for(app: str, flags: dict[str, Any]) -> Settings:
    """Settings with the flags on top; where nobody else names a database, the app is asked for its own.

    Named outside the code, nothing needs to be asked: the first runner tells, and a worker starts the sooner.
    """
    given = read_settings(flags)
    if given.origin_of("database_url") == "flag":
        os.environ[URL_VARIABLE] = (
            given.database_url
        )  # for an app that names none, in every process we start
    if given.origin_of("database_url") == "default":
        facts = ask(app)
        given = read_settings(
            {**facts, **{name: value for name, value in flags.items() if value is not None}}
        )
    return given.model_copy(update={"database_url": own_library(given.database_url)})


def ask(app: str) -> dict[str, Any]:
    """Every setting of the app, by dotted name."""
    asked = subprocess.run(
        [sys.executable, "-m", __name__, app], stdout=subprocess.PIPE, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(asked.stdout)
    except ValueError:
        message = f"cannot load {app}: its process ended with {asked.returncode} before it answered"
        raise AppImportFailed(message) from None
    if "error" in answer:
        raise (ConfigError if answer["ours"] else AppImportFailed)(
            f"cannot load {app}: {answer['error']}"
        )
    return answer


def _answer(app: str) -> dict[str, Any]:
    from mulligan.worker.startup import load_app

    try:
        return dict(load_app(app).settings.values())
    except ConfigError as error:
        return {"error": str(error), "ours": True}
    except BaseException as error:  # noqa: BLE001 - whatever importing the app raised, the caller must hear it
        if not _not_there(error, app):
            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "ours": _not_there(error, app)}


def _not_there(error: BaseException, app: str) -> bool:
    """The module itself is missing: most likely a wrong word or a wrong directory, no use for a traceback."""
    return (
        isinstance(error, ModuleNotFoundError) and error.name == app.partition(":")[0].split(".")[0]
    )


def main() -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the app prints while it is imported is talk, not our answer
    answer = json.dumps(_answer(sys.argv[1]))
    with os.fdopen(stdout, "w") as out:
        out.write(answer)
    os._exit(0)  # threads the app has started must not hold us


if __name__ == "__main__":
    main()
