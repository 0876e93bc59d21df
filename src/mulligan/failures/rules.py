r"""Rules are data: what a failure must look like, the code and class it then has, and what that changes.

    Rule("corrupt-input", program="ffmpeg", message=r"\bmoov atom not found\b", code="BAD_INPUT", cls="invalid_input")

Every condition that is given must hold; of several values for one condition any will do. A rule is checked when it
is made, and what is wrong with it names the rule: tables are read by people.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, NoReturn

from pydantic import ValidationError

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.errors import ConfigError
from mulligan.failures.codes import CODES
from mulligan.failures.regex import unfit
from mulligan.retries.backoff import Exponential, Fixed, Table
from mulligan.retries.policy import Policy, Then, as_ladder

ALARMS = ("", "none", "notice", "warning", "page")
NAMES = ("type", "provider_code", "grpc_status", "sqlstate", "program", "dependency", "verdict")
CONDITIONS = (*NAMES, "http_status", "errno", "exit_code", "signal", "message")
NUMBERS = ("http_status", "errno", "exit_code", "signal")
# What a public sentence may repeat of a failure: numbers and names, never texts.
PUBLIC_FIELDS = ("http_status", "exit_code", "signal", "errno", "program")

_ID = re.compile(r"[\w.:/-]{1,100}")
_CODE = re.compile(r"[A-Za-z][\w.:-]{0,99}")
_HOLE = re.compile(r"\{([^{}]*)\}")
_HUNDRED = re.compile(r"[1-5]xx")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a table.

    `type` is a class by its dotted name, or by its last word alone; a `*` at the end of a `provider_code` or a
    `sqlstate` stands for anything; `http_status` takes "5xx" too. `verdict` is a code or a class that the built-in
    table gives: so a rule can rename `TIMEOUT`, or all that is `rate_limited`, without knowing how it was found out.
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
    promise: str = ""  # what follows `public` while the job goes on, and only then
    max_retries: int | None = None
    backoff: Table | Exponential | Fixed | None = None
    wait_for_hint: bool = True
    then: Then | Sequence[Then] = ()
    alarm: str = ""
    runbook: str = ""
    shadow: bool = False

    def __post_init__(self) -> None:
        _check_words(self)
        _normalise(self)
        _check_message(self)
        _check_public(self)
        _check_terms(self)

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE

    @property
    def conditions(self) -> int:
        """How much it asks for: of two rules that match, the one that asks for more knows more."""
        return sum(bool(getattr(self, name)) for name in CONDITIONS)

    def terms(self) -> dict[str, Any]:
        """What it changes about retries and alarms, as plain data; empty for most."""
        if (
            self.wait_for_hint
            and not (self.backoff or self.then or self.promise or self.alarm or self.runbook)
            and self.max_retries is None
        ):
            return {}
        policy = Policy(
            max_retries=self.max_retries, backoff=self.backoff, then=as_ladder(self.then)
        )
        said = policy.to_plain()
        if not self.wait_for_hint:
            said["wait_for_hint"] = False
        return said | {
            name: value
            for name in ("promise", "alarm", "runbook")
            if (value := getattr(self, name))
        }

    def to_plain(self) -> dict[str, Any]:
        """As in TOML: only what was said."""
        said = {
            name: _plain(getattr(self, name))
            for name in ("id", *NAMES, *NUMBERS, "message", "code", "public")
        }
        said = {name: value for name, value in said.items() if value not in ((), [], "", None)}
        return (
            said | {"cls": str(self.cls)} | self.terms() | ({"shadow": True} if self.shadow else {})
        )

    @classmethod
    def from_plain(cls, said: Mapping[str, Any], where: str = "") -> Rule:
        """From TOML or a manifest; a name nobody knows gets the nearest one that exists."""
        called = f"rule {said.get('id', '?')!r}{where and f' in {where}'}"
        known = [spec.name for spec in fields(cls)]
        for name in said:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
                raise ConfigError(
                    f"{called}: unknown field {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )
        if missing := [name for name in ("id", "code", "cls") if name not in said]:
            raise ConfigError(f"{called}: {' and '.join(missing)} must be given")
        try:
            policy = Policy.from_plain(
                {name: said[name] for name in ("backoff", "then") if name in said}
            )
        except ValueError as error:
            raise ConfigError(f"{called}: {wrong_in(error)}") from error
        return cls(**{**said, "backoff": policy.backoff, "then": policy.then or ()})


def wrong_in(error: ValueError) -> str:
    """Each fault with its place, without what is for developers of a library."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())


def unchecked(name: str, **said: Any) -> Rule:
    """A row of the built-in table: a test has checked them all, so that no process has to do it at start."""
    rule = object.__new__(Rule)
    for field, value in {**_UNSAID, **said, "id": name}.items():
        _set(rule, field, value)
    _normalise(rule)
    return rule


_UNSAID = {spec.name: spec.default for spec in fields(Rule)}


def _normalise(rule: Rule) -> None:
    for name in NAMES:
        if getattr(rule, name) != ():
            _set(rule, name, tuple(_names(rule, name)))
    for name in NUMBERS:
        if getattr(rule, name) != ():
            _set(rule, name, tuple(_numbers(rule, name)))
    _set(rule, "message", tuple(_listed(rule.message)) if rule.message else ())
    _set(rule, "cls", _class(rule))


def _set(rule: Rule, name: str, value: Any) -> None:
    object.__setattr__(rule, name, value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _refuse(rule: Rule, why: str) -> NoReturn:
    message = f"rule {rule.id!r}: {why}"
    raise ConfigError(message)


def _check_words(rule: Any) -> None:
    if not isinstance(rule.id, str) or not _ID.fullmatch(rule.id):
        _refuse(rule, "an id is 1 to 100 letters, digits and . _ : / -")
    if not isinstance(rule.code, str) or not _CODE.fullmatch(rule.code):
        _refuse(
            rule, f"code {rule.code!r} must be a word of at most 100 letters, digits and . _ : -"
        )
    if not all(
        isinstance(text, str) and len(text) <= 500
        for text in (rule.public, rule.promise, rule.runbook)
    ):
        _refuse(rule, "public, promise and runbook are texts of at most 500 characters")
    if rule.alarm not in ALARMS:
        _refuse(rule, f"alarm {rule.alarm!r} is not one of {', '.join(ALARMS[1:])}")


def _class(rule: Any) -> Cls:
    if type(rule.cls) is Cls:
        return rule.cls
    known = [str(cls) for cls in Cls]
    if rule.cls in known:
        return Cls(rule.cls)
    near = difflib.get_close_matches(str(rule.cls), known, n=1, cutoff=0.4)
    _refuse(
        rule,
        f"unknown class {rule.cls!r}; "
        + (f"did you mean {near[0]!r}?" if near else ", ".join(known)),
    )


def _listed(value: Any) -> Any:
    return value if isinstance(value, tuple | list | range | set | frozenset) else (value,)


def _names(rule: Rule, name: str) -> Iterator[str]:
    for value in _listed(getattr(rule, name)):
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            _refuse(rule, f"{name} {value!r} must be a text of 1 to 200 characters")
        if "*" in value[:-1] or value == "*":
            _refuse(rule, f"{name} {value!r}: a * may only end a name")
        yield value


def _numbers(rule: Rule, name: str) -> Iterator[int]:
    for value in _listed(getattr(rule, name)):
        if name == "http_status" and isinstance(value, str) and _HUNDRED.fullmatch(value):
            yield from range(int(value[0]) * 100, int(value[0]) * 100 + 100)
        elif type(value) is not int:
            _refuse(rule, f"{name} {value!r} must be a whole number")
        elif name == "http_status" and not 100 <= value <= 599:
            _refuse(rule, f"http_status {value} is not between 100 and 599")
        else:
            yield value


def _check_message(rule: Any) -> None:
    if not rule.conditions:
        _refuse(rule, "it has no condition, so it would match every failure")
    for pattern in rule.message:
        if why := unfit(pattern, alone=rule.conditions == 1):
            _refuse(rule, f"message {pattern!r:.120} {why}")


def _check_public(rule: Rule) -> None:
    for hole in _HOLE.findall(rule.public):
        if hole not in PUBLIC_FIELDS:
            _refuse(
                rule, f"public may repeat {', '.join(PUBLIC_FIELDS)} of a failure, not {{{hole}}}"
            )


def _check_terms(rule: Any) -> None:
    if not isinstance(rule.shadow, bool) or not isinstance(rule.wait_for_hint, bool):
        _refuse(rule, "shadow and wait_for_hint are true or false")
    count = rule.max_retries
    if count is not None and (type(count) is not int or not 0 <= count < 2**31):
        _refuse(rule, f"max_retries {count!r} must be a whole number, at least 0")
    if count and not rule.retryable:
        _refuse(rule, f"class {rule.cls} is never retried, so max_retries says nothing")
    try:
        _set(rule, "then", as_ladder(rule.then))
    except (TypeError, ValueError) as error:
        _refuse(rule, str(error))
    if rule.backoff is not None and not isinstance(rule.backoff, Table | Exponential | Fixed):
        _refuse(rule, "backoff must be Table(...), Exponential(...) or Fixed(...)")


# How the built-in table is written: an id, a code of the registry, and what must hold.


def row(name: str, code: str, **conditions: Any) -> Rule:
    known = CODES[code]
    return unchecked(name, code=code, cls=known.cls, public=known.public, **conditions)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
