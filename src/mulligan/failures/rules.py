r"""Classification rules as data: conditions, the code and class they assign, retry terms.

    Rule("corrupt-input", program="ffmpeg", message=r"\bmoov atom not found\b",
         code="BAD_INPUT", cls="invalid_input")

A rule matches if all its conditions hold; a condition with several values holds if one of them
does. Rules are validated when they are created, and every error names the rule's id.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any, NoReturn

from pydantic import ValidationError

from mulligan.core.attempt import RETRYABLE, Alarm, Cls
from mulligan.core.errors import ConfigError
from mulligan.core.suggest import name_unknown_options
from mulligan.failures.codes import CODES
from mulligan.failures.regex import find_pattern_fault
from mulligan.retries.backoff import Backoff, check_backoff
from mulligan.retries.policy import Policy, Then, to_steps

NAME_CONDITIONS = (
    "type",
    "provider_code",
    "grpc_status",
    "sqlstate",
    "program",
    "dependency",
    "verdict",
)
NUMBER_CONDITIONS = ("http_status", "errno", "exit_code", "signal")
CONDITIONS = (*NAME_CONDITIONS, *NUMBER_CONDITIONS, "message")
# Fields of a failure that a public sentence may contain: numbers and names, never texts.
PUBLIC_FIELDS = ("http_status", "exit_code", "signal", "errno", "program")

_ID = re.compile(r"[\w.:/-]{1,100}")
_CODE = re.compile(r"[A-Za-z][\w.:-]{0,99}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_STATUS_CLASS = re.compile(r"[1-5]xx")
_MAX_TEXT = 500
_MAX_NAME = 200


@dataclass(frozen=True)
class Rule:
    """One row of a classification table.

    - `type`: an exception class, by its dotted name or by its class name alone.
    - `provider_code`, `sqlstate`: a trailing `*` matches any ending.
    - `http_status`: a number, or a class of them such as "5xx".
    - `verdict`: a code or a class that the built-in table assigned. With it a rule can rename
      `TIMEOUT`, or everything that is `rate_limited`, however that was found.
    - `alarm`: "page", "notify" or "none": how loud the death of a job is for operators.
    """

    id: str
    _: KW_ONLY
    type: str | Sequence[str] = ()
    provider_code: str | Sequence[str] = ()
    http_status: int | str | Sequence[int | str] = ()
    grpc_status: str | Sequence[str] = ()
    sqlstate: str | Sequence[str] = ()
    errno: int | Sequence[int] = ()
    exit_code: int | Sequence[int] = ()
    signal: int | Sequence[int] = ()
    program: str | Sequence[str] = ()
    dependency: str | Sequence[str] = ()
    verdict: str | Sequence[str] = ()
    message: str | Sequence[str] = ()
    code: str
    cls: Cls | str
    public: str = ""
    promise: str = ""  # appended to `public` while the job will still be retried
    max_retries: int | None = None
    backoff: Backoff | None = None
    wait_for_hint: bool = True
    then: Then | Sequence[Then] = ()
    runbook: str = ""
    alarm: Alarm | str = Alarm.NOTIFY
    shadow: bool = False

    def __post_init__(self) -> None:
        _check_texts(self)
        _normalise(self)
        _check_message(self)
        _check_public(self)
        _check_terms(self)

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE

    @property
    def condition_count(self) -> int:
        """Number of conditions. Of two rules that match, the one with more conditions wins."""
        return sum(bool(getattr(self, name)) for name in CONDITIONS)

    @cached_property
    def terms(self) -> Mapping[str, Any]:
        """The retry settings, runbook and alarm that this rule sets, as JSON; usually empty."""
        has_alarm = self.alarm != Alarm.NOTIFY
        has_terms = self.backoff or self.then or self.promise or self.runbook or has_alarm
        if self.wait_for_hint and self.max_retries is None and not has_terms:
            return {}
        policy = Policy(
            max_retries=self.max_retries, backoff=self.backoff, then=to_steps(self.then)
        )
        terms = policy.to_dict()
        if not self.wait_for_hint:
            terms["wait_for_hint"] = False
        for name in ("promise", "runbook"):
            value = getattr(self, name)
            if value:
                terms[name] = value
        if has_alarm:
            terms["alarm"] = str(self.alarm)
        return terms

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as they would be written in TOML."""
        data: dict[str, Any] = {}
        for name in ("id", *NAME_CONDITIONS, *NUMBER_CONDITIONS, "message", "code", "public"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            if value not in ([], "", None):
                data[name] = value
        data["cls"] = str(self.cls)
        data |= self.terms
        if self.shadow:
            data["shadow"] = True
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "") -> Rule:
        """Build a rule from TOML or from a manifest. `source` is named in errors."""
        label = f"rule {data.get('id', '?')!r}"
        if source:
            label += f" in {source}"
        _check_field_names(label, data, [spec.name for spec in fields(cls)])
        policy_fields = {name: data[name] for name in ("backoff", "then") if name in data}
        try:
            policy = Policy.from_dict(policy_fields)
        except ValueError as error:
            message = f"{label}: {format_validation_error(error)}"
            raise ConfigError(message) from error
        return cls(**{**data, "backoff": policy.backoff, "then": policy.then or ()})


Rule.__init__ = name_unknown_options(Rule.__init__)  # type: ignore[method-assign]


def _check_field_names(label: str, data: Mapping[str, Any], known: list[str]) -> None:
    for name in data:
        if name not in known:
            message = f"{label}: unknown field {name!r}{_suggest(name, known, cutoff=0.5)}"
            raise ConfigError(message)
    missing = [name for name in ("id", "code", "cls") if name not in data]
    if missing:
        message = f"{label}: missing {' and '.join(missing)}"
        raise ConfigError(message)


def _suggest(name: object, known: list[str], cutoff: float) -> str:
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def format_validation_error(error: ValueError) -> str:
    """Return the field and the message of every fault, without pydantic's hints for developers."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = []
    for fault in error.errors():
        field = ".".join(map(str, fault["loc"]))
        faults.append(f"{field}: {fault['msg']}")
    return "; ".join(faults)


def _build_unchecked(name: str, **values: Any) -> Rule:
    """Build a rule of the built-in table without validating it.

    A test validates the whole table, so that no process spends time on it at start-up.
    """
    rule = object.__new__(Rule)
    for field, value in {**_DEFAULTS, **values, "id": name}.items():
        _set(rule, field, value)
    _normalise(rule)
    return rule


_DEFAULTS = {spec.name: spec.default for spec in fields(Rule)}


def _normalise(rule: Rule) -> None:
    for name in NAME_CONDITIONS:
        if getattr(rule, name) != ():
            _set(rule, name, tuple(_names(rule, name)))
    for name in NUMBER_CONDITIONS:
        if getattr(rule, name) != ():
            _set(rule, name, tuple(_numbers(rule, name)))
    patterns = _as_collection(rule.message) if rule.message else ()
    _set(rule, "message", tuple(patterns))
    _set(rule, "cls", _class(rule))


def _set(rule: Rule, name: str, value: Any) -> None:
    object.__setattr__(rule, name, value)


def _refuse(rule: Rule, why: str) -> NoReturn:
    message = f"rule {rule.id!r}: {why}"
    raise ConfigError(message)


def _check_texts(rule: Any) -> None:
    if not isinstance(rule.id, str) or not _ID.fullmatch(rule.id):
        _refuse(rule, "invalid id. Use 1 to 100 letters, digits and . _ : / -.")
    if not isinstance(rule.code, str) or not _CODE.fullmatch(rule.code):
        advice = "Use a letter, then at most 99 letters, digits and . _ : -."
        _refuse(rule, f"invalid code {rule.code!r}. {advice}")
    for name in ("public", "promise", "runbook"):
        text = getattr(rule, name)
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            _refuse(rule, f"{name} must be a text of at most {_MAX_TEXT} characters")


def _class(rule: Any) -> Cls:
    if type(rule.cls) is Cls:
        return rule.cls
    known = [str(cls) for cls in Cls]
    if rule.cls in known:
        return Cls(rule.cls)
    hint = _suggest(rule.cls, known, cutoff=0.4) or f". Use one of {', '.join(known)}."
    _refuse(rule, f"unknown class {rule.cls!r}{hint}")


def _as_collection(value: Any) -> Any:
    if isinstance(value, tuple | list | range | set | frozenset):
        return value
    return (value,)


def _names(rule: Rule, name: str) -> Iterator[str]:
    for value in _as_collection(getattr(rule, name)):
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME:
            _refuse(rule, f"{name} {value!r} must be a text of 1 to {_MAX_NAME} characters")
        if "*" in value[:-1] or value == "*":
            _refuse(rule, f"{name} {value!r}: * is allowed only at the end of a name")
        yield value


def _numbers(rule: Rule, name: str) -> Iterator[int]:
    for value in _as_collection(getattr(rule, name)):
        if name == "http_status" and isinstance(value, str) and _STATUS_CLASS.fullmatch(value):
            first = int(value[0]) * 100
            yield from range(first, first + 100)
        elif type(value) is not int:
            _refuse(rule, f"{name} {value!r} must be a whole number")
        elif name == "http_status" and not 100 <= value <= 599:
            _refuse(rule, f"http_status {value} is not between 100 and 599")
        else:
            yield value


def _check_message(rule: Any) -> None:
    if not rule.condition_count:
        _refuse(rule, "it has no condition, so it would match every failure")
    for pattern in rule.message:
        fault = find_pattern_fault(pattern, only_condition=rule.condition_count == 1)
        if fault:
            _refuse(rule, f"message {pattern!r:.120} {fault}")


def _check_public(rule: Rule) -> None:
    for name in _PLACEHOLDER.findall(rule.public):
        if name not in PUBLIC_FIELDS:
            allowed = ", ".join(f"{{{field}}}" for field in PUBLIC_FIELDS)
            _refuse(rule, f"public contains {{{name}}}. Only {allowed} are allowed.")


def _check_terms(rule: Any) -> None:
    known = [str(alarm) for alarm in Alarm]
    if rule.alarm not in known:
        _refuse(rule, f"unknown alarm {rule.alarm!r}. Use one of {', '.join(known)}.")
    if not isinstance(rule.shadow, bool) or not isinstance(rule.wait_for_hint, bool):
        _refuse(rule, "shadow and wait_for_hint must be true or false")
    count = rule.max_retries
    if count is not None and (type(count) is not int or not 0 <= count < 2**31):
        _refuse(rule, f"max_retries {count!r} must be a whole number, at least 0")
    if count and not rule.retryable:
        _refuse(
            rule, f"class {rule.cls} is never retried, so max_retries has no effect. Remove it."
        )
    try:
        _set(rule, "then", to_steps(rule.then))
        if rule.backoff is not None:
            check_backoff(rule.backoff)
    except (TypeError, ValueError) as error:
        _refuse(rule, str(error))


# --- Notation of the built-in tables ---


def row(name: str, code: str, **conditions: Any) -> Rule:
    """Build a rule of the built-in table: an id, a code of the registry, and its conditions."""
    known = CODES[code]
    return _build_unchecked(name, code=code, cls=known.cls, public=known.public, **conditions)


def split_names(text: str) -> tuple[str, ...]:
    """Split a text into names at its white space."""
    return tuple(text.split())
