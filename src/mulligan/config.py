"""Settings and their reader: defaults, then code, mulligan.toml, the environment and flags.

The description of each setting is printed in docs/reference/settings.md. Invalid values are refused
at start with the name of the setting, and an unknown name gets a suggestion. `origin_of` remembers
where each value came from, for `mulligan doctor`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.errors import ConfigError
from mulligan.core.setting_types import (
    DAY,
    RETRYABLE_CLASSES,
    Count,
    Growth,
    Integer,
    Jitter,
    Networks,
    NotNegative,
    Number,
    Positive,
    PublicUrl,
    RetryClasses,
    Seconds,
    Size,
    SmallCount,
)
from mulligan.core.settings import (
    DEFAULT_SCHEMA,
    DEFAULT_URL,
    PASSED_SETTINGS,
    Layer,
    flatten,
    nest,
    origin_of_layer,
    outside_layers,
    put_value,
    variable_name,
)

SECRET_SETTINGS = ("mail.password",)  # values that are never shown
# Settings of an app that are not stored in its manifest: secrets, and where the manifest is.
UNPUBLISHED_SETTINGS = (
    *SECRET_SETTINGS,
    "database_url",
    "listen_url",
    "schema_name",
    "release",
    "worker.state_dir",
)
# Variables that are removed from the environment of programs that jobs start.
PRIVATE_VARIABLES = (
    "MULLIGAN_DATABASE_URL",
    "MULLIGAN_LISTEN_URL",
    "MULLIGAN_MAIL__PASSWORD",
    PASSED_SETTINGS,
)


class Section(BaseModel):
    """Base class of the sections of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ClassRetrySection(Section):
    """Retries of one failure class. Unset values fall back to the section `retry`."""

    max_retries: Count | None = Field(
        None, description="retries after failures of this class; 0: none"
    )
    base_delay: NotNegative | None = Field(
        None, description="seconds before the first of these retries, before jitter"
    )
    max_delay: NotNegative | None = Field(
        None, description="seconds; upper limit of the delay before jitter"
    )
    factor: Growth | None = Field(None, description="growth of the delay with each retry")
    jitter: Jitter | None = Field(None, description="as in `retry.jitter`")


class ClassRetrySections(Section):
    """Retries by failure class, for the classes that can be retried."""

    transient: ClassRetrySection = ClassRetrySection.model_construct()
    timeout: ClassRetrySection = ClassRetrySection.model_construct()
    rate_limited: ClassRetrySection = ClassRetrySection.model_construct()
    resource: ClassRetrySection = ClassRetrySection.model_construct()
    unknown: ClassRetrySection = ClassRetrySection.model_construct()


class RetrySection(Section):
    """Defaults of all retry policies."""

    enabled: bool = True
    only: RetryClasses | None = Field(
        None, description="the only classes that may be retried; unset: all that can be"
    )
    max_retries: Count = 3
    base_delay: NotNegative = Field(
        30.0, description="seconds before the first retry, before jitter"
    )
    max_delay: NotNegative = Field(
        3600.0, description="seconds; upper limit of the delay before jitter"
    )
    factor: Growth = 2.0
    jitter: Jitter = "full"
    max_losses: Count = Field(
        2, description="how often a job may lose its process before it is dead"
    )
    max_snoozes: Count | None = None
    unknown_retries: Count = Field(
        2, description="retries of class unknown, unless a policy sets a number"
    )
    classes: ClassRetrySections = ClassRetrySections.model_construct()

    @model_validator(mode="after")
    def _check_delays(self) -> Self:
        self._check_order("", self)
        for name in RETRYABLE_CLASSES:
            self._check_order(f"classes.{name}.", getattr(self.classes, name))
        return self

    def _check_order(self, prefix: str, section: RetrySection | ClassRetrySection) -> None:
        base = self.base_delay if section.base_delay is None else section.base_delay
        limit = self.max_delay if section.max_delay is None else section.max_delay
        if base > limit:
            message = f"{prefix}base_delay ({base}) must not exceed {prefix}max_delay ({limit})"
            raise ValueError(message)


class WorkerSection(Section):
    """Workers: a supervisor process and its runner processes."""

    lease: Positive = Field(
        30.0, description="seconds without a renewal after which other workers recover its jobs"
    )
    heartbeat: Positive = Field(5.0, description="seconds between renewals")
    sweep: Positive = Field(
        5.0, description="seconds between sweeps for lost workers and other upkeep"
    )
    poll: Positive = Field(0.5, description="seconds between polls for work without a notification")
    concurrency: Annotated[Integer, Field(ge=1, le=10_000)] = 10
    runners: Annotated[Integer, Field(ge=1, le=256)] = 1
    max_jobs_per_runner: Count = Field(
        0, description="jobs after which a runner is replaced by a new one; 0: never"
    )
    max_memory_per_runner: Size = Field(
        0,
        description=(
            "memory, such as `500MB`, above which a runner is replaced by a new one (Linux); "
            "0: never"
        ),
    )
    shutdown_grace: NotNegative = Field(
        30.0, description="seconds that running jobs may take to finish after SIGTERM"
    )
    kill_grace: NotNegative = Field(
        5.0, description="seconds between the request to stop and the kill of a process"
    )
    neighbour_grace: NotNegative = Field(
        60.0,
        description="seconds that other jobs may take to finish in a runner that will be killed",
    )
    unknown_kind_after: Positive = Field(
        86_400.0, description="seconds after which a due job of an unknown kind is dead"
    )
    fast: bool = Field(
        True,
        description="use accelerators where they apply; false: the general path for every job",
    )
    state_dir: str = Field(
        "", description="directory of lock files and work directories; empty: chosen automatically"
    )

    @model_validator(mode="after")
    def _check_heartbeat(self) -> Self:
        if self.heartbeat >= self.lease:
            message = f"heartbeat ({self.heartbeat}) must be shorter than lease ({self.lease})"
            raise ValueError(message)
        return self


class RetentionSection(Section):
    """How long finished work is stored, in seconds."""

    succeeded: Positive = 7 * DAY
    dead: Positive = 90 * DAY
    cancelled: Positive = 30 * DAY
    batches: Positive = Field(
        30 * DAY,
        description=(
            "seconds a batch is stored with all its members, counted from its outcome, "
            "or from its expiry if it has one"
        ),
    )
    events: Positive = 30 * DAY
    audit: Positive = Field(
        365 * DAY,
        description=(
            "seconds that actions of people are stored; never shorter than `retention.events`"
        ),
    )
    workers: Positive = 7 * DAY
    logs: Positive = Field(
        14 * DAY,
        description="seconds that log records and stacks of failed attempts are stored",
    )
    operations: Positive = Field(
        90 * DAY, description="seconds that finished operations are stored with their items"
    )
    records: Positive = Field(
        365 * DAY,
        description="seconds that records of pruned jobs are stored, and causes after a death",
    )


class GuardSection(Section):
    """Kind breaker: hold a kind when its jobs die of one cause and none succeeds."""

    same_cause: SmallCount = Field(
        5, description="deaths of one cause, over several owners, that hold a kind; 0: never"
    )
    same_cause_owners: Annotated[Integer, Field(ge=1, le=200)] = Field(
        2, description="number of owners that count as several"
    )
    same_cause_alone: SmallCount = Field(
        20,
        description=(
            "deaths of one cause that hold a kind if only one owner is affected, or if the cause "
            "may lie with the owner; 0: never"
        ),
    )


class MailSection(Section):
    """E-mail. Without a host, no mail is sent."""

    host: str = Field("", description="SMTP server; empty: no mail is sent")
    port: Annotated[Integer, Field(ge=1, le=65535)] = 587
    username: str = ""
    password: str = Field("", repr=False, description="never shown; `mail.password_file` is safer")
    password_file: str = Field("", description="file with the password in its first line")
    sender: str = Field(
        "", description="such as `Jobs <jobs@example.com>`; empty: mulligan@ and the host name"
    )
    tls: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description=(
            "`starttls` (port 587), `tls` (port 465), or `none`; certificates are always checked"
        ),
    )
    timeout: Annotated[Seconds, Field(gt=0, le=60)] = Field(
        30.0,
        description="seconds for one mail, from connecting to the server's reply; at most 60",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password and self.password_file:
            message = "password and password_file are both set. Set only one of them."
            raise ValueError(message)
        return self


class NotifySection(Section):
    """Notifications to people and programs."""

    gather: NotNegative = Field(
        5.0, description="seconds that deaths of one cause are collected before the first message"
    )
    update_every: Positive = Field(
        60.0, description="seconds before the first update of an incident; doubles each time"
    )
    quiet: Positive = Field(
        900.0, description="seconds without another death after which an incident is closed"
    )
    cap: Count = Field(
        20, description="messages about incidents per subscription, owner and hour; 0: no limit"
    )
    allow_private: Networks = Field(
        (),
        description=(
            "private networks that webhooks may reach: `127.0.0.0/8, 10.1.0.0/16`; "
            "unset: none, not even loopback"
        ),
    )
    allow_http: bool = Field(
        default=False, description="allow webhooks without TLS to public addresses"
    )
    runbook_url: PublicUrl = Field(
        "", description="URL of your runbook; messages link to `#code` in it"
    )


Rate = Annotated[str, Field(pattern=r"^[1-9]\d{0,5}/(s|sec|second|m|min|minute|h|hour|d|day)$")]


class LimitSection(Section):
    """Sizes and rates."""

    payload: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = Field(
        1024 * 1024, description="bytes of JSON"
    )
    result: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = Field(
        1024 * 1024, description="bytes of JSON"
    )
    retries_by_hand: Rate | None = Field(
        None,
        description="manual retries per owner, such as `20/h`; unset: no limit",
    )


class BrandSection(Section):
    """Name and look of the status pages that customers open."""

    name: Annotated[str, Field(max_length=60)] = Field(
        "", description="shown at the top of status pages; empty: no name"
    )
    color: Annotated[str, Field(pattern=r"^(#[0-9a-fA-F]{6})?$")] = Field(
        "", description="accent colour of status pages, such as `#0a6847`"
    )
    logo: str = Field("", description="file of a logo for status pages: .svg, .png, .jpg or .webp")


class WebSection(Section):
    """HTTP API and dashboard."""

    host: str = "127.0.0.1"
    port: Annotated[Integer, Field(ge=0, le=65535)] = 8321
    streams: Annotated[Integer, Field(ge=0, le=100_000)] = Field(
        1000, description="event streams that a server has open at once"
    )
    streams_per_key: Annotated[Integer, Field(ge=0, le=100_000)] = Field(
        100, description="event streams with one key"
    )
    streams_per_owner: Annotated[Integer, Field(ge=0, le=100_000)] = Field(
        300, description="event streams with all keys of one owner together"
    )
    rate: Annotated[Number, Field(ge=0, le=1_000_000)] = Field(
        300.0,
        description="API calls per second with one key, counted by each server; `0`: no limit",
    )
    burst: Annotated[Integer, Field(ge=1, le=1_000_000)] = Field(
        3000, description="API calls at once with one key"
    )
    public_url: PublicUrl = Field(
        "", description="URL of the dashboard for people; messages link to it"
    )
    brand: BrandSection = BrandSection.model_construct()


class AlertSection(Section):
    """Alerts and their automatic actions."""

    enabled: bool = Field(default=True, description="`false`: no alert is evaluated")
    act: bool = Field(
        default=True, description="`false`: alerts report their actions but do not perform them"
    )
    every: Annotated[Seconds, Field(ge=1, le=300)] = Field(
        5.0, description="seconds between evaluations"
    )
    rules: tuple[dict[str, Any], ...] = Field(
        (), description="changes of built-in alerts, by name, and your own alerts"
    )


class LogSection(Section):
    """Log of workers and of the web server, on stderr."""

    format: Literal["text", "json"] = Field("text", description="`json`: one object per line")
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
    ] = Field(
        "INFO", description="lowest level that is logged; the web server raises `INFO` to `WARNING`"
    )


class TraceSection(Section):
    """Spans, if the app has set up OpenTelemetry."""

    enabled: bool = Field(
        default=True, description="`false`: no spans, even if the app has set up OpenTelemetry"
    )
    parenting: Literal["link", "child"] = Field(
        "link",
        description=(
            "`link`: the span of an attempt starts a trace and links to the enqueue; "
            "`child`: it is a child of the enqueue's span"
        ),
    )


class Settings(Section):
    """All settings. Read once, at start."""

    database_url: str = DEFAULT_URL
    schema_name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,39}$")] = DEFAULT_SCHEMA
    listen_url: str = Field(
        "", description="URL of a direct connection for LISTEN, if `database_url` is a pooler"
    )
    notify_callers: bool = Field(
        default=True, description="send NOTIFY within callers' transactions"
    )
    release: str = ""
    metrics_prefix: Annotated[str, Field(pattern=r"^([a-zA-Z_][a-zA-Z0-9_]{0,39})?$")] = Field(
        "mulligan_", description="what the names of all metrics begin with; empty: nothing"
    )
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
        (), description="your own rules, tried before those in code"
    )
    packs: tuple[str, ...] = Field((), description="rule packs to use, by name or path")
    _origins: dict[str, str] = {}

    def origin_of(self, name: str) -> str:
        """Return where the value of a setting came from."""
        return self._origins.get(name, "default")

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield every setting as (dotted name, value)."""
        yield from flatten(self.model_dump())

    def with_values(self, values: Mapping[str, Any], origin: str) -> Settings:
        """Return a copy with other values by dotted name."""
        merged = {**dict(self.values()), **values}
        return _build(nest(merged), {**self._origins, **dict.fromkeys(values, origin)})

    def with_declared(self, declared: Mapping[str, Any], origin: str) -> Settings:
        """Return a copy with an app's values for settings that nothing else has set.

        Ignores names that this version does not know: the app may use a newer one.
        """
        unset = {name for name, _ in self.values()} - self._origins.keys()
        new = {name: value for name, value in declared.items() if name in unset}
        return self.with_values(new, origin) if new else self

    def to_json(self) -> str:
        """Return values and origins as JSON, for another process."""
        return json.dumps({"values": dict(self.values()), "origins": self._origins})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` wrote."""
        passed = json.loads(text)
        return _build(nest(passed["values"]), passed["origins"])


# --- Reader ---

CODE = "code"  # origin of what an app declares: Mulligan(settings={"worker.lease": 30})


def read_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    declared: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    flag_origin: str = "flag",
) -> Settings:
    """Read the settings. `flags` have dotted names: {"worker.concurrency": 4}.

    `declared` are those that an app declares in its code; file, environment and flags win.
    """
    outside = outside_layers(flags or {}, environ, file, flag_origin)
    return _build(*_merge([(CODE, declared or {}), *outside]))


def read_database_url(flags: Mapping[str, Any]) -> tuple[str, str]:
    """Return the database URL of flags, environment or file, and its origin.

    Other settings are not validated: an app may declare what completes them.
    """
    merged, origins = _merge(outside_layers(flags, None, None, "flag"))
    return merged.get("database_url", DEFAULT_URL), origins.get("database_url", "default")


def check_declared(declared: Any) -> dict[str, Any]:
    """Check the settings that an app declares. Return them by dotted name as JSON values.

    They must be valid by themselves, so that no variable can hide a mistake in the code.
    """
    if not isinstance(declared, Mapping):
        message = f"settings must be a dict such as {{'worker.lease': 30}}, not {declared!r:.80}"
        raise ConfigError(message)
    names = [name for name, _ in flatten(declared)]
    values = dict(_build(*_merge([(CODE, declared)])).values())
    try:
        checked: dict[str, Any] = json.loads(json.dumps({name: values[name] for name in names}))
    except (TypeError, ValueError) as error:
        message = f"settings: {error}. Use texts, numbers, true, false, lists and dicts."
        raise ConfigError(message) from None
    return checked


def _merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return nested values and the origin of each. Later layers win."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        for name, value in flatten(values):
            _check_known(name, origin)
            put_value(merged, name, value)
            origins[name] = origin_of_layer(origin, name)
    return merged, origins


def _build(merged: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    settings = _validate(merged, origins)
    settings._origins.update(origins)  # noqa: SLF001 - only the reader knows them
    return settings


def _validate(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as invalid:
        sentences = [_describe_error(error, origins) for error in invalid.errors()]
        raise ConfigError("; ".join(sentences)) from None


def _describe_error(error: Any, origins: Mapping[str, str]) -> str:
    """Return a sentence with the setting, the problem, the value and its origin."""
    name = ".".join(str(part) for part in error["loc"])
    problem = error["msg"].removeprefix("Value error, ")
    secret = name in SECRET_SETTINGS or name.endswith("_url")  # a URL may contain a password
    shown = not secret and not isinstance(error["input"], dict | BaseModel)
    value = f" (got {error['input']!r})" if shown else ""
    origin = _find_origin(name, problem, origins)
    source = f", from {origin}" if origin else ""
    return f"{name}: {problem}{value}{source}"


def _find_origin(name: str, problem: str, origins: Mapping[str, str]) -> str:
    """Return where a setting came from.

    For a contradiction between settings, return the origin of each setting involved.
    """
    if name in origins:
        return origins[name]
    involved = [
        origin
        for field, origin in origins.items()
        if field.startswith(f"{name}.") and field.rpartition(".")[2] in problem
    ]
    return " and ".join(dict.fromkeys(involved))


def _check_known(name: str, origin: str) -> None:
    """Raise ConfigError for an unknown name, with a suggestion."""
    names = [known for known, _ in Settings().values()]
    if name in names:
        return
    for cls in Cls:
        if cls not in RETRYABLE and f"{name}.".startswith(f"retry.classes.{cls}."):
            message = f"{name}: class {cls} is never retried, so it has no settings (from {origin})"
            raise ConfigError(message)
    spell = variable_name if origin == "environment" else str
    message = f"{spell(name)}{_suggest(name, names, origin, spell)}"
    raise ConfigError(message)


def _suggest(name: str, names: list[str], origin: str, spell: Callable[[str], str]) -> str:
    inside = [known for known in names if known.startswith(f"{name}.")]
    if inside:
        listed = ", ".join(map(spell, inside))
        return f" is a section, not a value (from {origin}); it has {listed}"
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if similar:
        return f": no such setting (from {origin}); did you mean {spell(similar[0])}?"
    sections = dict.fromkeys(known.partition(".")[0] for known in names)
    return f": no such setting (from {origin}); there are {', '.join(map(spell, sections))}"
