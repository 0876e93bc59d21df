"""HTTP statuses, and the few reasons in a body that turn one into another."""

from __future__ import annotations

from mulligan.policy.builtin.row import row

DAILY = (
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
MONEY = (
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
ONE_TOO_LARGE = (
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
IN_MOTION = (
    r"\b(?:is|are) (?:currently )?(?:catching up|relocating|rebalancing|recovering|syncing|resyncing|in transition)\b",
    r"\b(?:is|are) (?:currently )?being (?:restored|moved|migrated|relocated|rebuilt|upgraded|failed over)\b",
)
WARMING = (
    *IN_MOTION,
    r"\bnot (?:found|available|ready) yet\b",
    r"\bis still \w+ing\b",
    r"\bis (?:still )?pending\b(?! deletion)",
    r"\b(?:is (?:currently )?loading|not (?:yet )?ready|still (?:being )?(?:processing|processed|starting)|warming up|is starting|try again (?:later|in)|temporarily)\b",
)
TRANSIENT_400 = (
    r"\baborted due to\b",
    r"\b(?:RequestTimeout|backend error|retrying the job|socket connection to the server was not read|(?<!and )try again|try again (?:later|in|after|shortly|soon)|wait[\w ]{0,30} try again|temporar(?:y|ily)|timed out|internal error|upstream)\b",
)
BLOCKED = (
    r"\b(?:block|restrict)\w* access from your (?:country|region|location|network)\b",
    r"\b(?:country|region|territory|location|geo(?:graphic)?)[\w ]{0,20}(?:not supported|restrict|unsupported|blocked|unavailable)",
)

RULES = (
    row("http.quota-money", "QUOTA", http_status=(400, 401, 403, 429, 503), message=MONEY),
    row("http.too-large-for-limit", "TOO_LARGE", http_status=(429, 400), message=ONE_TOO_LARGE),
    row("http.quota-long", "QUOTA", http_status=(403, 429, 509), message=DAILY),
    row(
        "http.slow-down",
        "RATE_LIMITED",
        http_status=(400, 401, 403, 404, 409, 410, 412, 420, 500, 502, 503),
        message=SLOW_DOWN,
    ),
    row("http.per-minute", "RATE_LIMITED", http_status=429, message=r"PerMinute|PerSecond"),
    row("http.in-progress", "NOT_READY", http_status=(400, 404, 409, 412, 423), message=WARMING),
    row("http.conflict", "BUSY", http_status=(409, 412), message=IN_PROGRESS),
    row("http.temporary-400", "HTTP_5XX", http_status=(400, 410), message=TRANSIENT_400),
    row(
        "http.untrusted",
        "CERTIFICATE",
        http_status=(500, 502, 503, 525, 526),
        message=(r"\bCERTIFICATE_VERIFY_FAILED\b", r"\bcertificate verify failed\b"),
    ),
    row("http.unknown-domain", "MISCONFIGURED", http_status=(500, 502, 503), message=r"\bunknown domain\b"),
    row("http.blocked", "ACCESS_DENIED", http_status=(400, 403, 451), message=BLOCKED),
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
    row("http.impossible", "HTTP_IMPOSSIBLE", http_status=(411, 412, 417, 426, 428, 451, 501, 505, 525, 526)),
    row("http.moved", "HTTP_IMPOSSIBLE", http_status=(300, 301, 302, 303, 305, 307, 308)),
    row("http.stopped", "STOPPED", http_status=499),
    row("http.full", "SERVICE_FULL", http_status=507),
    row("http.unavailable", "HTTP_5XX", http_status=(421, 423, 425, 500, 502, 503, 520, 521, 523, 527, 529, 530)),
)
