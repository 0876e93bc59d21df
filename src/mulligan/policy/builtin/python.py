"""Exception types of Python itself, and errno."""

from __future__ import annotations

import errno

from mulligan.policy.builtin import clients
from mulligan.policy.builtin.row import row, words
from mulligan.policy.codes import PROGRAMMING_ERROR


def _builtins(*names: str) -> tuple[str, ...]:
    return tuple(f"builtins.{name}" for name in names)


_OWN = (
    row(
        "mulligan.unavailable",
        "STORE_UNAVAILABLE",
        type=words(
            """
            mulligan.errors.StoreUnavailable mulligan.errors.UniqueRace mulligan.errors.WaitTimeout
            """
        ),
    ),
    row(
        "mulligan.refused",
        "REFUSED",
        type=words("mulligan.errors.Refused mulligan.errors.NotFound mulligan.errors.ConfigError"),
    ),
)

_BUILTIN = (
    row(
        PROGRAMMING_ERROR,
        "PROGRAMMING_ERROR",
        type=_builtins(
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
            "ModuleNotFoundError",
            "UnboundLocalError",
            "StopIteration",
            "StopAsyncIteration",
            "IndentationError",
        ),
    ),
    row(
        "py.impossible-memory",
        "INVALID_INPUT",
        type="builtins.MemoryError",
        message=r"\bunable to allocate \d+(?:\.\d+)? (?:[PEZ]iB)\b",
    ),
    row(
        "py.memory",
        "MEMORY",
        type=(
            *_builtins("MemoryError"),
            *words(
                """
            numpy._core._exceptions._ArrayMemoryError numpy.core._exceptions._ArrayMemoryError
            torch.cuda.OutOfMemoryError torch.OutOfMemoryError
            """
            ),
        ),
    ),
    row("py.unicode", "INVALID_INPUT", type=_builtins("UnicodeError", "UnicodeDecodeError", "UnicodeEncodeError")),
    row(
        "py.timeout",
        "TIMEOUT",
        type=(
            *_builtins("TimeoutError"),
            *words(
                """
            asyncio.exceptions.TimeoutError asyncio.TimeoutError concurrent.futures._base.TimeoutError
            concurrent.futures.TimeoutError socket.timeout subprocess.TimeoutExpired timeout
            """
            ),
        ),
    ),
    row("py.certificate", "CERTIFICATE", type=("ssl.SSLCertVerificationError", "ssl.CertificateError")),
    row(
        "py.ssl",
        "CERTIFICATE",
        type=words(
            """
            ssl.SSLError SSLError MaxRetryError ClientConnectorSSLError ClientConnectorCertificateError ConnectError
            ClientConnectorError
            """
        ),
        message=(
            r"\bSSL module is not available\b",
            r"\bCERTIFICATE_VERIFY_FAILED\b",
            r"\bcertificate verify failed\b",
            r"\bWRONG_VERSION_NUMBER\b",
            r"\bUNSUPPORTED_PROTOCOL\b",
            r"\bNO_PROTOCOLS_AVAILABLE\b",
            r"\bTLSV1_ALERT_PROTOCOL_VERSION\b",
            r"\bSSLV3_ALERT_HANDSHAKE_FAILURE\b",
            r"\bHANDSHAKE_FAILURE\b",
            r"\bDH_KEY_TOO_SMALL\b",
            r"\bUNSAFE_LEGACY_RENEGOTIATION_DISABLED\b",
            r"\bCA_MD_TOO_WEAK\b",
            r"\bhostname .{1,80} doesn't match\b",
            r"\bself[- ]signed certificate\b",
            r"\bKEY_VALUES_MISMATCH\b",
            r"\bUNKNOWN_CA\b",
            r"\bCERTIFICATE_REQUIRED\b",
        ),
    ),
    row(
        "py.tls-broken",
        "CONNECTION",
        type=words(
            """
            ssl.SSLEOFError ssl.SSLZeroReturnError ssl.SSLWantReadError ssl.SSLSyscallError
            """
        ),
    ),
    row("py.sharing", "BUSY", type=_builtins("PermissionError"), message=r"\bWinError 3[23]\b"),
    row("py.permission", "PERMISSION", type=_builtins("PermissionError")),
    row("py.not-found", "NOT_FOUND", type=_builtins("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")),
    row("py.exists", "ALREADY_EXISTS", type=_builtins("FileExistsError")),
    row(
        "py.connection",
        "CONNECTION",
        type=(
            *_builtins(
                "ConnectionError",
                "ConnectionResetError",
                "ConnectionRefusedError",
                "ConnectionAbortedError",
                "BrokenPipeError",
            ),
            *words(
                """
            http.client.IncompleteRead http.client.RemoteDisconnected http.client.BadStatusLine
            asyncio.exceptions.IncompleteReadError IncompleteRead
            """
            ),
        ),
    ),
    row("py.busy", "BUSY", type=_builtins("BlockingIOError", "InterruptedError")),
    row(
        "py.pool-broken",
        "PROCESS_KILLED",
        type=words(
            """
            concurrent.futures.process.BrokenProcessPool BrokenProcessPool WorkerLostError BrokenThreadPool
            BrokenExecutor
            """
        ),
    ),
    row("py.soft-limit", "TIMEOUT", type=words("SoftTimeLimitExceeded TimeLimitExceeded JobTimeoutException")),
)

_NAMES = (
    row("dns.again", "CONNECTION", provider_code=words("gai:-3 gai:-4 gai:2 gai:11002 EAI_AGAIN")),
    row("dns.unknown", "CONNECTION", provider_code=words("gai:-2 gai:-5 gai:8 gai:11001")),
    row("dns.impossible", "MISCONFIGURED", provider_code=("gai:-9", "gai:-6", "gai:-7", "gai:-8")),
    row("dns.failed", "CONNECTION", type=words("socket.gaierror socket.herror NameResolutionError gaierror")),
    row(
        "tls.certificate",
        "CERTIFICATE",
        provider_code=words(
            """
            ssl:CERTIFICATE_VERIFY_FAILED ssl:WRONG_VERSION_NUMBER ssl:UNSUPPORTED_PROTOCOL
            ssl:TLSV1_ALERT_PROTOCOL_VERSION ssl:SSLV3_ALERT_HANDSHAKE_FAILURE ssl:NO_PROTOCOLS_AVAILABLE
            ssl:DH_KEY_TOO_SMALL ssl:UNSAFE_LEGACY_RENEGOTIATION_DISABLED ssl:TLSV1_ALERT_UNKNOWN_CA
            ssl:KEY_VALUES_MISMATCH ssl:TLSV13_ALERT_CERTIFICATE_REQUIRED ssl:TLSV1_UNRECOGNIZED_NAME
            """
        ),
    ),
    row(
        "tls.broken",
        "CONNECTION",
        provider_code=words(
            """
            ssl:UNEXPECTED_EOF_WHILE_READING ssl:DECRYPTION_FAILED_OR_BAD_RECORD_MAC ssl:BAD_RECORD_MAC ssl:EOF
            ssl:RECORD_LAYER_FAILURE ssl:SHUTDOWN_WHILE_IN_INIT ssl:PROTOCOL_IS_SHUTDOWN
            ssl:APPLICATION_DATA_AFTER_CLOSE_NOTIFY ssl:SSLV3_ALERT_BAD_RECORD_MAC ssl:TLSV1_ALERT_INTERNAL_ERROR
            ssl:LENGTH_MISMATCH ssl:SSLV3_ALERT_UNEXPECTED_MESSAGE ssl:UNEXPECTED_MESSAGE ssl:TLSV1_ALERT_DECRYPT_ERROR
            ssl:TLSV1_ALERT_DECODE_ERROR ssl:TLSV1_ALERT_RECORD_OVERFLOW ssl:SYSCALL
            """
        ),
    ),
    row("tls.refused", "CERTIFICATE", provider_code="ssl:*"),
)

_ERRNO = (
    row("os.timeout", "TIMEOUT", errno=errno.ETIMEDOUT),
    row(
        "os.connection",
        "CONNECTION",
        errno=(
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.ECONNABORTED,
            errno.EPIPE,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.ENETDOWN,
            errno.EHOSTDOWN,
            errno.ENETRESET,
            errno.ESHUTDOWN,
            errno.ENOTCONN,
            errno.EPROTO,
            errno.EREMOTEIO,
        ),
    ),
    row("os.memory", "MEMORY", errno=errno.ENOMEM),
    row("os.disk-full", "DISK_FULL", errno=(errno.ENOSPC, errno.EDQUOT)),
    row(
        "os.too-many-files",
        "TOO_MANY_FILES",
        errno=(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EUSERS, errno.ENOLCK),
    ),
    row(
        "os.busy",
        "BUSY",
        errno=(
            errno.EAGAIN,
            errno.EBUSY,
            errno.ETXTBSY,
            errno.EINTR,
            errno.EDEADLK,
            errno.EADDRINUSE,
            errno.EINPROGRESS,
            errno.EALREADY,
        ),
    ),
    row("os.io", "IO_ERROR", errno=(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ECOMM)),
    row("os.permission", "PERMISSION", errno=(errno.EACCES, errno.EPERM, errno.EROFS)),
    row("os.not-found", "NOT_FOUND", errno=(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTBLK)),
    row("os.exists", "ALREADY_EXISTS", errno=(errno.EEXIST, errno.ENOTEMPTY)),
    row(
        "os.invalid",
        "INVALID_INPUT",
        errno=(
            errno.EINVAL,
            errno.ENAMETOOLONG,
            errno.ERANGE,
            errno.EDOM,
            errno.EFBIG,
            errno.EILSEQ,
            errno.E2BIG,
            errno.ELOOP,
            errno.EMSGSIZE,
        ),
    ),
    row(
        "os.impossible",
        "MISCONFIGURED",
        errno=(
            errno.EXDEV,
            errno.ENOEXEC,
            errno.ENOSYS,
            errno.EOPNOTSUPP,
            errno.EBADF,
            errno.ENOTTY,
            errno.EPROTONOSUPPORT,
            errno.EAFNOSUPPORT,
            errno.ENOPROTOOPT,
            errno.ENOTSOCK,
            errno.ESPIPE,
            errno.EMLINK,
        ),
    ),
)

RULES = (*_OWN, *_BUILTIN, *_NAMES, *clients.RULES, *_ERRNO)

# Asked only when nothing else, not even the text, has said anything.
LAST = (
    row(
        "client.refused",
        "HTTP_4XX",
        type=words(
            """
            openai.BadRequestError anthropic.BadRequestError openai.UnprocessableEntityError
            google.api_core.exceptions.BadRequest google.api_core.exceptions.InvalidArgument
            stripe.error.InvalidRequestError stripe.InvalidRequestError telegram.error.BadRequest
            """
        ),
    ),
    row(
        "client.missing",
        "MISSING",
        type=words(
            """
            openai.NotFoundError anthropic.NotFoundError google.api_core.exceptions.NotFound ResourceNotFoundError
            RepositoryNotFoundError EntryNotFoundError RevisionNotFoundError UnknownObjectException NoSuchKey
            """
        ),
    ),
    row(
        "smtp.type-address",
        "BAD_ADDRESS",
        type=("smtplib.SMTPRecipientsRefused", "smtplib.SMTPSenderRefused", "SMTPRecipientsRefused"),
    ),
    row("smtp.type-auth", "AUTH", type="smtplib.SMTPAuthenticationError"),
    row(
        "client.denied",
        "ACCESS_DENIED",
        type=("Forbidden", "PermissionDenied", "PermissionDeniedError", "AuthorizationException"),
    ),
    row("py.tls", "CONNECTION", type=("ssl.SSLError", "SSLError")),
    row("ssh.failed", "CONNECTION", type=words("SSHException TransportError NetworkError InterfaceError")),
    row("db.programming", "DATABASE_SCHEMA", type=("ProgrammingError", "NotSupportedError")),
    row("db.operational", "DATABASE_UNAVAILABLE", type=("OperationalError",)),
    row("py.handler-exit", "HANDLER_EXIT", type=_builtins("SystemExit", "GeneratorExit")),
    row("py.interrupted", "STOPPED", type=_builtins("KeyboardInterrupt")),
    row(
        "py.task-cancelled",
        "TASK_CANCELLED",
        type=words(
            """
            asyncio.exceptions.CancelledError concurrent.futures._base.CancelledError CancelledError
            """
        ),
    ),
    row(
        "py.undecodable-answer",
        "BAD_TRANSFER",
        type=words("json.decoder.JSONDecodeError JSONDecodeError requests.exceptions.JSONDecodeError"),
        message=(
            r"^Expecting value: line 1 column 1\b",
            r"\bExpecting value: line 1 column 1 \(char 0\)",
        ),
    ),
    row("py.not-json", "INVALID_INPUT", type=("json.decoder.JSONDecodeError", "JSONDecodeError")),
    row("py.lookup", "PROGRAMMING_ERROR", type=_builtins("LookupError", "BufferError")),
)
