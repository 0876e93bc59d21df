"""Settings: their origins, what is refused, and the error messages."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mulligan.config import Settings, read_settings
from mulligan.core.errors import ConfigError
from mulligan.core.settings import DEFAULT_URL, ConnectionSettings, read_connection_settings


def read(
    tmp_path: Path,
    environ: dict[str, str] | None = None,
    toml: str = "",
    flags: dict[str, Any] | None = None,
):
    file = tmp_path / "mulligan.toml"
    file.write_text(toml)
    return read_settings(flags, environ=environ or {}, file=file)


def variable(name: str) -> str:
    return "MULLIGAN_" + name.upper().replace(".", "__")


def fields(model: type[BaseModel] = Settings, above: str = "") -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += fields(field.annotation, f"{above}{name}.")
        else:
            found.append((f"{above}{name}", field))
    return found


def numbers() -> list[str]:
    """Return the names of all numeric settings."""
    return sorted(name for name, field in fields() if _has_number(field.annotation))


def _has_number(annotation: Any) -> bool:
    if annotation in {int, float}:
        return True
    return any(_has_number(part) for part in typing.get_args(annotation))


def bound(name: str, side: type, attribute: str) -> float | None:
    field = dict(fields())[name]
    for part in [*field.metadata, *_metadata(field.annotation)]:
        if isinstance(part, side):
            return float(getattr(part, attribute))
        for inner in getattr(part, "metadata", []):
            if isinstance(inner, side):
                return float(getattr(inner, attribute))
    return None


def _metadata(annotation: Any) -> list[Any]:
    found = list(getattr(annotation, "__metadata__", ()))
    for part in typing.get_args(annotation):
        found += _metadata(part)
    return found


def test_the_numeric_settings_are_found():
    assert len(numbers()) >= 25
    assert {
        "worker.lease",
        "retry.max_retries",
        "retention.dead",
        "limits.payload",
        "web.port",
    } <= set(numbers())


@pytest.mark.parametrize("name", numbers())
def test_an_invalid_number_is_refused_with_its_name_and_origin(tmp_path, name):
    for value in ("nan", "inf", "-inf", "-1", "1e400", "1e18", "plenty", "", "0x10", "1,5", "None"):
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, {variable(name): value})
        assert name in str(caught.value), value
        assert f"from environment {variable(name)}" in str(caught.value), value
        assert str(caught.value).count(name + ":") == 1, f"repeated: {caught.value}"


@pytest.mark.parametrize("name", numbers())
def test_booleans_and_lists_are_no_numbers(tmp_path, name):
    section, _, field = name.rpartition(".")
    for value in ("true", "false", "[1]", '"plenty"', "nan", "-inf"):
        toml = f"[{section}]\n{field} = {value}\n" if section else f"{field} = {value}\n"
        with pytest.raises(ConfigError, match=name):
            read(tmp_path, toml=toml)


@pytest.mark.parametrize("name", numbers())
def test_bounds_are_legal_and_values_beyond_are_refused(tmp_path, name):
    compatible = {"worker.heartbeat": "0.001", "worker.lease": "315360000", "retry.base_delay": "0"}
    compatible["retry.max_delay"] = "315360000"
    compatible.pop(name, None)
    others = {variable(other): value for other, value in compatible.items()}
    if name == "worker.heartbeat":
        others[variable("worker.lease")] = "315360000"
    low, high = bound(name, annotated_types.Ge, "ge"), bound(name, annotated_types.Le, "le")
    above = bound(name, annotated_types.Gt, "gt")
    assert high is not None, "every number has an upper bound"
    for value in [value for value in (low, high) if value is not None]:
        if name == "worker.heartbeat" and value == high:
            continue  # must stay below the lease, which has the same end
        settings = read(
            tmp_path, others | {variable(name): f"{value:g}" if value < 1e6 else f"{value:.0f}"}
        )
        assert dict(settings.values())[name] == value
    beyond = [high * 2 + 1, -1.0 if low is None else low - 1]
    for value in beyond + ([above] if above is not None else []):
        with pytest.raises(ConfigError, match=name):
            read(tmp_path, others | {variable(name): f"{value:.0f}"})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"MULLIGAN_WORKER__HEARTBEAT": "30"},
            r"worker.*heartbeat \(30\.0\) must be shorter than lease \(30\.0\)",
        ),
        (
            {"MULLIGAN_WORKER__LEASE": "4"},
            r"worker.*heartbeat \(5\.0\) must be shorter than lease \(4\.0\)",
        ),
        ({"MULLIGAN_WORKER__LEASE": "2", "MULLIGAN_WORKER__HEARTBEAT": "2"}, "heartbeat.*lease"),
        (
            {"MULLIGAN_RETRY__BASE_DELAY": "7200"},
            r"retry.*base_delay \(7200\.0\) must not exceed max_delay",
        ),
        ({"MULLIGAN_RETRY__MAX_DELAY": "1"}, "base_delay.*max_delay"),
        ({"MULLIGAN_RETRY__JITTER": "some"}, "retry.jitter"),
        ({"MULLIGAN_RETRY__ENABLED": "perhaps"}, "retry.enabled"),
        ({"MULLIGAN_SCHEMA_NAME": "Robert'); DROP"}, "schema_name"),
    ],
)
def test_contradictory_settings_are_refused(tmp_path, environ, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, environ)


def test_a_lease_of_four_seconds_is_legal(tmp_path):
    environ = {
        variable(f"worker.{name}"): value
        for name, value in (("lease", "4"), ("heartbeat", "1"), ("sweep", "1"))
    }
    assert read(tmp_path, environ).worker.lease == 4


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MULLIGAN_RETRY__MAX_RETRYS", "MULLIGAN_RETRY__MAX_RETRIES"),
        ("MULLIGAN_RETRY_MAX_RETRIES", "MULLIGAN_RETRY__MAX_RETRIES"),
        ("MULLIGAN_WORKER__CONCURENCY", "MULLIGAN_WORKER__CONCURRENCY"),
        ("MULLIGAN_DATABASE", "MULLIGAN_DATABASE_URL"),
        ("MULLIGAN_DB_URL", "MULLIGAN_DATABASE_URL"),
        ("MULLIGAN_RETENTION__SUCEEDED", "MULLIGAN_RETENTION__SUCCEEDED"),
    ],
)
def test_an_unknown_name_gets_the_most_similar_one_as_suggestion(tmp_path, wrong, right):
    with pytest.raises(ConfigError, match=f"{wrong}.*did you mean {right}"):
        read(tmp_path, {wrong: "1"})


def test_a_suggestion_for_a_file_uses_the_spelling_of_files(tmp_path):
    with pytest.raises(ConfigError, match=r"retry.max_retrys.*did you mean retry\.max_retries"):
        read(tmp_path, toml="[retry]\nmax_retrys = 3\n")


@pytest.mark.parametrize(
    "toml",
    [
        "retry = 5\n",
        "[retry.max_retries]\nx = 1\n",
        "[nonsense]\nx = 1\n",
        "x = 1\n",
        "[[retry]]\nmax_retries = 3\n",
    ],
)
def test_a_file_of_the_wrong_structure_is_refused(tmp_path, toml):
    with pytest.raises(ConfigError):
        read(tmp_path, toml=toml)


def test_a_value_where_a_section_should_be_is_refused(tmp_path):
    for environ in (
        {"MULLIGAN_RETRY": "5"},
        {"MULLIGAN_RETRY": "5", "MULLIGAN_RETRY__MAX_RETRIES": "3"},
    ):
        for pairs in (environ, dict(reversed(environ.items()))):
            with pytest.raises(ConfigError, match=r"retry|RETRY"):
                read(tmp_path, pairs)


# --- Layers ---
def test_flags_override_environment_file_and_defaults_and_origins_are_known(
    tmp_path,
):
    toml = "[worker]\nconcurrency = 2\nrunners = 2\npoll = 2\n"
    environ = {"MULLIGAN_WORKER__CONCURRENCY": "3", "MULLIGAN_WORKER__RUNNERS": "3"}
    settings = read(tmp_path, environ, toml, {"worker.concurrency": 4, "worker.lease": None})
    assert (settings.worker.concurrency, settings.worker.runners, settings.worker.poll) == (4, 3, 2)
    origins = [
        settings.origin_of(f"worker.{name}") for name in ("concurrency", "runners", "poll", "lease")
    ]
    assert origins == [
        "flag",
        "environment MULLIGAN_WORKER__RUNNERS",
        str(tmp_path / "mulligan.toml"),
        "default",
    ]


def test_setting_one_value_keeps_the_others_of_its_section(tmp_path):
    settings = read(tmp_path, {"MULLIGAN_RETRY__MAX_RETRIES": "9"})
    assert (settings.retry.max_retries, settings.retry.base_delay) == (9, 30)


def test_two_readings_do_not_share_their_origins(tmp_path):
    first = read(tmp_path, {"MULLIGAN_RELEASE": "7"})
    second = read(tmp_path)
    assert (first.origin_of("release"), second.origin_of("release")) == (
        "environment MULLIGAN_RELEASE",
        "default",
    )


def test_other_environment_variables_are_no_settings(tmp_path):
    environ = {"MULLIGAN_ATTEMPT": "w/r", "MULLIGAN_TEST_X": "1", "PATH": "/bin", "MULLIGANX": "1"}
    assert read(tmp_path, environ).database_url == DEFAULT_URL


def test_the_environment_names_the_file(tmp_path):
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text('release = "blue"\n')
    assert read_settings(environ={"MULLIGAN_CONFIG": str(elsewhere)}).release == "blue"


@pytest.mark.parametrize("what", ["missing", "folder", "unreadable", "not TOML", "not UTF-8"])
def test_a_named_file_that_cannot_be_read_is_refused_with_its_name(tmp_path, what):
    file = tmp_path / "named.toml"
    if what == "folder":
        file.mkdir()
    elif what == "unreadable":
        if os.getuid() == 0:
            pytest.skip("root reads everything")
        file.touch(mode=0)
    elif what != "missing":
        file.write_bytes(b"= nonsense" if what == "not TOML" else b'release = "\xff"\n')
    with pytest.raises(ConfigError, match=r"named\.toml"):
        read_settings(environ={"MULLIGAN_CONFIG": str(file)})


def test_without_file_and_environment_the_defaults_apply(tmp_path):
    assert read_settings(environ={}, file=tmp_path / "none.toml") == Settings()


def test_settings_are_immutable():
    with pytest.raises(Exception, match="frozen"):
        Settings().worker.lease = 1  # type: ignore[misc]


def test_a_secret_in_a_url_is_not_shown_in_an_error(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, toml='database_url = ["postgresql://me:hunter2@db/x"]\n')
    assert "hunter2" not in str(caught.value)


def test_a_worker_refuses_invalid_settings_before_it_does_anything(tmp_path):
    env = {
        **os.environ,
        "MULLIGAN_WORKER__LEASE": str(math.nan),
        "MULLIGAN_DATABASE_URL": f"sqlite:///{tmp_path}/x.db",
    }
    code = "from mulligan import Mulligan; Mulligan()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "worker.lease" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- Error messages ---
def test_a_value_for_a_section_lists_the_settings_of_the_section(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"retry is a section, not a value \(from .*\.toml\); it has retry\.enabled",
    ):
        read(tmp_path, toml="retry = 5\n")
    with pytest.raises(
        ConfigError, match=r"MULLIGAN_RETRY is a section.*MULLIGAN_RETRY__MAX_RETRIES"
    ):
        read(tmp_path, {"MULLIGAN_RETRY": "5"})


def test_a_contradiction_names_the_origins_of_its_values(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"heartbeat \(9.0\).*lease \(8.0\), from .*\.toml and environment MULLIGAN_WOR",
    ):
        read(
            tmp_path, {"MULLIGAN_WORKER__HEARTBEAT": "9"}, "[worker]\nlease = 8\nconcurrency = 3\n"
        )


def test_a_name_without_similar_one_lists_the_sections(tmp_path):
    with pytest.raises(
        ConfigError, match=r"xyzzy: no such setting.*there are database_url.*worker"
    ):
        read(tmp_path, toml="xyzzy = 1\n")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[worker]\nlease = 'soon'\n", r"worker\.lease: .*got 'soon'.*, from .*\.toml"),
        ("[worker]\nconcurrency = 2.5\n", r"worker\.concurrency: .*got 2\.5.*, from .*\.toml"),
        ("[web]\nport = 70000\n", r"web\.port: .*got 70000.*, from .*\.toml"),
        ("notify_callers = 'perhaps'\n", r"notify_callers: .*got 'perhaps'.*, from .*\.toml"),
    ],
)
def test_a_wrong_type_names_the_field_the_value_and_the_file(tmp_path, toml, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, toml=toml)


def test_a_flag_is_named_as_origin_of_an_invalid_value(tmp_path):
    with pytest.raises(ConfigError, match=r"worker\.concurrency: .*got 0.*from flag"):
        read(tmp_path, flags={"worker.concurrency": 0})


def test_a_command_without_other_settings_connects_as_the_defaults_say():
    defaults, quick = Settings(), ConnectionSettings()

    for name in ("database_url", "schema_name", "listen_url", "notify_callers"):
        assert getattr(quick, name) == getattr(defaults, name)


def test_only_the_database_url_is_read_without_validation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", "sqlite:///here.db")
    found = read_connection_settings(None)
    flag = read_connection_settings("sqlite:///there.db")
    monkeypatch.setenv("MULLIGAN_DATABSE_URL", "sqlite:///typo.db")

    assert (found.database_url, found.origin_of("database_url")) == (
        "sqlite:///here.db",
        "environment MULLIGAN_DATABASE_URL",
    )
    assert flag.database_url == "sqlite:///there.db"
    assert read_connection_settings(None) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500_000_000),
        ("2GiB", 2 * 1024**3),
        ("1.5 GB", 1_500_000_000),
        ("512M", 512_000_000),
        ("64kB", 64_000),
        ("4096", 4096),
        ("0", 0),
    ],
)
def test_an_amount_of_memory_may_be_a_text(tmp_path, text, size):
    settings = read(tmp_path, {"MULLIGAN_WORKER__MAX_MEMORY_PER_RUNNER": text})
    assert settings.worker.max_memory_per_runner == size


@pytest.mark.parametrize("text", ["500 apples", "MB", "-5MB", "1e9", "true"])
def test_nonsense_for_an_amount_of_memory_is_refused_with_examples(tmp_path, text):
    with pytest.raises(ConfigError, match=r"worker\.max_memory_per_runner.*500MB or 2GiB"):
        read(tmp_path, {"MULLIGAN_WORKER__MAX_MEMORY_PER_RUNNER": text})
