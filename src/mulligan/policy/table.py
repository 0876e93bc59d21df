"""The built-in failure table, as data: what a row matches, and the code and class it gives.

Text is not matched here: structure says more and never lies about a number in a file name.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from mulligan.job import RETRYABLE, Cls


class Row(NamedTuple):
    """One rule. `types` are dotted names along the exception's bases, most special first."""

    id: str
    code: str
    cls: Cls
    public: str
    types: tuple[str, ...] = ()
    errnos: tuple[int, ...] = ()
    statuses: tuple[int, ...] = ()
    exits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE


def _builtins(*names: str) -> tuple[str, ...]:
    return tuple(f"builtins.{name}" for name in names)


PROGRAMMING_ERROR = "py.programming-error"
UNKNOWN = Row("unknown", "UNKNOWN_ERROR", Cls.UNKNOWN, "The job failed for a reason that is not known yet.")

ROWS: tuple[Row, ...] = (
    Row(
        PROGRAMMING_ERROR,
        "PROGRAMMING_ERROR",
        Cls.PERMANENT,
        "The job's code has an error; trying again would not help.",
        _builtins(
            "TypeError",
            "AttributeError",
            "NameError",
            "ImportError",
            "KeyError",
            "IndexError",
            "AssertionError",
            "NotImplementedError",
            "SyntaxError",
            "ZeroDivisionError",
            "RecursionError",
        ),
    ),
    Row(
        "py.invalid-input",
        "INVALID_INPUT",
        Cls.INVALID_INPUT,
        "The job's input is not valid.",
        ("pydantic_core._pydantic_core.ValidationError", "builtins.UnicodeError"),
    ),
    Row(
        "py.timeout",
        "TIMEOUT",
        Cls.TIMEOUT,
        "Something the job waited for took too long.",
        (
            "builtins.TimeoutError",
            "asyncio.exceptions.TimeoutError",
            "concurrent.futures._base.TimeoutError",
            "subprocess.TimeoutExpired",
        ),
        errnos=(errno.ETIMEDOUT,),
    ),
    Row(
        "py.certificate",
        "CERTIFICATE",
        Cls.PERMANENT,
        "The certificate of a server was not accepted.",
        ("ssl.SSLCertVerificationError",),
    ),
    Row(
        "py.connection",
        "CONNECTION",
        Cls.TRANSIENT,
        "A connection failed.",
        (
            "builtins.ConnectionError",
            "socket.gaierror",
            "socket.herror",
            "ssl.SSLError",
            "http.client.IncompleteRead",
            "http.client.RemoteDisconnected",
        ),
        errnos=(
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.ECONNABORTED,
            errno.EPIPE,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.ENETDOWN,
        ),
    ),
    Row("py.memory", "MEMORY", Cls.RESOURCE, "There was not enough memory.", _builtins("MemoryError"), (errno.ENOMEM,)),
    Row("py.disk-full", "DISK_FULL", Cls.RESOURCE, "The disk is full.", (), (errno.ENOSPC, errno.EDQUOT)),
    Row(
        "py.too-many-files",
        "TOO_MANY_FILES",
        Cls.RESOURCE,
        "Too many files are open.",
        (),
        (errno.EMFILE, errno.ENFILE),
    ),
    Row(
        "py.busy",
        "BUSY",
        Cls.TRANSIENT,
        "Something the job needs was busy.",
        _builtins("BlockingIOError", "InterruptedError"),
        (errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EINTR, errno.EDEADLK),
    ),
    Row("py.io", "IO_ERROR", Cls.TRANSIENT, "Reading or writing failed.", (), (errno.EIO, errno.ESTALE)),
    Row(
        "py.permission",
        "PERMISSION",
        Cls.PERMANENT,
        "The job may not do that here.",
        _builtins("PermissionError"),
        (errno.EACCES, errno.EPERM, errno.EROFS),
    ),
    Row(
        "py.not-found",
        "NOT_FOUND",
        Cls.PERMANENT,
        "A file the job needs is not there.",
        _builtins("FileNotFoundError", "NotADirectoryError", "IsADirectoryError"),
        (errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    ),
    Row(
        "py.handler-exit",
        "HANDLER_EXIT",
        Cls.UNKNOWN,
        "The job's code asked its process to exit.",
        _builtins("SystemExit", "KeyboardInterrupt", "GeneratorExit"),
    ),
    Row(
        "py.task-cancelled",
        "TASK_CANCELLED",
        Cls.UNKNOWN,
        "The job's code was cancelled from within.",
        ("asyncio.exceptions.CancelledError", "concurrent.futures._base.CancelledError"),
    ),
    Row(
        "mulligan.unavailable",
        "STORE_UNAVAILABLE",
        Cls.TRANSIENT,
        "The job database did not answer.",
        ("mulligan.errors.StoreUnavailable", "mulligan.errors.UniqueRace", "mulligan.errors.WaitTimeout"),
    ),
    Row(
        "mulligan.refused",
        "REFUSED",
        Cls.PERMANENT,
        "The job asked for something that was refused.",
        ("mulligan.errors.Refused", "mulligan.errors.NotFound", "mulligan.errors.ConfigError"),
    ),
    Row("process.timeout", "TIMEOUT", Cls.TIMEOUT, "A program took too long.", exits=(124,)),
    Row("process.not-runnable", "PROGRAM_MISSING", Cls.PERMANENT, "A program could not be run.", exits=(126, 127)),
    Row(
        "process.killed",
        "PROCESS_KILLED",
        Cls.RESOURCE,
        "A program was killed from outside.",
        exits=(129, 137, 143),
        signals=(1, 9, 15),
    ),
    Row(
        "process.crashed",
        "PROCESS_CRASHED",
        Cls.UNKNOWN,
        "A program crashed.",
        exits=(132, 134, 135, 136, 139),
        signals=(4, 6, 7, 8, 10, 11),
    ),
    Row("http.rate-limited", "RATE_LIMITED", Cls.RATE_LIMITED, "A service asked us to slow down.", statuses=(429, 509)),
    Row("http.timeout", "TIMEOUT", Cls.TIMEOUT, "A service took too long.", statuses=(408, 504, 522, 524)),
    Row("http.auth", "AUTH", Cls.AUTH, "A service did not accept our credentials.", statuses=(401, 403, 407, 511)),
    Row("http.quota", "QUOTA", Cls.QUOTA, "A service's quota is used up.", statuses=(402,)),
    Row(
        "http.refused",
        "HTTP_4XX",
        Cls.INVALID_INPUT,
        "A service refused the request.",
        statuses=(400, 404, 405, 406, 410, 413, 414, 415, 416, 422, 431),
    ),
    Row(
        "http.impossible",
        "HTTP_IMPOSSIBLE",
        Cls.PERMANENT,
        "A service cannot do what was asked.",
        statuses=(411, 412, 417, 426, 428, 451, 501, 505, 525, 526),
    ),
    Row(
        "http.unavailable",
        "HTTP_5XX",
        Cls.TRANSIENT,
        "A service is not available.",
        statuses=(421, 423, 425, 500, 502, 503, 520, 521, 523, 527, 529, 530),
    ),
    Row("mulligan.memory-limit", "MEMORY_LIMIT", Cls.RESOURCE, "The job used more memory than it may."),
    Row("mulligan.cancelled", "CANCELLED", Cls.CANCELLED, "The job was cancelled."),
    Row("http.full", "SERVICE_FULL", Cls.RESOURCE, "A service has no room left.", statuses=(507,)),
)

PROCESS_FAILED = Row("process.failed", "PROCESS_FAILED", Cls.UNKNOWN, "A program failed.")

BY_TYPE: dict[str, Row] = {name: row for row in ROWS for name in row.types}
BY_ERRNO: dict[int, Row] = {number: row for row in ROWS for number in row.errnos}
BY_STATUS: dict[int, Row] = {number: row for row in ROWS for number in row.statuses}
BY_EXIT: dict[int, Row] = {number: row for row in ROWS for number in row.exits}
BY_SIGNAL: dict[int, Row] = {number: row for row in ROWS for number in row.signals}
BY_CODE: dict[str, Row] = {row.code: row for row in reversed((*ROWS, PROCESS_FAILED, UNKNOWN))}
