"""Rules about texts. They are tried last, line by line from the end, with URLs, paths and ids masked.

Every phrase is bounded by words and is more than a noun. `SPECIFIC` phrases win over everything else in
a line. `WEAK` phrases are those that programs print after the real reason, so all other lines are tried
first.
"""

from __future__ import annotations

from mulligan.failures.builtin import permanent_texts, transient_texts
from mulligan.failures.builtin.protocols import (
    BEING_MOVED,
    BILLING,
    REGION_BLOCKED,
    REQUEST_TOO_LARGE,
    SLOW_DOWN,
)
from mulligan.failures.rules import row, split_names

SPECIFIC = (
    row("text.money", "QUOTA", message=BILLING),
    row(
        "text.long-quota",
        "QUOTA",
        message=(
            r"\binsufficient (?:\w+ )?quota\b",
            r"\bquota\b.{0,60}\bexceeded\b.{0,40}\b(?:globally|limit: 0)",
            r"\bwill exceed your \w+ limit\b",
            r"\bexceeding approved\b.{0,60}\bquota\b",
            r"\b(?:calls|requests|queries|messages|credits) ?(?:/|per|a) ?(?:month|day)\b",
            r"\b(?:daily|monthly|weekly|yearly|per[- ]day|24[- ]hours?)\b[\w ()'-]{0,40}\b(?:limit|quota|cap|allowance|usage)\b",
            r"\b(?:limit|quota|cap)\b[\w ()'/-]{0,30}\b(?:per|for (?:the|this)) (?:day|month)\b",
            r"\bPerDay\b",
            r"\bsending (?:limit|quota) (?:exceeded|reached)\b",
            r"\bquota (?:has been )?(?:exhausted|used up)\b",
            r"\bover (?:its|your|the|their|our) (?:\w+ )?quota\b",
        ),
    ),
    row(
        "text.too-large-for-limit",
        "TOO_LARGE",
        message=(
            *REQUEST_TOO_LARGE,
            r"\bmaximum context length\b",
            r"\bcontext (?:length|window) (?:exceeded|of)\b",
        ),
    ),
    row(
        "text.oom",
        "PROCESS_KILLED",
        message=(
            r"\bkilled\b.{0,40}\bmemory\b",
            r"\bOOMKilled\b",
            r"\bcontainer killed on request\b",
            r"\boom[- ]kill(?:er|ed)?\b",
            r"\bkilled process \d+\b",
            r"\bout of memory: kill(?:ed)?\b",
            r"\bMemory cgroup out of memory\b",
            r"\bcontainer (?:was )?killed\b.{0,30}\bmemory\b",
        ),
    ),
    row("text.blocked", "ACCESS_DENIED", message=REGION_BLOCKED),
    row(
        "text.no-space",
        "DISK_FULL",
        message=(
            r"\bno space left\b",
            r"\bflood[- ]stage\b",
            r"\bread-only[ /-]+allow[- ]delete\b",
        ),
    ),
    row(
        "text.not-trusted",
        "CERTIFICATE",
        message=(
            r"\bhandshake failed: tls\b",
            r"\bhost key is not trusted\b",
            r"\bhost ?key verification failed\b",
            r"\bREMOTE HOST IDENTIFICATION HAS CHANGED\b",
            r"\bCERTIFICATE_VERIFY_FAILED\b",
        ),
    ),
    row("text.in-motion", "NOT_READY", message=BEING_MOVED),
    row(
        "text.no-such-value",
        "INVALID_INPUT",
        message=(
            r"\bis not a valid (?:quantity|value|number|integer|name|option|choice|type|format|path|identifier|duration|date)\b",
            r"\b(?:is not|could not be) understood\b",
        ),
    ),
    row(
        "text.log-in-again",
        "AUTH",
        message=(
            r"\b(?:log|sign) ?in again\b",
            r"\bpassword (?:was|has been) changed\b",
            r"\blogged in from another\b",
        ),
    ),
    row("text.per-minute", "RATE_LIMITED", message=r"\bquotaId\b.{0,80}(?:PerMinute|PerSecond)"),
    row("text.redis-full", "SERVICE_FULL", message=r"\bOOM command not allowed\b"),
    row(
        "text.impossible-size",
        "INVALID_INPUT",
        message=(r"\ballocate \d{13,} bytes\b", r"\ballocate <> bytes\b"),
    ),
    row(
        "text.cut-file",
        "BAD_FILE",
        message=(r"\bcompressed file ended\b", r"\bembedded null (?:byte|character)\b"),
    ),
    row("text.syntax", "MISCONFIGURED", message=r"\bsyntax error\b"),
    row(
        "text.bad-image", "BAD_FILE", message=r"\blib(?:png|jpeg|tiff|webp) error: (?!write|out of)"
    ),
    row(
        "text.drm",
        "UNAVAILABLE_CONTENT",
        message=(r"\bDRM[- ]protected\b", r"\blocked with DRM\b", r"\bprotected (?:by|with) DRM\b"),
    ),
    row(
        "text.for-now",
        "HTTP_5XX",
        message=(
            r"\bbad pack header\b",
            r"\bJSONDecodeError\(.{0,4}Expecting value\b",
            r"\btemporary authentication failure\b",
            r"\bis_transient['\x22]?: ?true\b",
        ),
    ),
    row(
        "text.not-let-in",
        "AUTH",
        message=(r"\bpermission denied \(publickey\b", r"\btoo many authentication failures\b"),
    ),
    row(
        "text.misused",
        "PROGRAMMING_ERROR",
        message=(
            r"\bfinished its bootstrapping phase\b",
            r"\ball goroutines are asleep\b",
            r"\b(?:changed size|mutated) during iteration\b",
            r"\bworking outside of (?:application|request) context\b",
            r"\b(?:generator|coroutine) raised StopIteration\b",
            r"\bI/O operation on closed file\b",
            r"\b(?:read|write|seek) (?:of|to|on) closed file\b",
            r"\bonly works in main thread\b",
            r"\bcircular reference detected\b",
            r"\bthreads can only be started once\b",
            r"\bcannot (?:join current thread|reuse already awaited coroutine)\b",
            r"\brelease unlocked lock\b",
            r"\baccess violation (?:reading|writing)\b",
            r"\bevent loop is already running\b",
            r"\bno (?:running|current) event loop\b",
            r"\bcannot be called from a running event loop\b",
            r"\b(?:bound|attached) to a different (?:event )?loop\b",
            r"\bshould be used inside a task\b",
        ),
    ),
    row(
        "text.own-limit",
        "MISCONFIGURED",
        message=(
            r"\bquery is too complex\b",
            r"\bdid not opt in to\b",
            r"\bdevice creation failed\b",
            r"\bread-only file ?system\b",
            r": operation not supported\b",
        ),
    ),
)

NORMAL = (*transient_texts.RULES, *permanent_texts.RULES)

WEAK = (
    row(
        "text.try-again",
        "HTTP_5XX",
        message=(
            r"\bfailed to (?:fetch|download|retrieve|contact|perform)\b",
            r"\bunable to write to file\b",
            r"\bfailed to download\b",
            r"\b(?:please )?(?:try again|retry)(?: your request)? (?:later|in (?:a|an|few|\d|some|[\w]+ (?:minutes|seconds))|shortly|soon|after|at a later|momentarily|again)",
            r"\b(?:please|and) (?:try again|retry)\b",
            r"\bsomething went wrong\b",
            r"\btry (?:your request )?again\b",
            r"\bserver (?:error|encountered an (?:internal |unexpected )?error|had an error)\b",
        ),
    ),
    row(
        "text.network",
        "CONNECTION",
        message=(
            r"\b(?:cannot|could not|couldn't|can't|unable to|failed to|failure to|error while|not able to) (?:establish (?:a )?(?:new )?)?(?:connect|reach|contact|communicate with|open a connection|establish)\b",
            r"\bconnection failed\b",
            r"\bsocket error\b",
            r"\bconnection (?:error|errors|broken|attempt failed)\b",
            r"\bnot connected to\b",
            r"\bnetwork (?:is )?(?:unreachable|error|failure|changed|down|problem|disconnected)\b",
        ),
    ),
    row(
        "text.unreadable",
        "BAD_FILE",
        message=(
            r"\bInvalid data found when processing input\b",
            r"\bError (?:while )?(?:opening|initializing|decoding|reading|parsing) (?:input|output|data|encoder|decoder|stream|filters?|file)\b",
            r"\berror while decoding\b",
            r"\berror (?:while )?(?:creating|loading|rendering|converting|rasteri[sz]ing) (?:the |an? )?(?:document|pdf|image|page|file)\b",
            r"\b(?:pdf|page|image|document|pdf/a|ghostscript) (?:rendering|rasteri[sz]ing|conversion) failed\b",
            r"\bInvalid argument\b",
            r"\bcannot (?:find or open|handle|process)\b",
            r"\b(?:cannot|can't|could not|couldn't|unable to|failed to) (?:identify|decode|parse|read|determine|recogni[sz]e|decompress|decrypt|find (?:the )?(?:startxref|xref|trailer|end of central)|load|open) (?:the |an? )?(?:\w+ )?(?:image|document|file|pdf|zip|archive|stream|video|audio|page|header|frame|data|type|format|trailer|xref|input|bitstream|central directory)\b(?!.{0,40}\b(?:no such|permission|too many|temporar|shared object|lock))",
        ),
    ),
    row("text.file-exists", "ALREADY_EXISTS", message=r"\bfile exists\b"),
    row(
        "text.not-there",
        "NOT_FOUND",
        message=(
            r"\bno \w+ (?:can|could) (?:handle|be|load|read)\b",
            r"\bno \w+ (?:was |were )?(?:found|given|specified|selected|provided|defined|detected|recogni[sz]ed|matched)\b",
            r"\bn'existe pas\b",
            r"\bexistiert nicht\b",
            r"\bno existe\b",
            r"\bnão existe\b",
            r"\bне существует\b",
            r"\bnicht gefunden\b",
            r"\b(?:est|fichier|sont) introuvables?\b",
            r"不存在|見つかりません|存在しません|找不到",
            r"\bunable to (?:find|locate|open|load)\b(?! credentials)",
            r"\bcan't (?:open|find|locate|stat|cd to|chdir)\b",
            r"\bcould not (?:find|locate|open)\b(?! (?:a )?(?:free|connection))",
            r"\b(?:does not|doesn't) exist\b",
            r"\bnot found\b",
        ),
    ),
    row(
        "text.not-valid",
        "INVALID_INPUT",
        message=(
            r"\bno (?:es )?válid[oa]\b",
            r"\bungültig\w*",
            r"\bnon valide\b",
            r"\bdañad[oa]\b|\bbeschädigt\b|\bendommagé\b",
            r"不是有效|無効な|无效",
            r"\b(?:is|are|was|were) (?:not (?:a )?(?:valid|allowed|supported|recognized|accepted)|invalid|unsupported|malformed|not an? (?:valid|supported))\b",
            r"\bmust (?:be|have|not|contain|start|end|match|specify|provide|include)\b",
            r"\bshould be (?:a|an|one|at|in|greater|less|of)\b",
            r"\bvalue is not\b",
            r"\bnot (?:a )?valid\b",
            r"\bbad request\b",
            r"\bdoes not (?:match|support|conform|contain|accept|allow)\b",
            r"\bdoesn't (?:match|support|accept)\b",
            r"\bout of (?:range|bounds)\b",
            r"\bnot supported\b",
            r"\btoo (?:large|long|big)\b",
        ),
    ),
)

# Phrases about things that usually do not change by themselves. Tried last, and only if no
# TRANSIENT_SIGN is in the text.
_CANNOT = (
    row(
        "text.cannot",
        "PERMANENT_ERROR",
        message=(
            r"\b(?:cannot|can't|can not|could not|couldn't|unable to|not able to|won't|refuse to|refuses to) \w+",
            r"\bmissing (?:a |an |the |required )?\w+",
            r"\b(?:\w+ )?(?:is|are|was|were|seems) (?:missing|wrong|incorrect|undefined|ambiguous|incomplete|inconsistent|obsolete|outdated|too (?:old|new|short|small|few))\b",
            r"\bno (?:suitable|such|matching|valid|known|compatible|usable|rule|kernel image|backend|module|default|input|output|value|rows?|data|result) \w+",
            r"\b(?:undefined|unexpected|unresolved|unbound|unhandled|uncaught|duplicate|conflicting|incompatible|unsatisfiable|mismatched|outdated|obsolete|undeclared|unregistered|unparsable|unparseable|unroutable|unsubscribed|unspecified|nonexistent|non-existent|unreadable) \w+",
            r"\b(?:require|requires|required|need|needs|expect|expects|expected|only supports|only support|must|should|have to|has to) (?:a |an |the |to |be |all |at |that )?\w+",
            r"\b(?:please|make sure|ensure|check|verify|consider|try|did you|use|run|install|specify|provide|set|pass|add|remove|increase|enable|update|upgrade|correct) (?:to |that |you |the |your |a |an |using )?\w+",
            r"\b(?:already|not) (?:has|have|been|exist|exists|registered|recogni[sz]ed|up to date|compatible|equal|unique|empty|divisible|enough|match|accepted|applicable|possible|a|an|the) ?\w*",
            r"\b(?:wrong|bad|illegal|incorrect|improper|invalid|malformed|unknown|unsupported|unrecognized|unrecognised|forbidden|disallowed) \w+",
            r"\b(?:parsing|parse|decode|decoding|deserializ\w+|conversion|converting|validation|syntax|schema|format|type|assertion|compile|compilation|import|configuration|definition) (?:error|failed|failure|problem|exception)\b",
            r"\bpanicked at\b|\bResult::unwrap\b|\bassert(?:ion)? (?:triggered|failed)\b|\bfatal error\b|\bemergency stop\b|\bcore dumped\b",
            r"\b(?:\w+ )(?:mismatch|overflow)\b",
            r"\bout of (?:range|bounds|order|date|sync)\b",
            r"\b(?:isn't|aren't|wasn't|doesn't|don't|didn't|do not|does not|did not) \w+",
            r"\bno \w+ (?:for|with|matching|named|called) \w+",
            r"\bnot (?:fully|within|part of|inside|among) \w+",
            r"\bgot more than \d+ \w+",
            r"\bhas only \d+ \w+",
            r"\bcircular \w+",
            r"\bis not (?:available|known|present) (?:in|on|for|to) \w+",
            r"\bfound no \w+",
            r"\bencountered \w+ \w+, expected \w+",
            r"\bnot in \w+",
            r"\b(?:is|are) (?:required|needed|mandatory)\b",
            r"\bthere (?:is|are) no \w+",
            r"\b(?:has|have|had|contains?) no \w+",
            r"\bhas been (?:deleted|archived|revoked|retired|discontinued)\b",
            r"\bno (?:<> \w+|\w+ <>)",
            r"\bfailed to (?:parse|decode|deserialize|compile|import|validate|convert|identify|recogni[sz]e|determine|interpret|initiali[sz]e|render) \w+",
            r"\bexecution failed for task\b|\bbuild failed\b",
            r"\bonly (?:has|have|had|contains?|allows?|accepts?) \w+",
            r"\bmaximum (?:\w+ ){1,3}exceeded\b",
        ),
    ),
)

# Phrases after the name of a thing: `codec unsupported`, `height above the maximum`.
_IS_WRONG = (
    row(
        "text.is-wrong",
        "INVALID_INPUT",
        message=(
            r"[\w>] (?:unsupported|unknown|missing|malformed|absent|forbidden|unreadable|incorrect|revoked|retired|archived|reserved|protected|disabled|undefined|unset|invalid|mismatched|prohibited|repeated|lacking)\b",
            r"\b(?:is|are|was|were|id|name|prompt|input|file|list|body|string|text) empty\b",
            r"\b(?!lease|lock|session|cursor|pod|stream)\w+ (?:expired|deleted|removed)(?: \d|$|[.;])",
            r"\bdiffers? from \w+|\bversions differ\b|\bshapes disagree\b",
            r"\bbelongs? to (?:a |an )?(?:different|another|other)\b",
            r"\b(?:outside|beyond) (?:of )?(?:the )?[\w\[<-]+",
            r"\b(?:larger|smaller|longer|shorter|newer|older) than \w+",
            r"\b(?:above|below) the (?:\w+ )?(?:\w+ )?(?:maximum|minimum|required|allowed)\b",
            r"\btoo (?:old|new|short|small|few|deep|narrow|wide)\b",
            r"\blacks? (?:a |an |the )?\w+",
            r"\bcontains? (?:a |an )?(?:cycle|virus|mixed|null|0|zero|duplicate|invalid|illegal)\b",
            r"\b(?:forbids|rejects|prohibits|disallows) \w+",
            r"\bmay not (?:contain|be used|have|start|exceed)\b",
            r"\bwould (?:break|overwrite|violate|exceed) \w+",
            r"\bnot (?:supplied|provided|rendered|visible|shared|permitted|approved|embedded|readable)\b",
            r"\balready (?:refunded|shipped|paid|assigned|points)\b",
            r"\b(?:is|are) (?:impossible|singular|final|immutable|unsigned|NaN|a null|past its)\b",
            r"\b(?:dependency|import) cycle\b|\bcycle between\b",
            r"\b(?:password|verification|purchase|payment|subscription|approval) (?:is )?(?:needed|required)\b",
            r"\bappears twice\b|\bopted out\b|\bmakes no sense\b|\bchanged since\b|\bend of support\b",
            r"\bis an empty sequence\b|\bempty separator\b|\bmath domain error\b|\bnegative count\b",
            r"\bbadly formed\b|\bunconverted data remains\b|\bnon-hexadecimal\b|\bhost bits set\b",
            r"\bdivision by zero\b|\bunhashable type\b|\breferenced before assignment\b|\bunbalanced \w+",
            r"\b(?:made private|taken down|blocked this|blocked it) (?:by|in|for)\b",
            r"\b(?:rejected|refused) by (?:the )?(?:encoder|decoder|validator|policy|schema|filter|parser|endpoint)\b",
        ),
    ),
)

WEAKEST = (*_CANNOT, *_IS_WRONG)

# Words that make the weakest phrases unreliable.
TRANSIENT_SIGN = (
    r"(?<![\w.=/\[-])(?:again|later|retry|retrying|retries|temporar(?:y|ily)|transient|intermittent|timeout|timed out|unavailable|busy|overload(?:ed)?|lock(?:ed)?|"
    r"connection|connect|socket|peer|upstream|gateway|memory|killed|killing|crash(?:ed)?|died|dead|shutdown|restart(?:ed|ing)?|interrupted by|network|"
    r"disk|exhausted|throttl\w*|too many|limit reached|slow|concurrent\w*|deadlock\w*|replica|leader|stale|dropped|abort(?:ed)?|hang|hung|unresponsive|"
    r"not responding|heartbeat|lease|evicted|preempt\w*|capacity|is full|maintenance|waiting|allocate|fork|closed|lost|reset|refused|broken pipe|unexpectedly|respond|no response)\b(?!=|\.\w| <>| (?:string|type|name|url|parameter|setting|option|policy|size|key|class|order)\b)"
)


# --- Overrides: the reason in the text contradicts the type, the code or the status ---

# A service or a network failed; nothing was refused.
SERVICE_FAILED = (
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
# A certificate or a configuration is wrong; waiting changes nothing.
CERTIFICATE_REJECTED = (
    r"\bCERTIFICATE_VERIFY_FAILED\b",
    r"\bcertificate verify failed\b",
    r"\bself[- ]signed certificate\b",
    r"\bcertificate has expired\b",
    r"\bWRONG_VERSION_NUMBER\b",
    r"\bwrong version number\b",
    r"\bunable to get local issuer certificate\b",
    r"\bTLSV1_ALERT_PROTOCOL_VERSION\b",
)
LOGIN_REJECTED = (
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

_CREDENTIAL_TYPES = split_names(
    """
    CredentialRetrievalError MetadataRetrievalError RefreshError TransportError TokenRetrievalError
    ClientAuthenticationError CredentialUnavailableError Unauthenticated
    """
)
_CONNECTION_TYPES = split_names(
    """
    ConnectionError ConnectError ConnectionRefusedError ServerSelectionTimeoutError AutoReconnect NoBrokersAvailable KafkaConnectionError
    EndpointConnectionError AMQPConnectionError APIConnectionError ProxyError ClientConnectorError ServiceRequestError
    SMTPServerDisconnected NoValidConnectionsError
    """
)

OVERRIDE_RULES = (
    row("turned.token-service", "CONNECTION", type=_CREDENTIAL_TYPES, message=SERVICE_FAILED),
    row("turned.untrusted", "CERTIFICATE", type=_CONNECTION_TYPES, message=CERTIFICATE_REJECTED),
    row("turned.not-let-in", "AUTH", type=_CONNECTION_TYPES, message=LOGIN_REJECTED),
    row(
        "turned.rpc-untrusted",
        "CERTIFICATE",
        grpc_status=("UNAVAILABLE", "UNKNOWN", "INTERNAL"),
        message=CERTIFICATE_REJECTED,
    ),
    row(
        "turned.rpc-not-let-in",
        "AUTH",
        grpc_status=("UNAVAILABLE", "UNKNOWN", "INTERNAL"),
        message=LOGIN_REJECTED,
    ),
    row(
        "turned.code-untrusted",
        "CERTIFICATE",
        provider_code="UNAVAILABLE",
        message=CERTIFICATE_REJECTED,
    ),
    row("turned.code-not-let-in", "AUTH", provider_code="UNAVAILABLE", message=LOGIN_REJECTED),
    row(
        "turned.refused-for-now",
        "HTTP_5XX",
        http_status=(401, 403, 404, 409, 422, 424),
        message=SERVICE_FAILED,
    ),
    row(
        "turned.rpc-refused-for-now",
        "RATE_LIMITED",
        grpc_status=("PERMISSION_DENIED", "UNAUTHENTICATED"),
        message=(*SLOW_DOWN, *SERVICE_FAILED),
    ),
    row(
        "turned.bad-request",
        "HTTP_5XX",
        provider_code=split_names(
            """
            invalid_image_url invalid_request_error invalid_file invalid_value BadRequest badRequest InvalidRequest
            """
        ),
        message=SERVICE_FAILED,
    ),
    row(
        "turned.proxy",
        "MISCONFIGURED",
        type=split_names("ProxyError ConnectError MaxRetryError ClientHttpProxyError"),
        message=(
            r"\btunnel connection failed: 4(?:0[0145]|51)\b",
            r"\bonly use HTTP and not HTTPS\b",
        ),
    ),
    row(
        "turned.closed-by-them",
        "CONNECTION",
        type="LocalProtocolError",
        message=r"\bConnectionState\.CLOSED\b",
    ),
    row(
        "turned.lease-lost",
        "CONNECTION",
        type=split_names("kazoo.exceptions.SessionExpiredError ConnectionLoss"),
    ),
    row(
        "turned.fetch",
        "CONNECTION",
        type="TypeError",  # the error of browsers and Node if the network is down
        message=(
            r"\bfailed to fetch\b",
            r"\bfetch failed\b",
            r"\bNetworkError when\b",
            r"^TypeError: terminated$",
        ),
    ),
    row(
        "turned.state",
        "NOT_READY",
        provider_code=split_names(
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
        provider_code=split_names(
            "ConditionNotMet ConditionalCheckFailedException PreconditionFailed"
        ),
        message=r"\bacquiring the state lock\b",
    ),
    row(
        "turned.denied-for-now",
        "RATE_LIMITED",
        provider_code=split_names(
            "Unauthorized Forbidden AccessDenied AccessDeniedException AuthorizationFailed"
        ),
        message=(*SLOW_DOWN, r"\blimit of \d+\b.{0,40}\bconcurrently\b"),
    ),
    row(
        "salesforce.daily",
        "QUOTA",
        provider_code="REQUEST_LIMIT_EXCEEDED",
        message=r"\bTotalRequests Limit exceeded\b",
    ),
)
