"""Texts from outside, made fit to be stored and shown.

`safe` makes any string storable: valid UTF-8, no control characters, bounded. `without_secrets` removes what has the
shape or the name of a secret; `redact` also hides where things are: paths, addresses. `scrub` (for what is stored
and seen by operators) and `shown` (for owners, events and messages) are both at once, in the order that lets no half
of a secret slip through the cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NamedTuple

from mulligan.core.format import LIMIT, _clean, _cut
from mulligan.failures.regex import late

_WINDOW = 65_536  # what is searched for secrets before the final cut
_EDGE = 4096  # of a window, given up so that no secret is cut in two
_ROUNDS = 8
_FORM = 256  # characters of a text whose form is remembered
_GONE = "[redacted]"


def scrub(text: str, limit: int = LIMIT) -> str:
    """Safe and without secrets. Huge texts lose their middle first, so that time is bounded too."""
    if len(text) <= limit and is_innocent(form_of(text)):
        return text
    return _bounded(text, limit, without_secrets)


def shown(text: str, limit: int = LIMIT) -> str:
    """Safe, and as any outlet may show it."""
    return _bounded(text, limit, redact)


def _bounded(text: str, limit: int, hide: Callable[[str], str]) -> str:
    if len(text) <= limit:
        hidden = hide(_clean(text))
        return hidden if len(hidden) <= limit else _cut(hidden, limit, 0)
    window = text if len(text) <= _WINDOW else _window(text)
    return _cut(hide(_clean(window)), limit, len(text) - len(window))


def _window(text: str) -> str:
    """Head and tail of a huge text, each up to the end of a line or a word: half a secret has no shape."""
    head, tail = text[: _WINDOW // 2], text[-_WINDOW // 2 :]
    edge = max(head.rfind("\n", -_EDGE), 0) or max(head.rfind(" ", -_EDGE), 0) or len(head) - _EDGE
    start = max(tail.find("\n", 0, _EDGE), 0) or max(tail.find(" ", 0, _EDGE), 0) or _EDGE
    end, begin = tail.find("-----END"), tail.find("-----BEGIN")
    if end >= 0 and (begin < 0 or end < begin):  # a key in PEM that began in the middle
        start = max(start, end)
    return f"{head[:edge]}\n{tail[start:]}"


# Secrets by the name of their field. The value may be quoted, also by quotes that are escaped themselves, as in
# JSON within JSON; bytes; or the argument of a constructor, as in a repr.

_NAME = (
    r"(?:api|access|account|private|shared[_-]?access|encryption|signing|master)[_-]?key|secret"
    r"|passw(?:or)?d|passphrase|pwd|session[_-]?id"
)
_SUFFIX = r"(?:[_-][\w-]{1,40})?"
_IS = r"\\?[\"']?\s{0,8}(?:=>|[=:])\s{0,8}"
_QUOTED = (
    r"(?:\w{1,40}\()?[bruf]{0,2}"
    r"(?:\\\"(?:[^\"\\\n]|\\[^\"\n]){0,4096}+\\\"|\"(?:[^\"\\\n]|\\[^\n]){0,4096}+\""
    r"|\\'(?:[^'\\\n]|\\[^'\n]){0,4096}+\\'|'(?:[^'\\\n]|\\[^\n]){0,4096}+')"
)
_PLAIN = r"(?:\[redacted\]|[^\s&,;\"'<>)}\]\\]{1,4096})"
_SCHEME = r"(?:bearer|basic|digest|token|negotiate|ntlm|api-?key|key|hawk|oauth|jwt|bot|shared-?key|aws4-hmac-sha256)"
_VALUE = rf"(?:\[redacted\]|{_QUOTED}|\\?[\"']?[^\s&,;\"'<>)}}\]\\]{{1,4096}})"

# Ordinary texts pay for the search of a few plain words; a shape is tried only where one of its words is, and, where
# the word is a common one, one of `near` too. No shape can start again inside what it has already looked through.


class _Shape(NamedTuple):
    words: tuple[str, ...]
    pattern: str
    near: tuple[str, ...] = ()


_SHAPES: tuple[_Shape, ...] = (
    # A key in PEM, also one that lost its end.
    _Shape(
        ("-----begin",),
        r"(?P<keep>)-----BEGIN [A-Z0-9 ]{1,40}-----(?s:.*?)(?:-----END [A-Z0-9 ]{1,40}-----|\Z)",
    ),
    # user:password@ in an address; a password may hold a slash, but `host:8080/path` is none.
    _Shape(
        ("@",),
        r"(?P<keep>://)(?:[^\s/?#'\"<>]{1,512}|[^\s/:@]{0,256}:(?!\d{1,5}/)[^\s:@'\"<>]{1,256})(?=@)",
        ("://",),
    ),
    # Hooks and bots whose address is their secret.
    _Shape(
        ("hook", "/bot"),
        r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{1,20}/"
        r"|webhook\.office\.com/|/bot(?=\d{5,}))[^\s/?\"'<>]{3,512}(?:/[\w@-]{3,512}){0,4}",
    ),
    _Shape(
        ("auth",),
        r"(?P<keep>authorization\\?[\"']?\s{0,8}[:=,]\s{0,8}b?\\?(?P<quote>[\"'])"
        rf"(?:{_SCHEME}\s{{1,8}})?)(?:(?!(?P=quote))[^\n]){{1,4096}}+",
        ("authorization",),
    ),
    _Shape(
        ("auth",),
        rf"(?P<keep>authorization\s{{0,8}}[:=]\s{{0,8}}(?!\\?[\"'])(?:{_SCHEME}\s{{1,8}})?)"
        r"(?:\[redacted\]|(?<=\bdigest\s)[^\n]{4,4096}|(?<=\s)(?<!:\s)[^\s\"',;\\]{1,4096}"
        r"|[^\s\"',;\\]{2,4096}(?:\s(?=\S{0,200}\d|\S{16})[^\s\"',;\\]{1,4096})?)",
        ("authorization",),
    ),
    _Shape(
        ("cookie",),
        r"(?P<keep>cookie\\?[\"']?\s{0,8}[:=,]\s{0,8}(?:b?\\?[\"'])?)[^\s=;,\"'\\]{1,200}+=[^\s;,\"'\\]{1,4096}+"
        r"(?:;\s{0,8}[^\s=;,\"'\\]{1,200}+(?:=[^\s;,\"'\\]{0,4096}+)?){0,100}",
    ),
    _Shape(
        ("bearer", "basic"),
        r"(?P<keep>\b(?:bearer|basic)\s{1,8})(?=[a-z._~+/=-]{0,200}\d)[\w.~+/=-]{8,4096}",
    ),
    _Shape(
        ("pass", "secret", "pwd", "session", "key"),
        rf"(?P<keep>(?:{_NAME}){_SUFFIX}{_IS}){_VALUE}",
        (
            "passw",
            "passphrase",
            "secret",
            "pwd",
            "session",
            "apikey",
            "api_key",
            "api-key",
            "access",
            "account",
            "private",
            "encryption",
            "signing",
            "master",
        ),
    ),
    # `--password hunter2`, alone or in a list; a pair of a header list; `PASSWORD 'hunter2'` of SQL.
    _Shape(
        ("pass", "secret", "token", "key"),
        r"(?P<keep>(?:--[\w-]{0,40}(?:passw(?:or)?d|secret|token|(?:api|access)-?key)(?:[\"']?,\s{0,4}|\s{1,8})"
        r"|\(b?[\"'](?:[\w-]{0,40}[_-])?(?:passw(?:or)?d|secret|token|key)[\"'],\s{0,4})(?!-))"
        rf"(?:{_QUOTED}|[^\s\"',)]{{1,4096}})",
        ("--", "('", '("', "(b"),
    ),
    _Shape(
        ("pass", "identified by"),
        rf"(?P<keep>(?:passw(?:or)?d|identified by)\s{{1,8}}){_QUOTED}",
        ("'", '"'),
    ),
    _Shape(
        ("credential", "sig"),
        rf"(?P<keep>(?:credentials?|signature){_IS})(?=[^\s&,;<>]{{8}}){_VALUE}",
        ("credential", "signature"),
    ),
    _Shape(
        ("token",),
        rf"(?P<keep>token{_SUFFIX}{_IS})(?=\\?[\"']?[^\s\"']{{6}}){_VALUE}",
        ("token=", "token:", "token_", "token-", "token'", 'token"', "token ", "token\\"),
    ),
    _Shape(("sig", "pass"), rf"(?P<keep>(?<![a-z])(?:sig|pass)=){_PLAIN}", ("sig=", "pass=")),
    _Shape(
        ("?", "&"),
        rf"(?P<keep>[?&](?:key|auth|sign|hmac|jwt|sas|token|pwd)=){_PLAIN}",
        ("key=", "auth=", "sign=", "hmac=", "jwt=", "sas=", "token=", "pwd="),
    ),
    # `<wsse:Password Type="x">hunter2</…`; `the password is hunter2`, but not `the password is wrong`.
    _Shape(
        ("</",),
        rf"(?P<keep><(?:[\w.-]{{1,40}}:)?[\w.-]{{0,40}}?(?:{_NAME}|token){_SUFFIX}(?:\s[^<>]{{0,200}})?>)[^<>\s]{{1,4096}}",
    ),
    _Shape(
        ("pass", "secret", "token", "key"),
        r"(?P<keep>(?:passw(?:or)?d|passphrase|secret|token|api[ _-]?key) (?:is|was):? [\"'`]?)"
        r"(?=[^\s\"'`]{0,200}\d)(?=[^\s\"'`]{0,200}[a-z])[^\s\"'`]{6,256}",
        (" is", " was"),
    ),
    _Shape(
        ("-p", "-a"),
        r"(?P<keep>\b(?:(?:mysql|mariadb)[\w-]{0,20}\b[^\n]{0,200}?[\s\"']-p(?=[^\s\"',])"
        r"|(?:sshpass\b[^\n]{0,20}?[\s\"']-p|redis-cli\b[^\n]{0,200}?[\s\"']-a)(?:[\"']?,\s{0,4}[\"']?|\s{1,8})))[^\s\"',]{1,256}",
        ("mysql", "mariadb", "sshpass", "redis-cli"),
    ),
    _Shape(
        ("-u",),
        r"(?P<keep>(?<![\w-])(?:-u|--user)(?:[\"']?,\s{0,4}|\s{1,8}|=)[\"']?[^\s:\"',]{1,100}:)[^\s\"',]{1,256}",
        ("curl", "wget"),
    ),
)

# Secrets that show by their beginning whose they are.
_PREFIXED = late(
    r"(?<![\w-])(?:gh[pousr]_\w{10,255}|github_pat_\w{10,255}|gl(?:pat|ptt|dt|rt|cbt|soat|ft)-[\w-]{10,255}"
    r"|xox[abeprs]-[\w-]{10,255}|xapp-[\w-]{10,255}"
    r"|sk[-_](?:live|test|proj|ant|or)[-_][\w-]{10,255}|sk-(?=[a-z]{0,40}\d)[\w-]{16,255}"
    r"|(?:rk|whsec)_\w{10,255}|AIza[\w-]{30,60}|ya29\.[\w-]{10,2048}|npm_[a-z0-9]{30,60}|hf_[a-z0-9]{20,60}"
    r"|SG\.[\w-]{16,32}\.[\w-]{16,64}|(?:AKIA|ASIA)[A-Z0-9]{16}\b|pypi-[\w-]{32,512}|do[opr]_v1_[0-9a-f]{32,80}"
    r"|shp(?:at|ss|ca|pa)_[0-9a-f]{16,64}|sq0[a-z]{3}-[\w-]{16,64}|key-[0-9a-f]{32}\b|xkeysib-[\w-]{20,128}"
    r"|gsk_\w{20,128}|r8_\w{20,64}|pplx-\w{20,128}|nvapi-[\w-]{20,128}|xai-\w{20,128}|lin_api_\w{20,64}|ntn_\w{20,64}"
    r"|dckr_pat_[\w-]{16,64}|hv[sb]\.[\w-]{16,512}|glsa_\w{20,64}|dapi[0-9a-f]{32}\b|ATATT3[\w-]{20,512}=?\w{0,16}"
    r"|AGE-SECRET-KEY-1[a-z0-9]{20,80}|EAAC[a-z0-9]{20,512}|\d{6,12}:AA[\w-]{30,40}"
    r"|eyJ[\w-]{8,8192}\.[\w-]{2,8192}(?:\.[\w-]{0,8192})?)",
    re.IGNORECASE,
)
# One is near only where a sign is followed by a long word that is not of small letters alone, or with one of these.
_LONG_WORD = late(r"[_.:-](?=\w[\w-]{15})(?<=\w[_.:-])(?=[a-z_-]{0,255}+[A-Z0-9])")
_BEGINNINGS = ("eyj", "sk-", "akia", "asia", "aiza", "ghp_", "xox", "dapi", "eaac", "atatt3")

_COMPILED = [late(shape.pattern, re.IGNORECASE) for shape in _SHAPES]
_WORDS: dict[str, list[int]] = {}
for _number, _shape in enumerate(_SHAPES):
    for _word in _shape.words:
        _WORDS.setdefault(_word, []).append(_number)
_WORD_LIST = tuple((word, tuple(numbers)) for word, numbers in _WORDS.items())


def without_secrets(text: str) -> str:
    """The text with every known shape of a secret replaced; doing it twice changes nothing."""
    return _settled(text, _hide_secrets)


def _settled(text: str, hide: Callable[[str], str]) -> str:
    """What is hidden may uncover a shape that was not one before: again, until nothing changes."""
    for _ in range(_ROUNDS):
        hidden = hide(text)
        if hidden == text:
            break
        text = hidden
    return text


def _hide_secrets(text: str) -> str:
    lowered = text.lower()
    tried = [number for word, numbers in _WORD_LIST if word in lowered for number in numbers]
    for number in sorted(set(tried)) if tried else ():
        near = _SHAPES[number].near
        if not near or _any_of(near, lowered):
            text = _COMPILED[number].sub(rf"\g<keep>{_GONE}", text)
    if _LONG_WORD.search(text) or _any_of(_BEGINNINGS, lowered):
        text = _PREFIXED.sub(_GONE, text)
    return text


def _any_of(words: tuple[str, ...], text: str) -> bool:
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in text:
            return True
    return False


# Of thousands of texts most differ in their numbers alone.

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def form_of(text: str) -> bytes:
    """The text, whatever its numbers are; nothing, if it is long. Bytes, since they are translated much faster."""
    return text.encode("utf-8", "surrogatepass").translate(_DIGITS) if len(text) <= _FORM else b""


@lru_cache(maxsize=1024)
def is_innocent(form: bytes) -> bool:
    """Is there nothing in any text of this form that has to do with secrets, and nothing unfit?"""
    text = form.decode("utf-8", "surrogatepass")
    return (
        text.isprintable()
        and bool(text)
        and not _any_of(_FORMS, text.lower())
        and not _LONG_WORD.search(text)
    )


_FORMS = tuple(form_of(word).decode() for word in (*_WORDS, *_BEGINNINGS))


# Where things are: paths and addresses. What is part of a URL stays, and so does `and/or`.

_ROOTS = (
    r"home|Users|root|tmp|var|srv|opt|etc|usr|mnt|media|data|app|apps|code|work|workspace|proc|sys|dev|run|lib|lib64"
    r"|bin|sbin|private|Volumes|Library|nix|snap|boot|storage|builds|scratch|nfs|Applications|System"
)
_SEGMENT = r"[\w.@+~%=,#-]"
_PATH = late(
    r"(?P<scheme>\b(?:file|sqlite(?:\+\w{1,20})?):)//[^\s\"'<>]{1,1024}"
    r"|(?<![\w/.:~$)\]])(?P<quote>[\"'`])(?:~?/(?!/)|[A-Za-z]:[\\/]|\\\\)[^\"'`\n]{1,1024}(?P=quote)"
    rf"|(?<![\w/.~:$)\]>-])(?P<verb>\b(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) )?"
    rf"(?:~\w{{0,32}}/{_SEGMENT}{{1,255}}+|/(?:(?:{_ROOTS})(?![\w.-])|{_SEGMENT}{{1,255}}+(?=/{_SEGMENT})|[\w-]{{1,255}}+\.\w{{1,8}}\b))"
    rf"(?:/{_SEGMENT}{{0,255}}+){{0,64}}"
    rf"|(?P<colon>:)(?!//)(?:/{_SEGMENT}{{1,255}}+){{2,64}}"
    r"|(?<!\w)[A-Za-z]:\\(?!\\)[^\s\"'<>|]{1,1024}|(?<![\w\\])\\\\[\w.-]{1,255}\\[^\s\"'<>|]{1,1024}"
)
_MAIL = late(
    r"(?<![\w.+%-])[\w.+%-]{1,64}@(?=(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}(?![\w]))", re.IGNORECASE
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = late(rf"(?<![\w.])(?<!version )(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\w)")
_IPV6 = late(r"(?<![\w:.])[0-9a-f:]{2,39}(?:%\w{1,15})?(?![\w:])", re.IGNORECASE)


def redact(text: str) -> str:
    """What any outlet would show: no secrets, no paths, no addresses; doing it twice changes nothing."""
    return _settled(text, _hide_all)


def _hide_all(text: str) -> str:
    text = _hide_secrets(text)
    if "/" in text or "\\" in text:
        text = _PATH.sub(_without_path, text)
    if "@" in text:
        text = _MAIL.sub("[address]@", text)
    if text.count(".") >= 3:
        text = _IPV4.sub("[ip]", text)
    return _IPV6.sub(_without_ip, text) if text.count(":") >= 2 else text


def _without_path(found: re.Match[str]) -> str:
    if found["verb"]:  # GET /api/v1/users is no place on a disk
        return found[0]
    quote = found["quote"] or ""
    return f"{found['scheme'] or ''}{found['colon'] or ''}{quote}[path]{quote}"


def _without_ip(found: re.Match[str]) -> str:
    if found[0].count(":") < 2 or not any(
        map(str.isdigit, found[0])
    ):  # `a::b` is a name in some language
        return found[0]
    try:
        IPv6Address(found[0])
    except ValueError:
        return found[0]
    return "[ip]"
