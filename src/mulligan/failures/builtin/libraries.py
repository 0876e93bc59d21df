"""Rules about the exception types of libraries. They match by name; nothing is imported."""

from __future__ import annotations

from mulligan.failures.builtin.protocols import REQUEST_TOO_LARGE, SLOW_DOWN
from mulligan.failures.rules import row, split_names

_HTTP_CLIENTS = (
    row(
        "client.no-auth",
        "AUTH",
        type=split_names(
            """
            NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError SSOTokenLoadError
            UnauthorizedSSOTokenError DefaultCredentialsError RefreshError ClientAuthenticationError
            CredentialUnavailableError NoAuthTokenError openai.AuthenticationError anthropic.AuthenticationError
            stripe.error.AuthenticationError
            stripe.AuthenticationError stripe.PermissionError google.api_core.exceptions.Unauthenticated
            BadCredentialsException
            GatedRepoError LocalTokenNotFoundError paramiko.ssh_exception.AuthenticationException
            AuthenticationException BadAuthenticationType PasswordRequiredException PartialAuthentication
            TokenExpiredError ExpiredSignatureError InvalidSignatureError InvalidGrantError BadHostKeyException
            SignatureVerificationError slack_sdk.errors.BotUserAccessError
            """
        ),
    ),
    row(
        "client.certificate",
        "CERTIFICATE",
        type=("ClientConnectorCertificateError", "SSLCertVerificationError"),
    ),
    row(
        "client.invalid-url",
        "INVALID_INPUT",
        type=split_names(
            """
            InvalidURL InvalidSchema MissingSchema InvalidJSONError UnsupportedProtocol LocalProtocolError
            TooManyRedirects DecodingError InvalidHeader InvalidProxyURL LocationParseError URLRequired
            NonHttpUrlClientError InvalidUrlClientError UnknownProtocol LocationValueError ParamValidationError
            InvalidEndpoint
            """
        ),
    ),
    row(
        "client.pool",
        "TOO_MANY_FILES",
        type=split_names("httpx.PoolTimeout httpx2.PoolTimeout EmptyPoolError PoolTimeout"),
    ),
    row(
        "client.timeout",
        "TIMEOUT",
        type=split_names(
            """
            ConnectTimeout ReadTimeout WriteTimeout ConnectTimeoutError ReadTimeoutError ServerTimeoutError
            SocketTimeoutError ConnectionTimeoutError APITimeoutError TimeoutException Timeout
            ServiceResponseTimeoutError ServiceRequestTimeoutError DeadlineExceeded GatewayTimeout RequestTimeout
            ConnectionTimeout TimedOut InferenceTimeoutError NoResponseError OperationTimedOut ServerTimeout
            SMTPTimeoutError SMTPConnectTimeoutError SMTPReadTimeoutError
            """
        ),
    ),
    row(
        "client.one-too-large",
        "TOO_LARGE",
        type=("RateLimitError", "TooManyRequests"),
        message=REQUEST_TOO_LARGE,
    ),
    row(
        "client.rate",
        "RATE_LIMITED",
        type=split_names(
            """
            TooManyRequests RateLimitError RateLimitExceeded RateLimitedError RetryAfter FloodWait FloodWaitError
            RateLimitExceededException ThrottledError
            """
        ),
    ),
    row(
        "client.proxy-refused",
        "AUTH",
        type="ProxyError",
        message=(r"\btunnel connection failed: 40[37]\b", r"\bproxy authentication required\b"),
    ),
    row(
        "client.denied-for-now",
        "RATE_LIMITED",
        type=split_names(
            """
            Forbidden PermissionDenied PermissionDeniedError Unauthenticated ClientAuthenticationError ClientError
            HttpError
            """
        ),
        message=SLOW_DOWN,
    ),
    row(
        "ftp.many",
        "RATE_LIMITED",
        type="ftplib.error_perm",
        message=(
            r"\bmax \d+ users\b",
            r"\b(?:number of|too many|maximum) (?:connections|clients|users)\b",
            r"\btoo many users\b",
        ),
    ),
    row(
        "ftp.full",
        "SERVICE_FULL",
        type="ftplib.error_perm",
        message=(r"\bdisk full\b", r"\binsufficient storage\b", r"\bupload later\b"),
    ),
    row(
        "client.held",
        "BUSY",
        type=(
            "stripe.error.InvalidRequestError",
            "stripe.InvalidRequestError",
            "InvalidRequestError",
        ),
        message=(r"\banother (?:API )?request\b", r"\block_timeout\b", r"\bretry the request\b"),
    ),
    row(
        "ssh.gone",
        "CONNECTION",
        type=("AuthenticationException",),
        message=(r"\btransport shut down\b", r"\bsaw EOF\b", r"\bauthentication timeout\b"),
    ),
    row(
        "ftp.login",
        "AUTH",
        type="ftplib.error_perm",
        message=(
            r"^530 (?:login|user|not logged|please|sorry|authentication|permission|this|access|wrong|invalid)\b",
            r"\blogin incorrect\b",
        ),
    ),
    row("ftp.refused", "MISSING", type="ftplib.error_perm"),
    row("ftp.later", "NOT_READY", type=("ftplib.error_temp", "ftplib.error_reply")),
    row(
        "client.money",
        "QUOTA",
        type=split_names(
            "RateLimitError TooManyRequests ResourceExhausted APIStatusError BadRequestError"
        ),
        message=(
            r"\bexceeded your current quota\b",
            r"\bcredit balance is too low\b",
            r"\binsufficient_quota\b",
            r"\bbilling\b.{0,40}\b(?:details|hard limit)\b",
        ),
    ),
    row(
        "client.impossible",
        "MISCONFIGURED",
        type=split_names(
            """
            NoRegionError ProfileNotFound UnknownServiceError UnknownEndpointError DataNotFoundError
            InvalidRegionError ConfigNotFound ImproperlyConfigured NoSuchModuleError
            """
        ),
    ),
    row(
        "client.content",
        "REFUSED_CONTENT",
        type=split_names(
            """
            LengthFinishReasonError ContentFilterFinishReasonError BlockedPromptException StopCandidateException
            """
        ),
    ),
    row(
        "client.card",
        "QUOTA",
        type=split_names("stripe.error.CardError stripe.CardError CardError"),
    ),
    row(
        "client.unavailable",
        "HTTP_5XX",
        type=split_names(
            """
            openai.InternalServerError anthropic.InternalServerError google.api_core.exceptions.ServiceUnavailable
            google.api_core.exceptions.InternalServerError google.api_core.exceptions.BadGateway ServiceUnavailable
            ServiceUnavailableError InternalServerError BadGateway OverloadedError google.api_core.exceptions.Aborted
            ServerDisconnectedError
            """
        ),
    ),
    row(
        "client.connection",
        "CONNECTION",
        type=split_names(
            """
            ConnectError ReadError WriteError CloseError RemoteProtocolError ProxyError ProtocolError
            NewConnectionError MaxRetryError ChunkedEncodingError ContentDecodingError ClientConnectorError
            ClientConnectorDNSError ClientOSError ClientPayloadError ServerDisconnectedError ServerConnectionError
            ClientConnectionError ClientConnectionResetError ClientProxyConnectionError EndpointConnectionError
            ConnectionClosedError HTTPClientError ResponseStreamingError IncompleteReadError APIConnectionError
            ServiceRequestError ServiceResponseError ConnectionError ConnectionClosed ConnectionClosedOK
            NoValidConnectionsError WebSocketConnectionClosedException SMTPServerDisconnected SMTPConnectError
            ProxyConnectionError ConnectionLost ConnectionInterrupted TransferEncodingError ClientHttpProxyError
            WSServerHandshakeError
            """
        ),
    ),
    row(
        "client.service-timeout",
        "TIMEOUT",
        type=("botocore.exceptions.ReadTimeoutError", "botocore.exceptions.ConnectTimeoutError"),
    ),
)

_FILE_LIBRARIES = (
    row(
        "wkhtmltopdf.missing",
        "MISSING",
        type=("ContentNotFoundError", "ProtocolUnknownError", "ContentAccessDenied"),
    ),
    row(
        "file.validation",
        "INVALID_INPUT",
        type=split_names(
            """
            pydantic_core._pydantic_core.ValidationError pydantic.error_wrappers.ValidationError
            pydantic.ValidationError pydantic_core.ValidationError jsonschema.exceptions.ValidationError
            marshmallow.exceptions.ValidationError django.core.exceptions.ValidationError ValidationError
            cerberus.validator.DocumentError
            """
        ),
    ),
    row(
        "file.bad",
        "BAD_FILE",
        type=split_names(
            """
            zipfile.BadZipFile BadZipFile LargeZipFile PIL.UnidentifiedImageError UnidentifiedImageError
            DecompressionBombError PdfReadError PdfStreamError EmptyFileError PDFSyntaxError PSEOF PDFNoValidXRef
            PDFPasswordIncorrect PDFTextExtractionNotAllowed FileNotDecryptedError WrongPasswordError
            PdfminerException PDFPageCountError tarfile.ReadError lzma.LZMAError gzip.BadGzipFile BadGzipFile
            zlib.error EmptyDataError pandas.errors.ParserError PackageNotFoundError InvalidFileException XLRDError BadRarFile
            NotRarFile Bad7zFile xml.etree.ElementTree.ParseError lxml.etree.XMLSyntaxError XMLSyntaxError
            InvalidMediaError FileDataError CouldntDecodeError shutil.ReadError
            """
        ),
    ),
    # These parse values in memory as often as files.
    row(
        "file.bad-data",
        "INVALID_INPUT",
        type=split_names(
            """
            csv.Error _csv.Error binascii.Error UnpicklingError yaml.scanner.ScannerError TOMLDecodeError
            OutputParserException
            """
        ),
    ),
    row(
        "file.programming",
        "PROGRAMMING_ERROR",
        type=split_names(
            """
            TemplateNotFound TemplateSyntaxError UndefinedError FieldDoesNotExist FieldError ImproperlyConfigured
            NoReverseMatch PicklingError NotRegistered NoSuchJobError InvalidRequestError ArgumentError
            ObjectDeletedError DetachedInstanceError CompileError UnboundExecutionError MissingGreenlet
            NoForeignKeysError AmbiguousForeignKeysError ResourceClosedError
            """
        ),
    ),
    row(
        "file.unsupported",
        "UNSUPPORTED",
        type=split_names(
            """
            io.UnsupportedOperation UnsupportedOperation UnsupportedAlgorithm DependencyError
            OptionalDependencyNotAvailable
            """
        ),
    ),
    row(
        "file.no-row",
        "MISSING",
        type=split_names("ObjectDoesNotExist DoesNotExist NoResultFound MultipleResultsFound"),
    ),
    row("selenium.gone", "CONNECTION", type=("TargetClosedError")),
)

CLIENT_RULES = (*_HTTP_CLIENTS, *_FILE_LIBRARIES)


# --- Exception types whose names alone do not say what they mean ---

_MISUSE_TYPES = split_names(
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
_CONFIGURATION_TYPES = split_names(
    """
    ServiceNotInRegionError EndpointVariantError AliasConflictParameterError WaiterConfigError
    InfiniteLoopConfigError MD5UnavailableError EndpointProviderError EndpointResolutionError ProxySchemeUnknown
    NoSupportingHandlers MutualTLSChannelError TesseractConfigError docker.errors.BuildError TLSParameterError
    ConfigException NullResource UnroutableError ConfigParseError
    """
)
_CREDENTIAL_TYPES = split_names(
    "SSOError UserAccessTokenError ReauthFailError google.api_core.exceptions.Unauthorized DisabledRepoError"
)
_FILE_TYPES = split_names(
    """
    pikepdf.PdfError pikepdf.PasswordError FzErrorFormat FzErrorSyntax FzErrorArgument FzErrorUnsupported
    FzErrorLibrary PDFValueError PDFEncryptionError pypdf.errors.LimitReachedError ocrmypdf.exceptions.DpiError
    PriorOcrFoundError ocrmypdf.exceptions.InputFileError EncryptedPdfError DigitalSignatureError TaggedPDFError
    ColorConversionNeededError tarfile.CompressionError tarfile.HeaderError ExpatError ImageLoadError
    UnavailableVideoError
    """
)
_REQUEST_TYPES = split_names(
    """
    google.api_core.exceptions.FailedPrecondition google.api_core.exceptions.LengthRequired
    google.api_core.exceptions.PreconditionFailed google.api_core.exceptions.DataLoss
    anthropic.UnprocessableEntityError ResourceExistsError ResourceModifiedError ResourceNotModifiedError
    TooManyRedirectsError elasticsearch.RequestError elasticsearch.exceptions.RequestError XPathEvalError
    ElementNotInteractableException
    """
)
_CONNECTION_TYPES = split_names(
    """
    urllib3.exceptions.DecodeError InvalidChunkLength CursorNotFound ExceededMaxWaiters LocalEntryNotFoundError
    InvalidSessionIdException NoSuchWindowException kafka.errors.CorruptRecordException
    psycopg.errors.ConnectionDoesNotExist psycopg2.errors.ConnectionDoesNotExist
    SqlclientUnableToEstablishSqlconnection PendingRollbackError DisconnectionError
    """
)

RULES = (
    row("lib.misused", "PROGRAMMING_ERROR", type=_MISUSE_TYPES),
    row(
        "lib.offline",
        "MISCONFIGURED",
        type="LocalEntryNotFoundError",
        message=r"\btraffic has been disabled\b",
    ),
    row("lib.away", "CONNECTION", type=_CONNECTION_TYPES),
    row("lib.stale", "DATABASE_CONFLICT", type="StaleDataError"),
    row("lib.damaged", "BAD_TRANSFER", type=split_names("ChecksumError FlexibleChecksumError")),
    row("lib.not-live", "NOT_READY", type="UserNotLive"),
    row("lib.retried", "HTTP_5XX", type=("requests.exceptions.RetryError", "RetriesExceededError")),
    row("lib.waited", "TIMEOUT", type="WaiterError"),
    row(
        "lib.waited-for-nothing",
        "REFUSED",
        type="WaiterError",
        message=r"\bterminal failure state\b",
    ),
    row(
        "lib.bad-header",
        "INVALID_INPUT",
        type="HTTPClientError",
        message=r"\binvalid header value\b",
    ),
    row(
        "pg.more-data",
        "DATA_REFUSED",
        type=split_names(
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
        type=split_names(
            """
            NoActiveSqlTransaction DependentPrivilegeDescriptorsStillExist DependentObjectsStillExist AmbiguousFunction
            GeneratedAlways psycopg.errors.ReservedName psycopg2.errors.ReservedName AmbiguousParameter AmbiguousAlias
            IndeterminateDatatype WindowingError IndeterminateCollation ObjectNotInPrerequisiteState PlpgsqlError
            RaiseException psycopg.errors.TooManyRows psycopg2.errors.TooManyRows AssertFailure
            """
        ),
    ),
    row("pg.corrupted", "DATABASE_BROKEN", type=split_names("IndexCorrupted DataCorrupted")),
)

# Tried only if nothing else matches: these types wrap the real cause.
FALLBACK_RULES = (
    row("lib.set-up", "MISCONFIGURED", type=_CONFIGURATION_TYPES),
    row("lib.credentials", "AUTH", type=_CREDENTIAL_TYPES),
    row("lib.bad-file", "BAD_FILE", type=_FILE_TYPES),
    row("lib.refused", "HTTP_4XX", type=_REQUEST_TYPES),
    row("lib.untrusted", "CERTIFICATE", type=split_names("InsecureCertificateException")),
    row("lib.not-writable", "PERMISSION", type=split_names("OutputFileAccessError IMAP4.readonly")),
)
