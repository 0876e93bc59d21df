"""One way to say each fact: clients put gRPC names, SQLSTATEs and errno names where a provider's own code belongs."""

from __future__ import annotations

import re
from errno import errorcode

from mulligan.policy.facts import Facts

_NUMBER_OF = {name: number for number, name in errorcode.items()}
GRPC = frozenset(
    [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ]
)
_GRPC_OF = {name.replace("_", "").lower(): name for name in GRPC}
_ADDED = re.compile(
    r"(?:[-_.]v?\d[\w.+-]*|\d+\.[\d.]+|[-_](?:linux|win|darwin|macos|static|x86|arm|amd)[\w.+-]*|\.exe)$", re.IGNORECASE
)
_SQLSTATE = re.compile(r"(?=.*\d)(?=.*[A-Z])[0-9A-Z]{5}|(?:08|23|40|42|53|55|57)\d{3}")
_MAIL = re.compile(r"[45]\.\d{1,2}\.\d{1,3}")
_DEATHS = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15})
_OWN_EXITS = frozenset({"ffmpeg", "ffprobe", "ffplay"})  # for them 128 + n is no signal


def grpc_name(word: str) -> str:
    """`StatusCode.UNAVAILABLE`, `DeadlineExceeded`, `UNAVAILABLE`: the canonical name; empty if it is none."""
    return _GRPC_OF.get(word.rsplit(".", 1)[-1].replace("_", "").lower(), "")


def death(exit_code: int | None, signal: int | None, program: str = "") -> tuple[int | None, int | None]:
    """(exit code, signal): a shell reports a death by signal n as 128 + n, Python as −n. They are the same."""
    if exit_code is None or signal is not None:
        return (None if signal is not None else exit_code), signal
    if exit_code < 0:
        return None, -exit_code
    if exit_code - 128 in _DEATHS and program not in _OWN_EXITS:
        return None, exit_code - 128
    return exit_code, None


def plain_name(program: str) -> str:
    """Without what a package adds: `ffmpeg-linux-x86_64-v7.0.2`, `ffmpeg.exe`, `ffmpeg-7.1` are ffmpeg."""
    return _ADDED.sub("", program) or program


def normal(facts: Facts) -> Facts:
    """The same facts, each in its own place."""
    placed = facts.exit_code is None and facts.errno is None and not facts.timed_out
    if placed and not facts.provider_codes and not facts.program:
        return facts
    if facts.program:
        facts = facts._replace(program=plain_name(facts.program))
    for code in facts.provider_codes:
        facts = _placed(facts, code)
    if facts.errno is not None and facts.errno < 0:  # of a name that was not resolved: no errno of the system's
        facts = facts._replace(errno=None, provider_codes=(f"gai:{facts.errno}", *facts.provider_codes))
    if facts.timed_out:  # whoever set the limit killed it: that is the reason, not the signal
        return facts._replace(exit_code=124, signal=None)
    exit_code, signal = death(facts.exit_code, facts.signal, facts.program)
    if (exit_code, signal) != (facts.exit_code, facts.signal):
        facts = facts._replace(exit_code=exit_code, signal=signal)
    return facts


def _placed(facts: Facts, code: str) -> Facts:
    """A provider's code, where it belongs if it is none."""
    if not facts.grpc_status and code.isupper() and (name := grpc_name(code)):
        return facts._replace(grpc_status=name)
    if not facts.sqlstate and _SQLSTATE.fullmatch(code):
        return facts._replace(sqlstate=code)
    if facts.errno is None and code in _NUMBER_OF:
        return facts._replace(errno=_NUMBER_OF[code])
    if code.startswith("ORA-"):
        return facts._replace(provider_codes=(f"ora:{code[4:]}", *facts.provider_codes))
    if _MAIL.fullmatch(code):
        return facts._replace(provider_codes=(f"smtp:{code}", *facts.provider_codes))
    return facts
