"""One way to say each fact: clients put gRPC names, SQLSTATEs and errno names where a provider's own code belongs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from errno import errorcode
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.core.json import encode

# All that is known of one failure, before anybody judges it. Plain values, safe and redacted, nothing live.


class Facts(NamedTuple):
    """One link of a failure. A cause and a leaf of a group are facts of their own.

    Provider codes are as the provider spells them (`SlowDown`, `insufficient_quota`); where a code is a number that
    another system uses too it carries its system: `smtp:550`, `smtp:5.1.1`, `mysql:1213`, `sqlite:5`, `curl:28`.
    """

    exception_types: tuple[
        str, ...
    ] = ()  # dotted names of the class and its bases, most special first
    message: str = ""
    trace: str = ""
    stderr: str = ""
    provider_codes: tuple[str, ...] = ()  # most telling first
    http_status: int | None = None
    grpc_status: str = ""  # UNAVAILABLE, …
    sqlstate: str = ""
    errno: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False  # a program that was given its own time limit
    program: str = ""
    uses: tuple[str, ...] = ()  # dependencies of the job
    retry_after: float | None = None  # a server's hint, or the handler's
    hint: str = ""  # where that hint was read: `Retry-After`, `wording`, …
    code: str = ""  # declared by the handler, like the two below
    public: str = ""
    detail: str = ""
    ended_by: str = ""  # ours: a code such as TIMEOUT or MEMORY_LIMIT, when we ended it ourselves
    frames: tuple[str, ...] = ()  # innermost last: `module:function` of the job's own code
    causes: tuple[Facts, ...] = ()  # the chain below, nearest first
    leaves: tuple[Facts, ...] = ()  # of an exception group
    implied: bool = False  # a cause only by being handled when the next one was raised


# Facts as they are kept beside an attempt, so that a later table can judge the same failure again.

FACTS = "facts"  # under which they stand in the private half, for programs
_APART = ("message", "stderr", "detail")  # kept as texts of their own, for people
_NAMES = ("exception_types", "provider_codes")
_PLAIN = (
    "http_status",
    "grpc_status",
    "sqlstate",
    "errno",
    "exit_code",
    "signal",
    "timed_out",
    "program",
    "code",
)
_plain_of = attrgetter(*_PLAIN)
_PLAIN_OF_NOTHING = _plain_of(Facts())
_CAUSES = 6
_WORDS = 500  # of a cause's message


def to_plain(facts: Facts) -> dict[str, Any]:
    """What is known of one link and those below it, without what is kept apart; empty for a plain exception."""
    said: dict[str, Any] = {}
    if facts.exception_types:
        said["exception_types"] = list(facts.exception_types)
    if facts.provider_codes:
        said["provider_codes"] = list(facts.provider_codes)
    plain = _plain_of(facts)
    if plain != _PLAIN_OF_NOTHING:
        said.update([pair for pair in zip(_PLAIN, plain, strict=True) if pair[1]])
    if facts.causes:
        said["causes"] = [_below(cause) for cause in facts.causes[:_CAUSES]]
    if facts.leaves:
        said["leaves"] = [_below(leaf) for leaf in facts.leaves[:_CAUSES]]
    return said


def _below(facts: Facts) -> dict[str, Any]:
    said = to_plain(facts)
    if facts.message:
        said["message"] = facts.message[:_WORDS]
    if facts.implied:
        said["implied"] = True
    return said


def from_attempt(evidence: str | None, private: str | None, uses: str = "") -> Facts | None:
    """The facts of a stored attempt; None where nothing of them was kept."""
    told, kept = _read(private), _read(evidence)
    if not told and not kept:
        return None
    said = told.get(FACTS)
    plain = {"exception_types": [told["exception"]]} if "exception" in told else {}
    plain |= {name: value for name, value in kept.items() if name in _PLAIN}
    plain |= said if isinstance(said, dict) else {}
    texts = {name: str(told[name]) for name in _APART if name in told}
    return _facts({**plain, **texts}, tuple(filter(None, uses.split(","))))


def _read(text: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _facts(said: Mapping[str, Any], uses: tuple[str, ...] = ()) -> Facts:
    known: dict[str, Any] = {
        name: said[name] for name in (*_PLAIN, *_APART, "implied") if name in said
    }
    known |= {name: tuple(str(value) for value in said.get(name, ())) for name in _NAMES}
    known |= {
        name: tuple(_facts(link) for link in said.get(name, ())) for name in ("causes", "leaves")
    }
    return Facts(**known, uses=uses)


# One way to say each fact: clients put gRPC names, SQLSTATEs and errno names where a provider's own code belongs.

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
    r"(?:[-_.]v?\d[\w.+-]*|\d+\.[\d.]+|[-_](?:linux|win|darwin|macos|static|x86|arm|amd)[\w.+-]*|\.exe)$",
    re.IGNORECASE,
)
_SQLSTATE = re.compile(r"(?=.*\d)(?=.*[A-Z])[0-9A-Z]{5}|(?:08|23|40|42|53|55|57)\d{3}")
_MAIL = re.compile(r"[45]\.\d{1,2}\.\d{1,3}")
_DEATHS = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15})
_OWN_EXITS = frozenset({"ffmpeg", "ffprobe", "ffplay"})  # for them 128 + n is no signal


def grpc_name(word: str) -> str:
    """`StatusCode.UNAVAILABLE`, `DeadlineExceeded`, `UNAVAILABLE`: the canonical name; empty if it is none."""
    return _GRPC_OF.get(word.rsplit(".", 1)[-1].replace("_", "").lower(), "")


def death(
    exit_code: int | None, signal: int | None, program: str = ""
) -> tuple[int | None, int | None]:
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
    if (
        facts.errno is not None and facts.errno < 0
    ):  # of a name that was not resolved: no errno of the system's
        facts = facts._replace(
            errno=None, provider_codes=(f"gai:{facts.errno}", *facts.provider_codes)
        )
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


# The private half of failures that differ in nothing but their words: what they have in common is kept once, and made

TOLD = 500  # characters of a message repeated in the trace
MESSAGE, TRACE = "message", "trace"  # what is of each failure alone


class Wording(dict[str, Any]):
    """All of it, with nothing said in the two texts that are of each failure alone. The trace has the same lines in
    each, before its words and after them.
    """

    __slots__ = ("head", "parts", "tail")

    def __init__(self, private: dict[str, Any], head: str, tail: str) -> None:
        super().__init__({**private, MESSAGE: "", TRACE: ""})
        self.head, self.tail = head, tail
        names = [*private]
        at, then = names.index(MESSAGE), names.index(TRACE)
        if then < at:
            message = "not how the texts of a failure follow each other"
            raise ValueError(message)
        said = [f"{encode(name)}:{encode(value)}" for name, value in private.items()]
        first = "{" + "".join([f"{one}," for one in said[:at]]) + f'"{MESSAGE}":"'
        between = (
            '"'
            + "".join([f",{one}" for one in said[at + 1 : then]])
            + f',"{TRACE}":"{inside(head)}'
        )
        last = f'{inside(tail)}"' + "".join([f",{one}" for one in said[then + 1 :]]) + "}"
        self.parts = (
            first,
            between,
            last,
        )  # of the text in JSON: the words stand between them, twice

    def whole(self, words: str) -> dict[str, Any]:
        return {**self, MESSAGE: words, TRACE: f"{self.head}{words[:TOLD]}{self.tail}"}

    def length(self, words: str) -> int:
        """Of the trace."""
        return len(self.head) + min(len(words), TOLD) + len(self.tail)

    def text(self, words: str) -> str:
        """The same as JSON: put together from parts, of which only the words are new."""
        first, between, last = self.parts
        said = inside(words)
        told = said if len(words) <= TOLD else inside(words[:TOLD])
        return f"{first}{said}{between}{told}{last}"


def inside(text: str) -> str:
    """What stands between the quotes of this text in JSON."""
    return encode_basestring_ascii(text)[1:-1]
