"""All that is known of one failure, before anybody judges it. Plain values, safe and redacted, nothing live."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """One link of a failure. A cause and a leaf of a group are facts of their own.

    Provider codes are as the provider spells them (`SlowDown`, `insufficient_quota`); where a code is a number that
    another system uses too it carries its system: `smtp:550`, `smtp:5.1.1`, `mysql:1213`, `sqlite:5`, `curl:28`.
    """

    exception_types: tuple[str, ...] = ()  # dotted names of the class and its bases, most special first
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
