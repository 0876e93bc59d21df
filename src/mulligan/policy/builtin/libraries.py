"""Exception types of libraries whose names alone do not say what they are. Nothing is imported."""

from __future__ import annotations

from mulligan.policy.builtin.row import row, words

_MISUSED = words(
    """
    httpx.StreamConsumed httpx.StreamClosed httpx.ResponseNotRead httpx.RequestNotRead httpx.CookieConflict
    httpx2.StreamConsumed httpx2.StreamClosed httpx2.ResponseNotRead httpx2.RequestNotRead
    StreamConsumedError UnrewindableBodyError UnseekableStreamError urllib3.exceptions.ClosedPoolError HostChangedError
    ResponseNotChunked PaginationError OperationNotPageableError asyncio.exceptions.LimitOverrunError
    asyncio.LimitOverrunError asyncio.exceptions.InvalidStateError pypdf.errors.DeprecationError
    PyPDF2.errors.DeprecationError FrozenInstanceError stripe.IdempotencyError stripe.error.IdempotencyError
    elasticsearch.SerializationError ForeignObjectError SameFileError
    """
)
_SET_UP = words(
    """
    ServiceNotInRegionError EndpointVariantError AliasConflictParameterError WaiterConfigError
    InfiniteLoopConfigError MD5UnavailableError EndpointProviderError EndpointResolutionError ProxySchemeUnknown
    NoSupportingHandlers MutualTLSChannelError TesseractConfigError docker.errors.BuildError TLSParameterError
    ConfigException NullResource UnroutableError ConfigParseError
    """
)
_CREDENTIALS = words(
    "SSOError UserAccessTokenError ReauthFailError google.api_core.exceptions.Unauthorized DisabledRepoError"
)
_FILES = words(
    """
    pikepdf.PdfError pikepdf.PasswordError FzErrorFormat FzErrorSyntax FzErrorArgument FzErrorUnsupported
    FzErrorLibrary PDFValueError PDFEncryptionError pypdf.errors.LimitReachedError ocrmypdf.exceptions.DpiError
    PriorOcrFoundError ocrmypdf.exceptions.InputFileError EncryptedPdfError DigitalSignatureError TaggedPDFError
    ColorConversionNeededError tarfile.CompressionError tarfile.HeaderError ExpatError ImageLoadError
    UnavailableVideoError
    """
)
_REQUESTS = words(
    """
    google.api_core.exceptions.FailedPrecondition google.api_core.exceptions.LengthRequired
    google.api_core.exceptions.PreconditionFailed google.api_core.exceptions.DataLoss
    anthropic.UnprocessableEntityError ResourceExistsError ResourceModifiedError ResourceNotModifiedError
    TooManyRedirectsError elasticsearch.RequestError elasticsearch.exceptions.RequestError XPathEvalError
    ElementNotInteractableException
    """
)
_AWAY = words(
    """
    urllib3.exceptions.DecodeError InvalidChunkLength CursorNotFound ExceededMaxWaiters LocalEntryNotFoundError
    InvalidSessionIdException NoSuchWindowException kafka.errors.CorruptRecordException
    psycopg.errors.ConnectionDoesNotExist psycopg2.errors.ConnectionDoesNotExist
    SqlclientUnableToEstablishSqlconnection PendingRollbackError StaleDataError DisconnectionError
    """
)

RULES = (
    row("lib.misused", "PROGRAMMING_ERROR", type=_MISUSED),
    row("lib.offline", "MISCONFIGURED", type="LocalEntryNotFoundError", message=r"\btraffic has been disabled\b"),
    row("lib.away", "CONNECTION", type=_AWAY),
    row("lib.damaged", "BAD_TRANSFER", type=words("ChecksumError FlexibleChecksumError")),
    row("lib.not-live", "NOT_READY", type="UserNotLive"),
    row("lib.retried", "HTTP_5XX", type=("requests.exceptions.RetryError", "RetriesExceededError")),
    row("lib.waited", "TIMEOUT", type="WaiterError"),
    row("lib.waited-for-nothing", "REFUSED", type="WaiterError", message=r"\bterminal failure state\b"),
    row("lib.bad-header", "INVALID_INPUT", type="HTTPClientError", message=r"\binvalid header value\b"),
    row(
        "pg.more-data",
        "DATA_REFUSED",
        type=words(
            """
            EscapeCharacterConflict ZeroLengthCharacterString SequenceGeneratorLimitExceeded ArraySubscriptError
            TooManyJsonArrayElements TooManyJsonObjectMembers SqlJsonScalarRequired
            psycopg.errors.FloatingPointException psycopg2.errors.FloatingPointException
            IntegrityConstraintViolation RestrictViolation
            """
        ),
    ),
    row(
        "pg.more-schema",
        "DATABASE_SCHEMA",
        type=words(
            """
            NoActiveSqlTransaction DependentPrivilegeDescriptorsStillExist DependentObjectsStillExist AmbiguousFunction
            GeneratedAlways psycopg.errors.ReservedName psycopg2.errors.ReservedName AmbiguousParameter AmbiguousAlias
            IndeterminateDatatype WindowingError IndeterminateCollation ObjectNotInPrerequisiteState PlpgsqlError
            RaiseException psycopg.errors.TooManyRows psycopg2.errors.TooManyRows AssertFailure
            """
        ),
    ),
    row("pg.corrupted", "DATABASE_BROKEN", type=words("IndexCorrupted DataCorrupted")),
)

# Asked only when nothing else has said anything: these wrap what happened below them.
LAST = (
    row("lib.set-up", "MISCONFIGURED", type=_SET_UP),
    row("lib.credentials", "AUTH", type=_CREDENTIALS),
    row("lib.bad-file", "BAD_FILE", type=_FILES),
    row("lib.refused", "HTTP_4XX", type=_REQUESTS),
    row("lib.untrusted", "CERTIFICATE", type=words("InsecureCertificateException")),
    row("lib.not-writable", "PERMISSION", type=words("OutputFileAccessError IMAP4.readonly")),
)
