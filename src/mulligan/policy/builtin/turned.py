"""Where the reason in a text turns round what a type, a code or a status says.

Whoever fetches a token meets a network that is down, and calls it a refused credential; whoever connects meets a
refused credential, and calls it a connection. The reason counts. These rows ask for more than the row of the type
alone, so they speak before it.
"""

from __future__ import annotations

from mulligan.policy.builtin.http import SLOW_DOWN
from mulligan.policy.builtin.row import row, words

# Said of a service or a network that failed: nobody refused anything.
FAILED_THEM = (
    r"\b(?:connect|connection|read|request|gateway|server)[- ]time-?out\b",
    r"\btimed out\b",
    r"\btimeout while\b",
    r"\bdid not (?:answer|respond|reply)\b",
    r"\bconnection (?:was )?(?:reset|refused|aborted|closed|error|broken)\b",
    r"\bremote end closed\b",
    r"\bmax retries exceeded\b",
    r"\bname resolution\b",
    r"\bnetwork is unreachable\b",
    r"\binternal server error\b",
    r"\bservice (?:is )?(?:temporarily |currently )?unavailable\b",
    r"\bbad gateway\b",
    r"\bstatus: 5\d\d\b",
    r"\bupstream (?:request|provider|service|server)? ?(?:failed|error|timeout|unavailable)\b",
    r"\btemporary authentication failure\b",
    r"\bupstream connect error\b",
)
# Said of a credential or a set-up: waiting changes nothing.
UNTRUSTED = (
    r"\bCERTIFICATE_VERIFY_FAILED\b",
    r"\bcertificate verify failed\b",
    r"\bself[- ]signed certificate\b",
    r"\bcertificate has expired\b",
    r"\bWRONG_VERSION_NUMBER\b",
    r"\bwrong version number\b",
    r"\bunable to get local issuer certificate\b",
    r"\bTLSV1_ALERT_PROTOCOL_VERSION\b",
)
NOT_LET_IN = (
    r"\binvalid_grant\b",
    r"\binvalid_client\b",
    r"\breauthentication is needed\b",
    r"\bpassword authentication failed\b",
    r"\bauthentication failed\b",
    r"\binvalid username-password pair\b",
    r"\bauthentication required\b",
    r"\bno password supplied\b",
    r"\bwithout any password configured\b",
    r"\binvalid api key\b",
    r"\bnot (?:on|in) (?:the |our |your |an? )?(?:allow|white)[- ]?list\b",
    r"\bcould not automatically determine credentials\b",
    r"\bcredentials were not found\b",
    r"\blicen[sc]e (?:has )?expired\b",
)

_TOKENS = words(
    """
    CredentialRetrievalError MetadataRetrievalError RefreshError TransportError TokenRetrievalError
    ClientAuthenticationError CredentialUnavailableError Unauthenticated
    """
)
_LINKS = words(
    """
    ConnectionError ConnectError ConnectionRefusedError ServerSelectionTimeoutError AutoReconnect NoBrokersAvailable KafkaConnectionError
    EndpointConnectionError AMQPConnectionError APIConnectionError ProxyError ClientConnectorError ServiceRequestError
    SMTPServerDisconnected NoValidConnectionsError
    """
)

RULES = (
    row("turned.token-service", "CONNECTION", type=_TOKENS, message=FAILED_THEM),
    row("turned.untrusted", "CERTIFICATE", type=_LINKS, message=UNTRUSTED),
    row("turned.not-let-in", "AUTH", type=_LINKS, message=NOT_LET_IN),
    row("turned.rpc-untrusted", "CERTIFICATE", grpc_status=("UNAVAILABLE", "UNKNOWN", "INTERNAL"), message=UNTRUSTED),
    row("turned.rpc-not-let-in", "AUTH", grpc_status=("UNAVAILABLE", "UNKNOWN", "INTERNAL"), message=NOT_LET_IN),
    row("turned.code-untrusted", "CERTIFICATE", provider_code="UNAVAILABLE", message=UNTRUSTED),
    row("turned.code-not-let-in", "AUTH", provider_code="UNAVAILABLE", message=NOT_LET_IN),
    row(
        "turned.refused-for-now",
        "HTTP_5XX",
        http_status=(401, 403, 404, 409, 422, 424),
        message=FAILED_THEM,
    ),
    row(
        "turned.rpc-refused-for-now",
        "RATE_LIMITED",
        grpc_status=("PERMISSION_DENIED", "UNAUTHENTICATED"),
        message=(*SLOW_DOWN, *FAILED_THEM),
    ),
    row(
        "turned.bad-request",
        "HTTP_5XX",
        provider_code=words(
            """
            invalid_image_url invalid_request_error invalid_file invalid_value BadRequest badRequest InvalidRequest
            """
        ),
        message=FAILED_THEM,
    ),
    row(
        "turned.proxy",
        "MISCONFIGURED",
        type=words("ProxyError ConnectError MaxRetryError ClientHttpProxyError"),
        message=(
            r"\btunnel connection failed: 4(?:0[0145]|51)\b",
            r"\bonly use HTTP and not HTTPS\b",
        ),
    ),
    row("turned.closed-by-them", "CONNECTION", type="LocalProtocolError", message=r"\bConnectionState\.CLOSED\b"),
    row("turned.lease-lost", "CONNECTION", type=words("kazoo.exceptions.SessionExpiredError ConnectionLoss")),
    row(
        "turned.fetch",
        "CONNECTION",
        type="TypeError",  # what a browser and Node call a network that is away
        message=(r"\bfailed to fetch\b", r"\bfetch failed\b", r"\bNetworkError when\b", r"^TypeError: terminated$"),
    ),
    row(
        "turned.state",
        "NOT_READY",
        provider_code=words(
            """
            InvalidDBInstanceState InvalidDBClusterStateFault InvalidDBSnapshotState IncorrectInstanceState IncorrectState
            InvalidInstanceState InvalidClusterState InvalidCacheClusterState InvalidReplicationGroupState VolumeInUse
            InvalidSnapshot.InUse InvalidAMIID.Unavailable ResourceNotReady DependencyTimeoutException
            """
        ),
    ),
    row(
        "turned.locked-state",
        "BUSY",
        provider_code=words("ConditionNotMet ConditionalCheckFailedException PreconditionFailed"),
        message=r"\bacquiring the state lock\b",
    ),
    row(
        "turned.denied-for-now",
        "RATE_LIMITED",
        provider_code=words("Unauthorized Forbidden AccessDenied AccessDeniedException AuthorizationFailed"),
        message=(*SLOW_DOWN, r"\blimit of \d+\b.{0,40}\bconcurrently\b"),
    ),
    row(
        "salesforce.daily",
        "QUOTA",
        provider_code="REQUEST_LIMIT_EXCEEDED",
        message=r"\bTotalRequests Limit exceeded\b",
    ),
)
