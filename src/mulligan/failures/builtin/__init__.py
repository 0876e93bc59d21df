"""The built-in rule table: one module per subject, one rulebook per rank, and evidence for texts."""

from __future__ import annotations

import re
from functools import lru_cache

from mulligan.core.attempt import Cls
from mulligan.failures.builtin import (
    clouds,
    databases,
    libraries,
    protocols,
    runtime,
    texts,
)
from mulligan.failures.matcher import Rulebook
from mulligan.failures.regex import lazy_regex
from mulligan.failures.rules import Rule, row

# --- Evidence: words that a text must contain before a code may name a thing ---

# Text rules match phrases such as "invalid" and "cannot", which every program writes. They decide
# the class well, but "The file is damaged" is false if there is no file. Without evidence for its
# thing a failure gets a code of a similar class that names none.


def _words(words: str, other: str = "") -> str:
    """Return a pattern of words by their beginnings, and of `other` anywhere."""
    pattern = rf"(?<![a-z])(?:{words})"
    return f"{pattern}|{other}" if other else pattern


# A name such as report.pdf.
_FILE_NAME = r"\w\.[a-z][a-z0-9]{1,4}\b(?=['\"):, ]|$)"
_SERVICE = (
    r"services?\b|servers?\b|api\b|https?\b|urls?\b|gateway|upstream|remote|hosts?\b|hostname|endpoint|web\b|website"
    r"|cloud|sites?\b|browser|providers?\b|backend|clusters?\b|replicas?\b|leader|shards?\b|brokers?\b|mail|smtp"
    r"|gr[ae]ylist|rpc\b|nodes?\b|download|requests?\b|responses?\b|reply|database|maintenance|proxy|daemon"
)
# The thing of a code, as words of which a text, an exception type or a program must contain one.
EVIDENCE = {
    "BAD_FILE": _words(
        r"files?\b|filename|image|photo|picture|archive|documents?\b|pdf|zip|tar\b|gzip|rar\b|7z|video|audio|jpe?g|png"
        r"|tiff|webp|gif\b|svg|bmp|xref|startxref|ffmpeg|ffprobe|invalid data found when|av\b|codec(?! can)|moov|pixel|media\b|bit ?stream|frame header|frames\b"
        r"|font|mp[34]|mov\b|mkv|csv|xlsx?|docx?|parquet|upload|attachment|compressed|deflate|huffman|nal\b"
        r"|central directory|decoder(?!\.)|encoder|ghostscript|gs\b|imagemagick|magick|pages?\b|muxer|h26[45]|pil\b|tesseract"
        r"|pikepdf|safetensors|checkpoint|input stream|streams?\b.{0,30}\b(?:map|matches|corrupt)",
        _FILE_NAME,
    ),
    "NOT_FOUND": _words(
        r"files?\b|filename|director(?:y|ies)|folder|path\b.{0,60}\b(?:exist|found)|font|librar|package|binary|executable"
        r"|no such file|shared object|archive|documents?\b|image|video|audio|fichier|datei|stat\b",
        rf"[a-z]:\\|(?<![\w/])\.{{0,2}}/\w|{_FILE_NAME}",
    ),
    "MISCONFIGURED": _words(
        r"config|misconfig|setting|environ|env\b|install|deploy|version (?:is|of|mismatch)|versions? .{0,20}(?:support|compat|requir)|region\b|endpoint|bucket|databases?\b|schema"
        r"|migration|relation\b|columns?\b|no such table|dsn\b|connection string|drivers?\b|plugin|librar|clusters?\b"
        r"|namespace|repository|git\b|ssl|hosts?\b|hostname|providers?\b|broker|kafka|dependenc|compil|lockfile|keyspace"
        r"|docker|encoder|ffmpeg|displays?\b|file ?system|deprecat|sunset|discontinued|end[- ]of[- ]life|kernel|cuda|api\b"
    ),
    "PROGRAM_MISSING": _words(
        r"command[- ]line|command not found|git command|program|executable|binary|exec|path\b|install|modules?\b|librar|packages?\b|encoder|decoder|codec"
        r"|muxer|ffmpeg|glibc|symbol|docker|container|entrypoint|usage|compiled|fatal python|distribution|manifest"
        r"|metadata|dependenc|built with|import\b|cannot import|importerror|modulenotfound",
        r"(?<!\S)--?[a-z]",
    ),
    "PERMISSION": _words(
        r"permi|denied|eacces|eperm|erofs|read-only|keine berechtigung|security policy|error/"
        r"|(?:file|dir|path|folder|disk)\w*\b.{0,40}\bwrit|writ\w+\b.{0,40}\b(?:file|dir|path|folder|disk)"
    ),
    "ACCESS_DENIED": _words(
        r"services?\b|servers?\b|api\b|access(?!ed)|permission|privilege|accounts?\b|scopes?\b|roles?\b|forbidden|blocked|(?:control|security) policy|policy (?:violation|prevents|prohibits|denies)"
        r"|relay|bot\b|zugriff|accès|acceso|iam\b|sender|domain|ip\b|organi[sz]ation|authori[sz]|country|(?:allow|white)[- ]?list",
        "доступ|拒绝|アクセス",
    ),
    "AUTH": _words(
        r"credential|passw|log ?in\b|login|logon|sign[- ]?in\b|auth(?!or\b|ors\b)|api[- _]?key|access[- _]key|secret|jwt"
        r"|bearer|cookie|accounts?\b|licen[sc]e|subscription|trial|username|sso\b|certificate|signature(?! (?:method|type))|captcha|identity"
        r"|vault|challenge|hmac|starttls|pg_hba|confirm you|checkpoint required|granted|sessions?\b|publickey|host key|oauth"
        r"|(?:access|api|security|refresh|personal|id|session|csrf)[- _]?tokens?|tokens? .{0,20}(?:expired|revoked|invalid)"
        r"|https?\b|requests?\b|access_refused"
    ),
    "CERTIFICATE": _words(
        r"cert|tls|ssl|x509|host ?key|handshake|cipher|key exchange|ssh|remote host identification|dh key|https",
        "ERR_CERT",
    ),
    "UNAVAILABLE_CONTENT": _words(
        r"video|content|posts?\b|clips?\b|track|playlist|channel|media\b|reel|tweet|album|recording|episode|songs?\b|live"
        r"|streams?\b|url\b|https?\b|pages?\b|image|copyright|dmca|terms of service|guidelines|drm\b|geo|your country|formats?\b"
        r"|safety|harmful|prompt|moderation|flagged|files?\b|youtube|members?\b|on this server|private"
    ),
    "DATA_REFUSED": _words(
        r"databases?\b|db\b|sql|tables?\b.{0,80}\b(?:insert|violat|key)|(?:key|check|unique|null|exclusion) constraint|constraint failed|violates|foreign key|mongo|bson|e11000|elastic|opensearch|insert into|relation\b"
        r"|integrity|null value in|mapper|parsing_exception|document_parsing|strict_dynamic|illegal_argument|duplicate (?:key value|entry ')"
        r"|primary key|psycopg|postgres|mysql|maria|oracle|ora-\d|bigquery|snowflake|redshift|clickhouse|cassandra"
        r"|byte sequence|not-null|data error|dataerror|varchar"
    ),
    "QUOTA": _words(
        r"quota|limit|credit|billing|bill\b|balance|plan\b|usage|allowance|subscription|trial|cap\b|upgrade|funds|overdue|cost"
        r"|spend|top[- ]?up|payment required|prepa(?:id|y)|(?:calls|requests|queries|messages) ?(?:/|per|a)|insufficient",
        "PerDay",
    ),
    "HTTP_5XX": _words(_SERVICE),
    "CONNECTION": _words(
        r"connect|connexion|conexi|disconnect|network|sockets?\b|hosts?\b|hostname|peer\b|tls|ssl|dns|name resolution"
        r"|resolv|getaddrinfo|gai|servers?\b|streams?\b|early eof|unexpected (?:eof|end)|eof occurred|pipe|tunnel|proxy|transport|channel|remote|https?\b|net::"
        r"|session|transfer|download|upstream|endpoint|link\b|web|browser|pages?\b|tab\b|workers?\b|process|nodes?\b|pods?\b"
        r"|instance|container|executor|spot\b|preempt|evict|verbindung|recv|send failure|requested address|responses?\b"
        r"|chunk|nameserver|servfail|rst_stream|breaker|cluster|broker|daemon|fetch failed|packet|actor|communication"
        r"|incomplete ?read|no servers?|bad record|end hung|semaphore|terminated|empty reply|early",
        "接続|连接|соединен|ENOTFOUND|EAI_",
    ),
    "RATE_LIMITED": _words(
        rf"{_SERVICE}|rate\b|rate[- ]?limit|ratelimit|throttl|too many|quota|flood|throughput|calls\b|queries\b|messages\b"
        r"|slow ?down|calm|enhance_your|(?:per|a) (?:second|minute|hour)|(?:a )?wait|concurrent"
    ),
    "DISK_FULL": _words(
        r"disk|space|storage|volume|device|file ?system|partition|inode|drive|tablespace|sqlite|logs?\b|flood|read-only|pid"
    ),
    "MEMORY": _words(
        r"memory|alloc\w+ (?:of )?(?:\w+ )?(?:\d|bytes?|memory|buffer|tensor|array|fail)|heap|thread|fork|oom\b|malloc|shm|gc overhead|paging|rss|kill|circuit_breaking|data too large"
        r"|outofmemory|bad_alloc|enomem|cu(?:blas|dnn)"
    ),
    "TOO_MANY_FILES": _words(
        r"files?\b|descriptor|connect|clients?\b|sockets?\b|sessions?\b|pool|queuepool|ports?\b|connexion|verbindung|conexi",
        "клиент|подключен",
    ),
    "BAD_TRANSFER": _words(
        r"download|responses?\b|transfer|bytes?\b|files?\b|content|checksum|chunk|archive|body|fragment|retriev|upload|package"
    ),
    "STOPPED": _words(
        r"jobs?\b|tasks?\b|future|calls?\b|operation|requests?\b|query|download|upload|execution|context|keyboard|signal"
        r"|manual|cancel scope|rpc|statement|build|cancelled at|client|process|command|application|caller|operator|admin"
        r"|script|user (?:pressed|clicked|hit|cancel|abort|request)|by (?:the )?user|due to user|ioexception|killed"
    ),
}

# The code that names no thing, by class. A class that has none falls back to one as retryable.
NEUTRAL_CODES = {
    Cls.INVALID_INPUT: "INVALID_INPUT",
    Cls.PERMANENT: "PERMANENT_ERROR",
    Cls.AUTH: "PERMANENT_ERROR",
    Cls.QUOTA: "PERMANENT_ERROR",
    Cls.CANCELLED: "PERMANENT_ERROR",
    Cls.TRANSIENT: "TEMPORARY_ERROR",
    Cls.RATE_LIMITED: "TEMPORARY_ERROR",
    Cls.RESOURCE: "NO_CAPACITY",
}


def to_neutral(rule: Rule) -> Rule:
    """Return a text rule with a code that names no thing."""
    return row(rule.id, NEUTRAL_CODES[Cls(rule.cls)], message=rule.message)


# --- Rules ---

UNKNOWN = row("unknown", "UNKNOWN_ERROR", verdict="UNKNOWN_ERROR")
PROCESS_FAILED = row("process.failed", "PROCESS_FAILED", verdict="PROCESS_FAILED")


def version() -> str:
    """Return the version of the whole table, which every part of it reports."""
    return _whole_table().version


@lru_cache(maxsize=1)
def _whole_table() -> Rulebook:
    return Rulebook(RULES)


def _part(rules: tuple[Rule, ...]) -> Rulebook:
    return Rulebook(rules, get_version=version)


# One rulebook per rank. `ranking.RuleFinder.match_builtin` decides when each is tried.
STRUCTURE = _part(
    (
        *clouds.RULES,
        *protocols.SMTP_RULES,
        *databases.RULES,
        *runtime.PYTHON_RULES,
        *protocols.HTTP_RULES,
        *protocols.GRPC_RULES,
        *runtime.PROCESS_RULES,
        *libraries.RULES,
        *texts.OVERRIDE_RULES,
    )
)
SPECIFIC = _part(texts.SPECIFIC)
NORMAL = _part(texts.NORMAL)
WEAK = _part(texts.WEAK)
WEAKEST = _part(texts.WEAKEST)
TRANSIENT_SIGN = re.compile(texts.TRANSIENT_SIGN, re.IGNORECASE)
FALLBACK = _part((*runtime.PYTHON_FALLBACK_RULES, *libraries.FALLBACK_RULES))
BOOKS = (STRUCTURE, SPECIFIC, NORMAL, WEAK, FALLBACK, WEAKEST)
RULES = tuple(rule for book in BOOKS for rule in book.rules)

_TEXT_RULES = (*texts.SPECIFIC, *texts.NORMAL, *texts.WEAK, *texts.WEAKEST)
_NEUTRAL_RULES = {rule.id: to_neutral(rule) for rule in _TEXT_RULES if rule.code in EVIDENCE}
_EVIDENCE = {code: lazy_regex(words, re.IGNORECASE) for code, words in EVIDENCE.items()}


def require_evidence(rule: Rule, text: str) -> Rule:
    """Return the rule, or if it is about a text that lacks the thing of its code, a neutral one."""
    neutral = _NEUTRAL_RULES.get(rule.id)
    if neutral is None or _EVIDENCE[rule.code].search(text):
        return rule
    return neutral
