"""One typed settings value and its only reader: defaults, then mulligan.toml, then environment, then flags.

Every field says its unit. Nonsense is refused at start with the field's name; a name nobody knows gets the
nearest one that exists. `origin_of` remembers where each value came from, for `mulligan doctor`.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.errors import ConfigError

ENV_PREFIX = "MULLIGAN_"
FILE = "mulligan.toml"
DEFAULT_URL = "sqlite:///mulligan.db"
# Read from the environment by other parts; never settings.
NOT_SETTINGS = ("MULLIGAN_ATTEMPT", "MULLIGAN_CONFIG", "MULLIGAN_TEST_")

SECRET = ("mail.password",)  # what is never shown, wherever it came from
# What programs that jobs start have no business with.
OURS_ALONE = ("MULLIGAN_DATABASE_URL", "MULLIGAN_LISTEN_URL", "MULLIGAN_MAIL__PASSWORD")

DAY = 86_400.0
RETRIED = tuple(str(cls) for cls in Cls if cls in RETRYABLE)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "must be a finite number"
        raise ValueError(message)
    return value


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        message = "must be a number, not true or false"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _jitter(value: Any) -> Any:
    """One sentence for both kinds of answer."""
    if isinstance(value, str) and value in {"full", "equal", "none"}:
        return value
    try:
        share = float(_no_bool(value))
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        message = "must be full, equal, none or a share from 0 to 1"
        raise ValueError(message)
    return share


def _classes(value: Any) -> Any:
    """Names of classes, as a list or with commas between them; a wrong one gets the nearest that exists."""
    named = value.split(",") if isinstance(value, str) else value
    if not isinstance(named, list | tuple | None):
        message = "must be a list of classes, or a text with commas between them"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    if named is None:
        return None
    names = tuple(str(name).strip() for name in named)
    if not any(names):
        message = "names no class; to retry nothing at all, set retry.enabled to false"
        raise ValueError(message)
    for name in names:
        if name not in RETRIED:
            near = difflib.get_close_matches(name, RETRIED, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"classes that may be retried: {', '.join(RETRIED)}"
            )
            message = (
                f"class {name} is never retried"
                if name in list(Cls)
                else f"unknown class {name!r}; {hint}"
            )
            raise ValueError(message)
    return names


Positive = Annotated[
    float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(gt=0, le=10 * 365 * DAY)
]
NotNegative = Annotated[
    float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(ge=0, le=10 * 365 * DAY)
]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=1_000_000)]
Growth = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(ge=1, le=100)]
Jitter = Annotated[
    Literal["full", "equal", "none"] | Annotated[float, Field(ge=0, le=1)], BeforeValidator(_jitter)
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ClassRetrySection(Section):
    """What the system layer says of one class; a delay that is unset is the general one."""

    max_retries: Count | None = Field(
        None, description="retries after failures of this class; 0: none"
    )
    base_delay: NotNegative | None = Field(
        None, description="seconds before the first of them, before jitter"
    )
    max_delay: NotNegative | None = Field(None, description="seconds; the cap of the nominal delay")
    factor: Growth | None = Field(None, description="each delay is this many times the one before")
    jitter: Jitter | None = Field(None, description="as in `retry.jitter`")


class ClassRetrySections(Section):
    """Those that may be retried at all."""

    transient: ClassRetrySection = ClassRetrySection.model_construct()
    timeout: ClassRetrySection = ClassRetrySection.model_construct()
    rate_limited: ClassRetrySection = ClassRetrySection.model_construct()
    resource: ClassRetrySection = ClassRetrySection.model_construct()
    unknown: ClassRetrySection = ClassRetrySection.model_construct()


class RetrySection(Section):
    """The system layer of every retry policy."""

    enabled: bool = True
    only: Annotated[tuple[str, ...] | None, BeforeValidator(_classes)] = Field(
        None, description="classes that may be retried, and no others; unset: all that can be"
    )
    max_retries: Count = 3
    base_delay: NotNegative = Field(
        30.0, description="seconds before the first retry, before jitter"
    )
    max_delay: NotNegative = Field(3600.0, description="seconds; the cap of the nominal delay")
    factor: Growth = 2.0
    jitter: Jitter = "full"
    max_losses: Count = Field(
        2, description="how often the process may die under a job before it is dead"
    )
    max_snoozes: Count | None = None
    unknown_retries: Count = Field(
        2, description="retries of class unknown where no scope names a number"
    )
    classes: ClassRetrySections = ClassRetrySections.model_construct()

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        self._check_order("", self)
        for name in RETRIED:
            self._check_order(f"classes.{name}.", getattr(self.classes, name))
        return self

    def _check_order(self, name: str, said: RetrySection | ClassRetrySection) -> None:
        base = self.base_delay if said.base_delay is None else said.base_delay
        most = self.max_delay if said.max_delay is None else said.max_delay
        if base > most:
            message = f"{name}base_delay ({base}) must not exceed {name}max_delay ({most})"
            raise ValueError(message)


class WorkerSection(Section):
    """One worker process: a supervisor and its runners."""

    lease: Positive = Field(
        30.0, description="seconds without a renewal after which others may take its jobs"
    )
    heartbeat: Positive = Field(5.0, description="seconds between renewals")
    sweep: Positive = Field(
        5.0, description="seconds between looks for lost workers and due upkeep"
    )
    poll: Positive = Field(0.5, description="seconds between looks for work when no hint arrives")
    concurrency: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=10_000)] = 10
    runners: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=256)] = 1
    shutdown_grace: NotNegative = Field(
        30.0, description="seconds running jobs get to finish after SIGTERM"
    )
    kill_grace: NotNegative = Field(
        5.0, description="seconds between a request to stop and the kill"
    )
    neighbour_grace: NotNegative = Field(
        60.0, description="seconds a doomed runner's other jobs get to finish"
    )
    unknown_kind_after: Positive = Field(
        600.0, description="seconds a due job of a kind nobody knows waits"
    )
    state_dir: str = Field(
        "", description="where life files and work directories go; empty: chosen"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.heartbeat >= self.lease:
            message = f"heartbeat ({self.heartbeat}) must be shorter than lease ({self.lease})"
            raise ValueError(message)
        return self


class RetentionSection(Section):
    """How long finished work stays, in seconds."""

    succeeded: Positive = 7 * DAY
    dead: Positive = 90 * DAY
    cancelled: Positive = 30 * DAY
    batches: Positive = Field(
        30 * DAY,
        description="a batch with all its members, counted from its outcome, or its expiry if it has one",
    )
    events: Positive = 30 * DAY
    audit: Positive = Field(
        365 * DAY,
        description="seconds the events of what people did stay; never shorter than `retention.events`",
    )
    workers: Positive = 7 * DAY
    operations: Positive = Field(
        90 * DAY, description="seconds operations that have ended stay, with all their items"
    )
    records: Positive = Field(365 * DAY, description="summary records of what was pruned")


Few = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=200)]


class GuardSection(Section):
    """When a kind is held because its jobs die of one cause and none succeeds."""

    same_cause: Few = Field(
        5, description="jobs of several owners that died of one cause hold their kind; 0: never"
    )
    same_cause_owners: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=200)] = Field(
        2, description="how many owners are several"
    )
    same_cause_alone: Few = Field(
        20,
        description="the same for one owner, or where the cause may be a customer's own; 0: never",
    )


def _networks(value: Any) -> Any:
    """Networks as a list, or as a text with commas between them: `127.0.0.0/8, fd00::/8`."""
    named = value.split(",") if isinstance(value, str) else value
    if not isinstance(named, list | tuple):
        message = "must be a list of networks, or a text with commas between them"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    try:
        return tuple(str(ip_network(str(name).strip())) for name in named if str(name).strip())
    except ValueError as error:
        message = f"{error}; a network is written like 127.0.0.0/8 or fd00::/8"
        raise ValueError(message) from None


def _address(value: str) -> str:
    """Of a page of ours, to which a path is added: without a slash at its end."""
    parts = urlsplit(value)
    if value and (
        parts.scheme not in {"http", "https"} or not parts.hostname or not value.isprintable()
    ):
        message = "must be an address like https://jobs.example.com"
        raise ValueError(message)
    if parts.username is not None or any(sign in value for sign in " <>\"'"):
        message = "must not hold a name, a password, spaces or quotes: everybody who gets a message reads it"
        raise ValueError(message)
    return value.rstrip("/")


Networks = Annotated[tuple[str, ...], BeforeValidator(_networks)]
PublicUrl = Annotated[str, AfterValidator(_address)]


class MailSection(Section):
    """How e-mail is sent. Without a host none is, and nothing else changes."""

    host: str = Field(
        "", description="the SMTP server; empty: no mail is sent, and nothing else changes"
    )
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=65535)] = 587
    username: str = ""
    password: str = Field("", repr=False, description="never shown; better in `mail.password_file`")
    password_file: str = Field("", description="a file with the password in its first line")
    sender: str = Field(
        "", description="`Jobs <jobs@example.com>`; empty: mulligan@ and this host's name"
    )
    tls: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="`starttls` (port 587), `tls` (port 465), or `none`; certificates are always checked",
    )
    timeout: Annotated[
        float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(gt=0, le=60)
    ] = Field(
        30.0,
        description="seconds one mail may take, from connecting to the server's answer; at most 60",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password and self.password_file:
            message = "password and password_file are both set; which of them holds?"
            raise ValueError(message)
        return self


class NotifySection(Section):
    """Messages to people and programs about what happened."""

    gather: NotNegative = Field(
        5.0, description="seconds deaths of one cause are gathered before the first message"
    )
    update_every: Positive = Field(
        60.0, description="seconds before an incident's first update; doubles each time"
    )
    quiet: Positive = Field(
        900.0, description="seconds without another death after which an incident is over"
    )
    cap: Count = Field(
        20, description="messages about incidents per subscription, owner and hour; 0: no limit"
    )
    allow_private: Networks = Field(
        (),
        description="private networks webhooks may reach: `127.0.0.0/8, 10.1.0.0/16`; unset: not even loopback",
    )
    allow_http: bool = Field(default=False, description="webhooks without TLS to public addresses")
    runbook_url: PublicUrl = Field(
        "", description="where your runbook is; messages link to `#code` on it"
    )


Rate = Annotated[str, Field(pattern=r"^[1-9]\d{0,5}/(s|sec|second|m|min|minute|h|hour|d|day)$")]


class LimitSection(Section):
    payload: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = Field(
        1024 * 1024, description="bytes of JSON"
    )
    result: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = Field(
        1024 * 1024, description="bytes of JSON"
    )
    retries_by_hand: Rate | None = Field(
        None,
        description="how many jobs who acts as an owner may retry by hand: `20/h`; unset: as many as they like",
    )


class WebSection(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)] = 8321
    streams: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100_000)] = Field(
        1000, description="streams of events a server has open at once"
    )
    streams_per_key: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100_000)] = Field(
        100, description="how many of them with one key"
    )
    streams_per_owner: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=100_000)] = Field(
        300, description="how many of them with all keys of one owner together"
    )
    rate: Annotated[
        float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(ge=0, le=1_000_000)
    ] = Field(
        300.0,
        description="calls of the API a second with one key, counted by each server; `0`: no limit",
    )
    burst: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=1_000_000)] = Field(
        3000, description="how many of them at once"
    )
    public_url: PublicUrl = Field(
        "", description="where people reach the page; messages link to it"
    )


class AlertSection(Section):
    """What is worth a person's attention, and what is done about it at once."""

    enabled: bool = Field(default=True, description="`false`: nothing is looked for")
    act: bool = Field(
        default=True, description="`false`: alerts tell what they would do, and do nothing"
    )
    every: Annotated[
        float, BeforeValidator(_no_bool), AfterValidator(_finite), Field(ge=1, le=300)
    ] = Field(5.0, description="seconds between looks")
    rules: tuple[dict[str, Any], ...] = Field(
        (), description="changes to built-in alerts, by name, and your own ones"
    )


class LogSection(Section):
    """What a worker and the page log, on stderr."""

    format: Literal["text", "json"] = Field("text", description="`json`: one object a line")
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
    ] = Field("INFO", description="nothing below it is logged; the page takes `INFO` for `WARNING`")


class TraceSection(Section):
    """Spans, where the app has set up OpenTelemetry."""

    enabled: bool = Field(
        default=True, description="`false`: no spans, whatever the app has set up"
    )
    parenting: Literal["link", "child"] = Field(
        "link",
        description="an attempt's span begins a trace with a link to the enqueuer, or is a `child` of its span",
    )


class Settings(Section):
    """Everything that can be set. Read once, at start."""

    database_url: str = DEFAULT_URL
    schema_name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,39}$")] = "mulligan"
    listen_url: str = Field(
        "", description="a direct connection for LISTEN when database_url is a pooler"
    )
    notify_callers: bool = Field(
        default=True, description="NOTIFY inside callers' own transactions"
    )
    release: str = ""
    retry: RetrySection = RetrySection.model_construct()
    worker: WorkerSection = WorkerSection.model_construct()
    retention: RetentionSection = RetentionSection.model_construct()
    guards: GuardSection = GuardSection.model_construct()
    limits: LimitSection = LimitSection.model_construct()
    web: WebSection = WebSection.model_construct()
    mail: MailSection = MailSection.model_construct()
    notify: NotifySection = NotifySection.model_construct()
    alerts: AlertSection = AlertSection.model_construct()
    log: LogSection = LogSection.model_construct()
    trace: TraceSection = TraceSection.model_construct()
    rules: tuple[dict[str, Any], ...] = Field(
        (), description="rules of your own, tried before those in code"
    )
    packs: tuple[str, ...] = Field((), description="ready rule packs to use, by name or path")
    _origins: dict[str, str] = {}

    def origin_of(self, name: str) -> str:
        return self._origins.get(name, "default")

    def values(self) -> Iterator[tuple[str, Any]]:
        """Every value with its dotted name."""
        yield from _flat(self.model_dump())


Layer = tuple[str, Mapping[str, Any]]  # where it comes from, nested values


def read_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """The settings in force. `flags` are dotted names: {"worker.concurrency": 4}."""
    environ = os.environ if environ is None else environ
    layers = [_from_file(file or _file(environ)), _from_environment(environ)]
    layers.append(("flag", _nested({k: v for k, v in (flags or {}).items() if v is not None})))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        for name, value in _flat(values):
            _known(name, origin)
            _put(merged, name, value)
            origins[name] = f"{origin} {_spelled(name)}" if origin == "environment" else origin
    settings = _validated(merged, origins)
    settings._origins.update(origins)  # noqa: SLF001 - the reader fills what it alone knows
    return settings


def _file(environ: Mapping[str, str]) -> Path:
    """The one in this folder may be missing; one that somebody named may not."""
    named = environ.get("MULLIGAN_CONFIG", "")
    if named and not Path(named).exists():
        message = f"{named}: no such file (from environment MULLIGAN_CONFIG)"
        raise ConfigError(message)
    return Path(named or FILE)


def _from_file(path: Path) -> Layer:
    if not path.exists():
        return (str(path), {})
    import tomllib  # noqa: PLC0415 - many have none

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: not valid TOML: {error}"
        raise ConfigError(message) from error
    return (str(path), values)


def _from_environment(environ: Mapping[str, str]) -> Layer:
    found = {
        name.removeprefix(ENV_PREFIX).lower().replace("__", "."): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and not name.startswith(NOT_SETTINGS)
    }
    return ("environment", _nested(found))


def _validated(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as errors:
        raise ConfigError(
            "; ".join(_sentence(error, origins) for error in errors.errors())
        ) from None


def _sentence(error: Any, origins: Mapping[str, str]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    what = error["msg"].removeprefix("Value error, ")
    hidden = name in SECRET or name.endswith("_url")  # an address may hold a password
    unsaid = hidden or isinstance(error["input"], dict | BaseModel)
    given = "" if unsaid else f" (got {error['input']!r})"
    origin = _origin(name, what, origins)
    return f"{name}: {what}{given}{', from ' + origin if origin else ''}"


def _origin(name: str, what: str, origins: Mapping[str, str]) -> str:
    """Of a value its own; of a contradiction that of each value it speaks of and somebody has set."""
    if name in origins:
        return origins[name]
    fields = {field: origin for field, origin in origins.items() if field.startswith(f"{name}.")}
    spoken = [origin for field, origin in fields.items() if field.rpartition(".")[2] in what]
    return " and ".join(dict.fromkeys(spoken))


def _known(name: str, origin: str) -> None:
    names = [known for known, _ in Settings().values()]
    if name in names:
        return
    if hopeless := [
        cls
        for cls in Cls
        if cls not in RETRYABLE and f"{name}.".startswith(f"retry.classes.{cls}.")
    ]:
        message = f"{name}: class {hopeless[0]} is never retried, so nothing can be set for it (from {origin})"
        raise ConfigError(message)
    spell = _spelled if origin == "environment" else str
    inside = [known for known in names if known.startswith(f"{name}.")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if inside:
        hint = f" is a section, not a value (from {origin}); it has {', '.join(spell(known) for known in inside)}"
    elif near:
        hint = f": no such setting (from {origin}); did you mean {spell(near[0])}?"
    else:
        firsts = dict.fromkeys(known.partition(".")[0] for known in names)
        hint = f": no such setting (from {origin}); there are {', '.join(spell(first) for first in firsts)}"
    message = f"{spell(name)}{hint}"
    raise ConfigError(message)


def _spelled(name: str) -> str:
    return ENV_PREFIX + name.upper().replace(".", "__")


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        _put(nested, name, value)
    return nested


def _put(nested: dict[str, Any], name: str, value: Any) -> None:
    *above, last = name.split(".")
    for part in above:
        below: Any = nested.setdefault(part, {})
        if not isinstance(below, dict):
            message = f"{name}: {part} is a value, not a section"
            raise ConfigError(message)
        nested = below
    nested[last] = value
