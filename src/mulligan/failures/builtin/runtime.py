"""Rules about exit codes and signals of programs, exception types of Python, and errno."""

from __future__ import annotations

import errno

from mulligan.failures.builtin import libraries
from mulligan.failures.codes import PROGRAMMING_ERROR_RULE, SCHEMA_RULE, UNAVAILABLE_RULE
from mulligan.failures.rules import row, split_names

# --- Exit codes and signals ---

_FFMPEG = ("ffmpeg", "ffprobe", "ffplay")
# ffmpeg exits with the low byte of its negative error number: 256 − errno, or that of an ffmpeg tag.
_FFMPEG_EXITS = (
    row("ffmpeg.bad-file", "BAD_FILE", program=_FFMPEG, exit_code=183),
    row("ffmpeg.missing", "NOT_FOUND", program=_FFMPEG, exit_code=254),
    row("ffmpeg.invalid", "INVALID_INPUT", program=_FFMPEG, exit_code=234),
    row("ffmpeg.io", "IO_ERROR", program=_FFMPEG, exit_code=251),
    row("ffmpeg.memory", "MEMORY", program=_FFMPEG, exit_code=244),
    row("ffmpeg.disk-full", "DISK_FULL", program=_FFMPEG, exit_code=228),
    row("ffmpeg.permission", "PERMISSION", program=_FFMPEG, exit_code=243),
    row("ffmpeg.connection", "CONNECTION", program=_FFMPEG, exit_code=(224, 152, 145)),
    row("ffmpeg.timeout", "TIMEOUT", program=_FFMPEG, exit_code=146),
    row("ffmpeg.decode-errors", "BAD_FILE", program=_FFMPEG, exit_code=69),
)

_SYSEXITS_PROGRAMS = (
    "sendmail",
    "postfix",
    "procmail",
    "maildrop",
    "mutt",
    "msmtp",
    "uuencode",
    "fetchmail",
    "spamc",
)
_PROGRAM_EXITS = (
    row("sysexits.data", "INVALID_INPUT", program=_SYSEXITS_PROGRAMS, exit_code=(65, 66, 67, 68)),
    row("sysexits.again", "NOT_READY", program=_SYSEXITS_PROGRAMS, exit_code=(69, 71, 74, 75)),
    row("sysexits.denied", "PERMISSION", program=_SYSEXITS_PROGRAMS, exit_code=77),
    row(
        "sysexits.setup",
        "MISCONFIGURED",
        program=_SYSEXITS_PROGRAMS,
        exit_code=(64, 70, 72, 73, 76, 78),
    ),
    row(
        "curl.tls",
        "CERTIFICATE",
        provider_code="curl:35",
        message=r"\bSSL routines\b.{0,60}\b(?:unsafe|unsupported|wrong|legacy|alert|handshake)\b",
    ),
    row(
        "curl.connection",
        "CONNECTION",
        provider_code=split_names(
            """
            curl:5 curl:6 curl:7 curl:16 curl:18 curl:35 curl:52 curl:55 curl:56 curl:92 curl:95 curl:96
            """
        ),
    ),
    row("curl.timeout", "TIMEOUT", provider_code="curl:28"),
    row(
        "curl.certificate",
        "CERTIFICATE",
        provider_code=split_names("curl:51 curl:58 curl:60 curl:77 curl:83"),
    ),
    row("curl.auth", "AUTH", provider_code=("curl:67", "curl:94")),
    row(
        "curl.invalid",
        "INVALID_INPUT",
        provider_code=split_names("curl:1 curl:3 curl:47 curl:61 curl:63 curl:2 curl:4"),
    ),
    row("curl.missing", "MISSING", provider_code=split_names("curl:19 curl:37 curl:78")),
    row(
        "curl.set-up",
        "MISCONFIGURED",
        provider_code=split_names("curl:26 curl:43 curl:48 curl:53 curl:54 curl:59 curl:66"),
    ),
    row("curl.memory", "MEMORY", provider_code="curl:27"),
    row(
        "curl.exit-connection",
        "CONNECTION",
        program="curl",
        exit_code=(5, 6, 7, 16, 18, 35, 52, 55, 56, 92),
    ),
    row("curl.exit-timeout", "TIMEOUT", program="curl", exit_code=28),
    row("curl.exit-certificate", "CERTIFICATE", program="curl", exit_code=(51, 60, 77)),
    row("curl.exit-disk", "DISK_FULL", program="curl", exit_code=23, message=r"\bno space left\b"),
    row("wget.connection", "CONNECTION", program="wget", exit_code=4),
    row("wget.certificate", "CERTIFICATE", program="wget", exit_code=5),
    row("wget.auth", "AUTH", program="wget", exit_code=6),
    row(
        "rsync.denied",
        "AUTH",
        program="rsync",
        exit_code=(5, 12, 255),
        message=(
            r"\bauth failed\b",
            r"\bunknown module\b",
            r"\bpermission denied\b",
            r"\bauthentication failures\b",
            r"\bhost key verification failed\b",
        ),
    ),
    row("rsync.connection", "CONNECTION", program="rsync", exit_code=(5, 10, 12, 35)),
    row("rsync.timeout", "TIMEOUT", program="rsync", exit_code=30),
    row("rsync.syntax", "MISCONFIGURED", program="rsync", exit_code=(1, 2, 4)),
    row("gs.memory", "MEMORY", provider_code="gs:VMerror"),
    row("gs.io", "IO_ERROR", provider_code="gs:ioerror"),
    row("gs.denied", "PERMISSION", provider_code=("gs:invalidfileaccess", "gs:invalidaccess")),
    row("gs.bad-file", "BAD_FILE", provider_code="gs:*"),
    row("docker.daemon", "PROGRAM_MISSING", program="docker", exit_code=(126, 127)),
)

_SIGNALS = (
    row("process.killed", "PROCESS_KILLED", signal=(1, 9, 15)),
    row("process.interrupted", "STOPPED", signal=(2, 3)),
    row("process.pipe", "CONNECTION", signal=13),
    row("process.bus", "PROCESS_CRASHED", signal=(7, 10)),
    row("process.aborted", "PROCESS_CRASHED", signal=6),
    row("process.crashed", "PROGRAM_CRASHED", signal=(4, 8, 11)),
    row("process.cpu-limit", "TIMEOUT", signal=(14, 24)),
    row("process.timeout", "TIMEOUT", exit_code=124),
    row("process.not-runnable", "PROGRAM_MISSING", exit_code=(126, 127)),
)

PROCESS_RULES = (*_FFMPEG_EXITS, *_PROGRAM_EXITS, *_SIGNALS)


# --- Exception types of Python, and errno ---


def _builtins(*names: str) -> tuple[str, ...]:
    return tuple(f"builtins.{name}" for name in names)


def _errors(*names: str) -> tuple[str, ...]:
    return tuple(f"mulligan.core.errors.{name}" for name in names)


_MULLIGAN = (
    row(SCHEMA_RULE, "SCHEMA", type=_errors("SchemaError")),
    row(UNAVAILABLE_RULE, "STORE_UNAVAILABLE", type=_errors("StoreUnavailable", "UniqueRace")),
    row("mulligan.wait_timeout", "TIMEOUT", type=_errors("WaitTimeout")),
    row(
        "mulligan.refused",
        "REFUSED",
        type=_errors(
            "Refused",
            "NotFound",
            "NoResult",
            "ResultMismatch",
            "ConfigError",
            "LeaseLost",
            "StatementRefused",
        ),
    ),
)

_EXCEPTIONS = (
    row(
        PROGRAMMING_ERROR_RULE,
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
            *split_names(
                """
            numpy._core._exceptions._ArrayMemoryError numpy.core._exceptions._ArrayMemoryError
            torch.cuda.OutOfMemoryError torch.OutOfMemoryError
            """
            ),
        ),
    ),
    row("py.regex", "PROGRAMMING_ERROR", type=("re.error", "re.PatternError")),
    row(
        "py.unicode",
        "INVALID_INPUT",
        type=_builtins("UnicodeError", "UnicodeDecodeError", "UnicodeEncodeError"),
    ),
    row(
        "py.timeout",
        "TIMEOUT",
        type=(
            *_builtins("TimeoutError"),
            *split_names(
                """
            asyncio.exceptions.TimeoutError asyncio.TimeoutError concurrent.futures._base.TimeoutError
            concurrent.futures.TimeoutError socket.timeout subprocess.TimeoutExpired timeout
            """
            ),
        ),
    ),
    row(
        "py.certificate",
        "CERTIFICATE",
        type=("ssl.SSLCertVerificationError", "ssl.CertificateError"),
    ),
    row(
        "py.ssl",
        "CERTIFICATE",
        type=split_names(
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
        type=split_names(
            """
            ssl.SSLEOFError ssl.SSLZeroReturnError ssl.SSLWantReadError ssl.SSLSyscallError
            """
        ),
    ),
    row("py.sharing", "BUSY", type=_builtins("PermissionError"), message=r"\bWinError 3[23]\b"),
    row("py.permission", "PERMISSION", type=_builtins("PermissionError")),
    row(
        "py.not-found",
        "NOT_FOUND",
        type=_builtins("FileNotFoundError", "NotADirectoryError", "IsADirectoryError"),
    ),
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
            *split_names(
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
        type=split_names(
            """
            concurrent.futures.process.BrokenProcessPool BrokenProcessPool WorkerLostError BrokenThreadPool
            BrokenExecutor
            """
        ),
    ),
    row(
        "py.soft-limit",
        "TIMEOUT",
        type=split_names("SoftTimeLimitExceeded TimeLimitExceeded JobTimeoutException"),
    ),
)

_RESOLVER_AND_TLS = (
    row(
        "dns.again",
        "CONNECTION",
        provider_code=split_names("gai:-3 gai:-4 gai:2 gai:11002 EAI_AGAIN"),
    ),
    row("dns.unknown", "CONNECTION", provider_code=split_names("gai:-2 gai:-5 gai:8 gai:11001")),
    row("dns.impossible", "MISCONFIGURED", provider_code=("gai:-9", "gai:-6", "gai:-7", "gai:-8")),
    row(
        "dns.failed",
        "CONNECTION",
        type=split_names("socket.gaierror socket.herror NameResolutionError gaierror"),
    ),
    row(
        "tls.certificate",
        "CERTIFICATE",
        provider_code=split_names(
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
        provider_code=split_names(
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
        errno=(
            errno.EMFILE,
            errno.ENFILE,
            errno.ENOBUFS,
            errno.EADDRNOTAVAIL,
            errno.EUSERS,
            errno.ENOLCK,
        ),
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
    row(
        "os.io", "IO_ERROR", errno=(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ECOMM)
    ),
    row("os.permission", "PERMISSION", errno=(errno.EACCES, errno.EPERM, errno.EROFS)),
    row(
        "os.not-found",
        "NOT_FOUND",
        errno=(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTBLK),
    ),
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

PYTHON_RULES = (*_MULLIGAN, *_EXCEPTIONS, *_RESOLVER_AND_TLS, *libraries.CLIENT_RULES, *_ERRNO)

# Tried only if nothing else matches, not even the text.
PYTHON_FALLBACK_RULES = (
    row(
        "client.refused",
        "HTTP_4XX",
        type=split_names(
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
        type=split_names(
            """
            openai.NotFoundError anthropic.NotFoundError google.api_core.exceptions.NotFound ResourceNotFoundError
            RepositoryNotFoundError EntryNotFoundError RevisionNotFoundError UnknownObjectException NoSuchKey
            """
        ),
    ),
    row(
        "smtp.type-address",
        "BAD_ADDRESS",
        type=(
            "smtplib.SMTPRecipientsRefused",
            "smtplib.SMTPSenderRefused",
            "SMTPRecipientsRefused",
        ),
    ),
    row("smtp.type-auth", "AUTH", type="smtplib.SMTPAuthenticationError"),
    row(
        "client.denied",
        "ACCESS_DENIED",
        type=("Forbidden", "PermissionDenied", "PermissionDeniedError", "AuthorizationException"),
    ),
    row("py.tls", "CONNECTION", type=("ssl.SSLError", "SSLError")),
    row(
        "ssh.failed",
        "CONNECTION",
        type=split_names("SSHException TransportError NetworkError InterfaceError"),
    ),
    row("db.programming", "DATABASE_SCHEMA", type=("ProgrammingError", "NotSupportedError")),
    row("db.operational", "DATABASE_UNAVAILABLE", type=("OperationalError",)),
    row("py.handler-exit", "HANDLER_EXIT", type=_builtins("SystemExit", "GeneratorExit")),
    row("py.interrupted", "STOPPED", type=_builtins("KeyboardInterrupt")),
    row(
        "py.task-cancelled",
        "TASK_CANCELLED",
        type=split_names(
            """
            asyncio.exceptions.CancelledError concurrent.futures._base.CancelledError CancelledError
            """
        ),
    ),
    row(
        "py.undecodable-answer",
        "BAD_TRANSFER",
        type=split_names(
            "json.decoder.JSONDecodeError JSONDecodeError requests.exceptions.JSONDecodeError"
        ),
        message=(
            r"^Expecting value: line 1 column 1\b",
            r"\bExpecting value: line 1 column 1 \(char 0\)",
        ),
    ),
    row("py.not-json", "INVALID_INPUT", type=("json.decoder.JSONDecodeError", "JSONDecodeError")),
    row("py.lookup", "PROGRAMMING_ERROR", type=_builtins("LookupError", "BufferError")),
)
