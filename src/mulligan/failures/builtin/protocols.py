"""Rules about the statuses of HTTP, SMTP and gRPC, and about reasons in texts that change them."""

from __future__ import annotations

from mulligan.failures.rules import row, split_names

DAILY_QUOTA = (
    r"/ ?(?:day|month)\b",
    r"\b(?:per|each|a) ?(?:day|month)\b",
    r"\b(?:daily|monthly|weekly)\b[\w -]{0,30}\b(?:limit|quota|cap|allowance)",
    r"\btoday's\b.{0,30}\b(?:limit|quota)\b",
    r"\bwait (?:for|until) tomorrow\b",
    r"\b(?:this|current) (?:month|billing period|billing cycle)\b",
    r"\b(?:daily|monthly|weekly) (?:calls|requests|credits|messages|tokens)\b",
    r"PerDay",
    r"PerMonth",
)
BILLING = (
    r"\bbilling (?:details|account|hard limit|not enabled|is disabled|is not enabled|issue)",
    r"\b(?:insufficient|not enough|out of|no|low|exhausted) (?:remaining )?(?:credits?|funds|balance)\b",
    r"\bcredit balance\b",
    r"\bpayment (?:required|method|is past due)",
    r"\bexceeded your current quota\b",
    r"\bexceeded your (?:monthly|included|current) (?:credits?|included)",
    r"\b(?:upgrade|purchase|recharge|top up|add) (?:to|your|a|more)? ?(?:paid |credits|plan|account|subscription|pro\b)",
    r"\bsubscription (?:has )?(?:expired|ended|inactive)",
    r"\bspending (?:limit|cap)",
    r"\bcard was declined\b",
    r"\bunpaid\b.{0,20}\b(?:invoice|bill)",
    r"\bplan limit\b",
    r"\bis past due\b",
    r"\binvoice\b.{0,20}\b(?:overdue|unpaid)\b",
    r"\bsuspended\b.{0,30}\bpayment\b",
)
REQUEST_TOO_LARGE = (
    r"\bexceeds? (?:the )?context (?:limit|length|window)\b",
    r"\b(?:metadata|header|message|request) size exceeds\b",
    r"\b(?:request|message|prompt|input|payload|tokens?) (?:is |was )?(?:too (?:large|long|big))\b",
    r"\bmust be reduced\b",
)
SLOW_DOWN = (
    r"\bover its \w+ limit\b",
    r"\brate[- ]?limit(?:ed|ing|s)?\b(?: (?:exceeded|reached|hit))?",
    r"\btoo many requests\b",
    r"\btoo many concurrent\b",
    r"\bslow ?down\b",
    r"\bthrottl(?:ed|ing)\b",
    r"\bsecondary rate limit\b",
    r"\b(?:user)?rateLimitExceeded\b",
    r"\babuse detection\b",
    r"\btoo many (?:connections|attempts|messages) from\b",
    r"\breduce your request rate\b",
    r"\bexceeded rate limits?\b",
    r"\bexceeds the rate limit\b",
    r"\brequest limit reached\b",
    r"\bper (?:minute|second)\b",
    r"\bmaximum number of (?:running|concurrent|simultaneous)\b",
    r"\bplease wait (?:a few|some|\d+) (?:seconds|minutes|moments)\b",
    r"PerMinute|PerSecond",
)
IN_PROGRESS = (
    r"\bin progress\b",
    r"\bexclusive access\b",
    r"\bversion conflict, ",
    r"\b(?:changed|modified|updated|written) by another\b",
    r"\bstill (?:active|being|running|in use|locked)\b",
    r"\bresource lock\b",
    r"\b(?:in progress|being (?:processed|modified|updated|created|deleted)|locked|try again|please retry|concurrent(?:ly)?|conflicting (?:operation|conditional)|another (?:operation|request|process)|aborted|transaction contention|not ready|still (?:processing|running))\b",
)
BEING_MOVED = (
    r"\b(?:is|are) (?:currently )?(?:catching up|relocating|rebalancing|recovering|syncing|resyncing|in transition)\b",
    r"\b(?:is|are) (?:currently )?being (?:restored|moved|migrated|relocated|rebuilt|upgraded|failed over)\b",
)
NOT_READY_YET = (
    *BEING_MOVED,
    r"\bnot (?:found|available|ready) yet\b",
    r"\bis still \w+ing\b",
    r"\bis (?:still )?pending\b(?! deletion)",
    r"\b(?:is (?:currently )?loading|not (?:yet )?ready|still (?:being )?(?:processing|processed|starting)|warming up|is starting|try again (?:later|in)|temporarily)\b",
)
TEMPORARY_400 = (
    r"\baborted due to\b",
    r"\b(?:RequestTimeout|backend error|retrying the job|socket connection to the server was not read|(?<!and )try again|try again (?:later|in|after|shortly|soon)|wait[\w ]{0,30} try again|temporar(?:y|ily)|timed out|internal error|upstream)\b",
)
REGION_BLOCKED = (
    r"\b(?:block|restrict)\w* access from your (?:country|region|location|network)\b",
    r"\b(?:country|region|territory|location|geo(?:graphic)?)[\w ]{0,20}(?:not supported|restrict|unsupported|blocked|unavailable)",
)

HTTP_RULES = (
    row("http.quota-money", "QUOTA", http_status=(400, 401, 403, 429, 503), message=BILLING),
    row("http.too-large-for-limit", "TOO_LARGE", http_status=(429, 400), message=REQUEST_TOO_LARGE),
    row("http.quota-long", "QUOTA", http_status=(403, 429, 509), message=DAILY_QUOTA),
    row(
        "http.slow-down",
        "RATE_LIMITED",
        http_status=(400, 401, 403, 404, 409, 410, 412, 420, 500, 502, 503),
        message=SLOW_DOWN,
    ),
    row("http.per-minute", "RATE_LIMITED", http_status=429, message=r"PerMinute|PerSecond"),
    row(
        "http.in-progress",
        "NOT_READY",
        http_status=(400, 404, 409, 412, 423),
        message=NOT_READY_YET,
    ),
    row("http.conflict", "BUSY", http_status=(409, 412), message=IN_PROGRESS),
    row("http.temporary-400", "HTTP_5XX", http_status=(400, 410), message=TEMPORARY_400),
    row(
        "http.untrusted",
        "CERTIFICATE",
        http_status=(500, 502, 503, 525, 526),
        message=(r"\bCERTIFICATE_VERIFY_FAILED\b", r"\bcertificate verify failed\b"),
    ),
    row(
        "http.unknown-domain",
        "MISCONFIGURED",
        http_status=(500, 502, 503),
        message=r"\bunknown domain\b",
    ),
    row("http.blocked", "ACCESS_DENIED", http_status=(400, 403, 451), message=REGION_BLOCKED),
    row("http.rate-limited", "RATE_LIMITED", http_status=(420, 429, 509)),
    row("http.timeout", "TIMEOUT", http_status=(408, 504, 522, 524, 598, 599)),
    row("http.auth", "AUTH", http_status=(401, 407, 511)),
    row(
        "http.disk-block",
        "SERVICE_FULL",
        http_status=(403, 429),
        message=(r"\bflood-stage watermark\b", r"\bread-only[ /-]+allow[- ]delete\b"),
    ),
    row("http.denied", "ACCESS_DENIED", http_status=403),
    row("http.quota", "QUOTA", http_status=402),
    row("http.missing", "MISSING", http_status=(404, 410)),
    row("http.too-large", "TOO_LARGE", http_status=(413, 414, 431)),
    row("http.refused", "HTTP_4XX", http_status=(400, 405, 406, 415, 416, 422)),
    row("http.exists", "ALREADY_EXISTS", http_status=409),
    row(
        "http.impossible",
        "HTTP_IMPOSSIBLE",
        http_status=(411, 412, 417, 426, 428, 451, 501, 505, 525, 526),
    ),
    row("http.moved", "HTTP_IMPOSSIBLE", http_status=(300, 301, 302, 303, 305, 307, 308)),
    row("http.stopped", "STOPPED", http_status=499),
    row("http.full", "SERVICE_FULL", http_status=507),
    row(
        "http.unavailable",
        "HTTP_5XX",
        http_status=(421, 423, 425, 500, 502, 503, 520, 521, 523, 527, 529, 530),
    ),
)


# --- SMTP: the enhanced status is more specific than the reply code; 4xx is temporary ---

_MAIL_RATE_LIMIT = (
    r"\btoo many\b(?!.{0,60}\b(?:today|daily|per day)\b)",
    r"\brate\b.{0,20}\b(?:limit|exceeded)",
    r"\bthrottl(?!.{0,60}\b(?:daily|per day)\b)",
    r"\bslow down\b",
)
_MAIL_4XX_5XX = ("smtp:4*", "smtp:5*")

SMTP_RULES = (
    row("smtp.quota", "QUOTA", provider_code=("smtp:5.4.5", "smtp:4.7.28")),
    row("smtp.daily", "QUOTA", provider_code=_MAIL_4XX_5XX, message=DAILY_QUOTA),
    row("smtp.full-mailbox", "MAIL_DEFERRED", provider_code="smtp:5.2.2"),
    row("smtp.rate", "RATE_LIMITED", provider_code="smtp:4*", message=_MAIL_RATE_LIMIT),
    row(
        "smtp.for-now",
        "MAIL_DEFERRED",
        provider_code="smtp:5*",
        message=(
            r"\bgrey-?list",
            r"\b(?:try|come back|resend) (?:again )?later\b",
            r"\btemporar(?:y|ily) \w+",
        ),
    ),
    row(
        "smtp.many-logins",
        "RATE_LIMITED",
        provider_code="smtp:5*",
        message=r"\btoo many (?:login|failed|connections|concurrent)\b",
    ),
    row(
        "smtp.auth",
        "AUTH",
        provider_code=split_names(
            """
            smtp:5.7.8 smtp:5.7.9 smtp:5.7.14 smtp:5.7.3 smtp:535 smtp:530 smtp:534 smtp:538 smtp:5.7.57 smtp:5.7.139
            """
        ),
    ),
    row(
        "smtp.address",
        "BAD_ADDRESS",
        provider_code=split_names(
            "smtp:5.1.* smtp:5.2.1 smtp:5.4.4 smtp:5.4.1 smtp:553 smtp:5.0.1"
        ),
    ),
    row("smtp.size", "TOO_LARGE", provider_code=split_names("smtp:5.3.4 smtp:5.2.3 smtp:552")),
    row(
        "smtp.refused",
        "MAIL_REFUSED",
        provider_code=split_names(
            """
            smtp:5.* smtp:550 smtp:551 smtp:554 smtp:555 smtp:500 smtp:501 smtp:502 smtp:503 smtp:504 smtp:521
            smtp:541 smtp:556
            """
        ),
    ),
    row(
        "smtp.later",
        "MAIL_DEFERRED",
        provider_code=split_names(
            "smtp:4.* smtp:421 smtp:450 smtp:451 smtp:452 smtp:454 smtp:432 smtp:447 smtp:471"
        ),
    ),
    row(
        "smtp.type-unsupported",
        "MISCONFIGURED",
        type=("smtplib.SMTPNotSupportedError", "SMTPNotSupported"),
    ),
    row(
        "smtp.type-gone",
        "CONNECTION",
        type=("smtplib.SMTPServerDisconnected", "smtplib.SMTPConnectError"),
    ),
)


# --- gRPC: a job repeats the whole unit of work, so it may retry more statuses than a client ---

_TRANSPORT_ERROR = (
    r"\b(?:RST_STREAM|GOAWAY|connection (?:reset|closed|refused|aborted)|transport is closing|stream (?:terminated|removed)|socket closed|received http2|unavailable|temporar(?:y|ily)|try again|retry)\b",
)

GRPC_RULES = (
    row(
        "grpc.per-minute",
        "RATE_LIMITED",
        grpc_status="RESOURCE_EXHAUSTED",
        message=r"PerMinute|PerSecond",
    ),
    row("grpc.quota-money", "QUOTA", grpc_status="RESOURCE_EXHAUSTED", message=BILLING),
    row("grpc.quota-long", "QUOTA", grpc_status="RESOURCE_EXHAUSTED", message=DAILY_QUOTA),
    row(
        "grpc.message-too-large",
        "TOO_LARGE",
        grpc_status=("RESOURCE_EXHAUSTED", "OUT_OF_RANGE"),
        message=(
            r"\blarger than max\b",
            r"\bmessage (?:size )?exceeds\b",
        ),
    ),
    row(
        "grpc.not-ready",
        "NOT_READY",
        grpc_status="FAILED_PRECONDITION",
        message=(
            r"\bnot (?:yet )?(?:ready|in an active state)\b",
            r"\bbeing (?:built|created|updated|deleted)\b",
            r"\bin progress\b",
            r"\btry again\b",
        ),
    ),
    row("grpc.session", "CONNECTION", grpc_status="NOT_FOUND", message=r"\bsession not found\b"),
    row(
        "grpc.transport",
        "CONNECTION",
        grpc_status=("INTERNAL", "UNKNOWN", "CANCELLED"),
        message=_TRANSPORT_ERROR,
    ),
    row("grpc.unavailable", "HTTP_5XX", grpc_status="UNAVAILABLE"),
    row("grpc.aborted", "BUSY", grpc_status="ABORTED"),
    row("grpc.deadline", "TIMEOUT", grpc_status="DEADLINE_EXCEEDED"),
    row("grpc.exhausted", "RATE_LIMITED", grpc_status="RESOURCE_EXHAUSTED"),
    row("grpc.internal", "REMOTE_ERROR", grpc_status=("INTERNAL", "UNKNOWN")),
    row("grpc.cancelled", "STOPPED", grpc_status="CANCELLED"),
    row("grpc.invalid", "INVALID_INPUT", grpc_status=("INVALID_ARGUMENT", "OUT_OF_RANGE")),
    row("grpc.missing", "MISSING", grpc_status="NOT_FOUND"),
    row("grpc.exists", "ALREADY_EXISTS", grpc_status="ALREADY_EXISTS"),
    row("grpc.impossible", "MISCONFIGURED", grpc_status=("FAILED_PRECONDITION", "DATA_LOSS")),
    row("grpc.unsupported", "UNSUPPORTED", grpc_status="UNIMPLEMENTED"),
    row("grpc.auth", "AUTH", grpc_status="UNAUTHENTICATED"),
    row("grpc.denied", "ACCESS_DENIED", grpc_status="PERMISSION_DENIED"),
)
