"""Facts about a failure before it is classified: their fields, canonical form and storage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from errno import errorcode
from operator import attrgetter
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """All that is known about one exception: simple values, bounded and redacted.

    The causes of an exception and the leaves of an exception group are facts themselves.

    Provider codes are spelled as the provider does (`SlowDown`, `insufficient_quota`). A number
    that other systems use too is prefixed with its system: `smtp:550`, `smtp:5.1.1`, `mysql:1213`,
    `sqlite:5`, `curl:28`.
    """

    exception_types: tuple[str, ...] = ()  # dotted names: the class, then its bases
    message: str = ""
    trace: str = ""
    stderr: str = ""
    provider_codes: tuple[str, ...] = ()  # most specific first
    http_status: int | None = None
    grpc_status: str = ""  # canonical name such as UNAVAILABLE
    sqlstate: str = ""
    errno: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False  # a program that ran into the time limit of its caller
    program: str = ""
    uses: tuple[str, ...] = ()  # dependencies of the job
    retry_after: float | None = None  # seconds, from the server or the handler
    retry_after_source: str = ""  # where it was found: `Retry-After`, `wording`, …
    code: str = ""  # declared by the handler, as are `public` and `detail`
    public: str = ""
    detail: str = ""
    ended_by: str = ""  # TIMEOUT, MEMORY_LIMIT, … if Mulligan ended the attempt
    frames: tuple[str, ...] = ()  # `module:function` of the job's frames, innermost last
    causes: tuple[Facts, ...] = ()  # the cause chain, nearest first
    leaves: tuple[Facts, ...] = ()  # of an exception group
    implied: bool = False  # from `__context__`: it was being handled, not named with `raise … from`
    step: str = ""  # in which the attempt failed, without its key


TRACE_MESSAGE_LIMIT = 500  # characters of the message that the trace repeats
SOURCE_MARK = "    | "  # before a line of code in a trace

# --- Storage: a later rule table can classify a stored failure again ---

FACTS_KEY = "facts"  # key in the private part of a failure
_TEXT_FIELDS = ("message", "stderr", "detail")  # stored under keys of the private part
_LIST_FIELDS = ("exception_types", "provider_codes")
_SCALAR_FIELDS = (
    "http_status",
    "grpc_status",
    "sqlstate",
    "errno",
    "exit_code",
    "signal",
    "timed_out",
    "program",
    "code",
    "step",
)
_get_scalars = attrgetter(*_SCALAR_FIELDS)
_EMPTY_SCALARS = _get_scalars(Facts())
_MAX_CAUSES = 6
_MAX_CAUSE_MESSAGE = 500


def encode_facts(facts: Facts) -> dict[str, Any]:
    """Return the facts and their causes as JSON, without the texts that are stored separately."""
    encoded: dict[str, Any] = {}
    if facts.exception_types:
        encoded["exception_types"] = list(facts.exception_types)
    if facts.provider_codes:
        encoded["provider_codes"] = list(facts.provider_codes)
    scalars = _get_scalars(facts)
    if scalars != _EMPTY_SCALARS:
        encoded.update([pair for pair in zip(_SCALAR_FIELDS, scalars, strict=True) if pair[1]])
    if facts.causes:
        encoded["causes"] = [_encode_cause(cause) for cause in facts.causes[:_MAX_CAUSES]]
    if facts.leaves:
        encoded["leaves"] = [_encode_cause(leaf) for leaf in facts.leaves[:_MAX_CAUSES]]
    return encoded


def _encode_cause(facts: Facts) -> dict[str, Any]:
    encoded = encode_facts(facts)
    if facts.message:
        encoded["message"] = facts.message[:_MAX_CAUSE_MESSAGE]
    if facts.implied:
        encoded["implied"] = True
    return encoded


def load_facts(evidence: str | None, private: str | None, uses: str = "") -> Facts | None:
    """Return the facts of a stored attempt, or None if nothing was stored.

    `evidence` and `private` are its JSON columns, `uses` its dependencies, separated by commas.
    """
    private_part = _parse_object(private)
    public_part = _parse_object(evidence)
    if not private_part and not public_part:
        return None
    encoded: dict[str, Any] = {}
    if "exception" in private_part:
        encoded["exception_types"] = [private_part["exception"]]
    encoded |= {name: value for name, value in public_part.items() if name in _SCALAR_FIELDS}
    stored = private_part.get(FACTS_KEY)
    if isinstance(stored, dict):
        encoded |= stored
    encoded |= {name: str(private_part[name]) for name in _TEXT_FIELDS if name in private_part}
    return _decode_facts(encoded, tuple(filter(None, uses.split(","))))


def _parse_object(text: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _decode_facts(encoded: Mapping[str, Any], uses: tuple[str, ...] = ()) -> Facts:
    values: dict[str, Any] = {}
    for name in (*_SCALAR_FIELDS, *_TEXT_FIELDS, "implied"):
        if name in encoded:
            values[name] = encoded[name]
    for name in _LIST_FIELDS:
        values[name] = tuple(str(value) for value in encoded.get(name, ()))
    for name in ("causes", "leaves"):
        values[name] = tuple(_decode_facts(cause) for cause in encoded.get(name, ()))
    return Facts(**values, uses=uses)


# --- Canonical form ---

_ERRNO_OF = {name: number for number, name in errorcode.items()}
GRPC_STATUSES = frozenset(
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
_GRPC_STATUS_OF = {name.replace("_", "").lower(): name for name in GRPC_STATUSES}
_BUILD_SUFFIX = re.compile(
    r"(?:[-_.]v?\d[\w.+-]*|\d+\.[\d.]+|[-_](?:linux|win|darwin|macos|static|x86|arm|amd)[\w.+-]*|\.exe)$",
    re.IGNORECASE,
)
_SQLSTATE = re.compile(r"(?=.*\d)(?=.*[A-Z])[0-9A-Z]{5}|(?:08|23|40|42|53|55|57)\d{3}")
_ENHANCED_MAIL_STATUS = re.compile(r"[45]\.\d{1,2}\.\d{1,3}")
FATAL_SIGNALS = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15})
# These programs use exit codes above 128 for errors, not for signals.
_HIGH_EXIT_CODES = frozenset({"ffmpeg", "ffprobe", "ffplay"})


def canonical_grpc_status(name: str) -> str:
    """Return the canonical name of a gRPC status, or "" if `name` is none.

    `StatusCode.UNAVAILABLE`, `Unavailable` and `UNAVAILABLE` are the same status.
    """
    last_part = name.rsplit(".", 1)[-1]
    letters = last_part.replace("_", "").lower()
    return _GRPC_STATUS_OF.get(letters, "")


def split_exit_status(
    exit_code: int | None, signal: int | None, program: str = ""
) -> tuple[int | None, int | None]:
    """Return (exit code, signal), of which at most one is set.

    A shell reports a death by signal n as exit code 128 + n, Python as -n.
    """
    if signal is not None:
        return None, signal
    if exit_code is None:
        return None, None
    if exit_code < 0:
        return None, -exit_code
    if exit_code - 128 in FATAL_SIGNALS and program not in _HIGH_EXIT_CODES:
        return None, exit_code - 128
    return exit_code, None


def base_program_name(program: str) -> str:
    """Remove version, platform and extension: `ffmpeg-linux-x86_64-v7.0.2` is `ffmpeg`."""
    return _BUILD_SUFFIX.sub("", program) or program


def normalise_facts(facts: Facts) -> Facts:
    """Move every fact to its field, and return the same object if nothing had to move.

    Clients put gRPC names, SQLSTATEs and errno names where the provider's code belongs.
    """
    has_status = facts.exit_code is not None or facts.errno is not None or facts.timed_out
    if not has_status and not facts.provider_codes and not facts.program:
        return facts
    if facts.program:
        facts = facts._replace(program=base_program_name(facts.program))
    for code in facts.provider_codes:
        facts = _normalise_code(facts, code)
    if facts.errno is not None and facts.errno < 0:  # an error of the name resolver
        codes = (f"gai:{facts.errno}", *facts.provider_codes)
        facts = facts._replace(errno=None, provider_codes=codes)
    if facts.timed_out:
        # The caller killed the program at its time limit: the signal is a consequence.
        return facts._replace(exit_code=124, signal=None)
    exit_code, signal = split_exit_status(facts.exit_code, facts.signal, facts.program)
    if (exit_code, signal) != (facts.exit_code, facts.signal):
        facts = facts._replace(exit_code=exit_code, signal=signal)
    return facts


def _normalise_code(facts: Facts, code: str) -> Facts:
    """Copy a provider code that is something else (a gRPC status, an errno, …) to its field."""
    if not facts.grpc_status and code.isupper() and (name := canonical_grpc_status(code)):
        return facts._replace(grpc_status=name)
    if not facts.sqlstate and _SQLSTATE.fullmatch(code):
        return facts._replace(sqlstate=code)
    if facts.errno is None and code in _ERRNO_OF:
        return facts._replace(errno=_ERRNO_OF[code])
    if code.startswith("ORA-"):
        return facts._replace(provider_codes=(f"ora:{code[4:]}", *facts.provider_codes))
    if _ENHANCED_MAIL_STATUS.fullmatch(code):
        return facts._replace(provider_codes=(f"smtp:{code}", *facts.provider_codes))
    return facts
