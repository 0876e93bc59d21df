"""Make texts from outside fit to be stored and shown.

- `remove_secrets` replaces what has the shape or the name of a secret.
- `redact` also replaces paths and addresses.
- `scrub` (for operators) and `scrub_public` (for owners, events and messages) also make the text
  safe to store and bound its length. They redact before they cut, so that no part of a secret
  remains at the cut.
- `mask_secrets` masks secrets in JSON values for viewers and keeps their structure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from itertools import pairwise
from typing import Any, NamedTuple

from mulligan.core.format import TEXT_LIMIT, cut_middle, replace_unsafe
from mulligan.failures.regex import ascii_probe, lazy_regex

_WINDOW = 65_536  # characters that are searched for secrets before the final cut
_EDGE = 4096  # characters at the edge of a window that may be dropped, to cut no secret in two
_MAX_ROUNDS = 8
_REDACTED = "[redacted]"


def scrub(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text without secrets, safe to store and at most `limit` characters long.

    A huge text loses its middle first, so that the time is bounded too.
    """
    return _redact_and_cut(text, limit, _remove_secrets_once)


def scrub_public(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text redacted, safe to store and at most `limit` characters long."""
    return _redact_and_cut(text, limit, _redact_once)


def _redact_and_cut(text: str, limit: int, hide: Callable[[str], str]) -> str:
    window = text if len(text) <= max(limit, _WINDOW) else _cut_to_window(text)
    hidden = _repeat_until_stable(replace_unsafe(window), hide)
    if len(hidden) <= limit and window is text:
        return hidden
    return cut_middle(hidden, limit, len(text) - len(window))


def _cut_to_window(text: str) -> str:
    """Return head and tail of a huge text.

    Both are cut at the end of a line or word: a part of a secret cannot be recognised.
    """
    head = text[: _WINDOW // 2]
    tail = text[-_WINDOW // 2 :]
    head_end = (
        max(head.rfind("\n", -_EDGE), 0) or max(head.rfind(" ", -_EDGE), 0) or len(head) - _EDGE
    )
    tail_start = max(tail.find("\n", 0, _EDGE), 0) or max(tail.find(" ", 0, _EDGE), 0) or _EDGE
    pem_end = tail.find("-----END")
    pem_begin = tail.find("-----BEGIN")
    if pem_end >= 0 and (pem_begin < 0 or pem_end < pem_begin):
        # A PEM key that began in the part that was cut.
        tail_start = max(tail_start, pem_end)
    return f"{head[:head_end]}\n{tail[tail_start:]}"


# --- Secrets ---

# By the name of the field. The value may be quoted, also with escaped quotes as in JSON within
# JSON; bytes; or the argument of a constructor, as in a repr.

_FIELD_NAME = (
    r"(?:api|access|account|private|shared[_-]?access|encryption|signing|master)[_-]?key|secret"
    r"|passw(?:or)?d|passphrase|pwd|session[_-]?id"
)
_SUFFIX = r"(?:[_-][\w-]{1,40})?"
_ASSIGNMENT = r"\\?[\"']?\s{0,8}(?:=>|[=:])\s{0,8}"
_QUOTED = (
    r"(?:\w{1,40}\()?[bruf]{0,2}"
    r"(?:\\\"(?:[^\"\\\n]|\\[^\"\n]){0,4096}+\\\"|\"(?:[^\"\\\n]|\\[^\n]){0,4096}+\""
    r"|\\'(?:[^'\\\n]|\\[^'\n]){0,4096}+\\'|'(?:[^'\\\n]|\\[^\n]){0,4096}+')"
)
_UNQUOTED = r"(?:\[redacted\]|[^\s&,;\"'<>)}\]\\]{1,4096})"
_AUTH_SCHEME = (
    r"(?:bearer|basic|digest|token|negotiate|ntlm|api-?key|key|hawk|oauth|jwt|bot|shared-?key"
    r"|aws4-hmac-sha256)"
)
_VALUE = rf"(?:\[redacted\]|{_QUOTED}|\\?[\"']?[^\s&,;\"'<>)}}\]\\]{{1,4096}})"


class _SecretPattern(NamedTuple):
    """A shape of secrets. `keep` is the group that stays.

    To keep ordinary texts cheap, a pattern is tried only if the text contains one of `substrings`
    and, where these are common, one of `also`. No pattern can match again inside the text that it
    has already consumed.
    """

    substrings: tuple[str, ...]
    pattern: str
    also: tuple[str, ...] = ()


_SECRET_PATTERNS: tuple[_SecretPattern, ...] = (
    # A PEM key, also one without its end.
    _SecretPattern(
        ("-----begin",),
        r"(?P<keep>)-----BEGIN [A-Z0-9 ]{1,40}-----(?s:.*?)(?:-----END [A-Z0-9 ]{1,40}-----|\Z)",
    ),
    # user:password@ in a URL. A password may contain a slash, but `host:8080/path` has none.
    _SecretPattern(
        ("@",),
        r"(?P<keep>://)(?:[^\s/?#'\"<>]{1,512}|[^\s/:@]{0,256}:(?!\d{1,5}/)[^\s:@'\"<>]{1,256})(?=@)",
        ("://",),
    ),
    # Webhooks and bots whose URL is a secret.
    _SecretPattern(
        ("hook", "/bot"),
        r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{1,20}/"
        r"|webhook\.office\.com/|/bot(?=\d{5,}))[^\s/?\"'<>]{3,512}(?:/[\w@-]{3,512}){0,4}",
    ),
    _SecretPattern(
        ("auth",),
        r"(?P<keep>authorization\\?[\"']?\s{0,8}[:=,]\s{0,8}b?\\?(?P<quote>[\"'])"
        rf"(?:{_AUTH_SCHEME}\s{{1,8}})?)(?:(?!(?P=quote))[^\n]){{1,4096}}+",
        ("authorization",),
    ),
    _SecretPattern(
        ("auth",),
        rf"(?P<keep>authorization\s{{0,8}}[:=]\s{{0,8}}(?!\\?[\"'])(?:{_AUTH_SCHEME}\s{{1,8}})?)"
        r"(?:\[redacted\]|(?<=\bdigest\s)[^\n]{4,4096}|(?<=\s)(?<!:\s)[^\s\"',;\\]{1,4096}"
        r"|[^\s\"',;\\]{2,4096}(?:\s(?=\S{0,200}\d|\S{16})[^\s\"',;\\]{1,4096})?)",
        ("authorization",),
    ),
    _SecretPattern(
        ("cookie",),
        r"(?P<keep>cookie\\?[\"']?\s{0,8}[:=,]\s{0,8}(?:b?\\?[\"'])?)[^\s=;,\"'\\]{1,200}+=[^\s;,\"'\\]{1,4096}+"
        r"(?:;\s{0,8}[^\s=;,\"'\\]{1,200}+(?:=[^\s;,\"'\\]{0,4096}+)?){0,100}",
    ),
    _SecretPattern(
        ("bearer", "basic"),
        r"(?P<keep>\b(?:bearer|basic)\s{1,8})(?=[a-z._~+/=-]{0,200}\d)[\w.~+/=-]{8,4096}",
    ),
    _SecretPattern(
        ("pass", "secret", "pwd", "session", "key"),
        rf"(?P<keep>(?:{_FIELD_NAME}){_SUFFIX}{_ASSIGNMENT}){_VALUE}",
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
    # `--password hunter2`, also in a list; a (name, value) pair; `PASSWORD 'hunter2'` of SQL.
    _SecretPattern(
        ("pass", "secret", "token", "key"),
        r"(?P<keep>(?:--[\w-]{0,40}(?:passw(?:or)?d|secret|token|(?:api|access)-?key)(?:[\"']?,\s{0,4}|\s{1,8})"
        r"|\(b?[\"'](?:[\w-]{0,40}[_-])?(?:passw(?:or)?d|secret|token|key)[\"'],\s{0,4})(?!-))"
        rf"(?:{_QUOTED}|[^\s\"',)]{{1,4096}})",
        ("--", "('", '("', "(b"),
    ),
    _SecretPattern(
        ("pass", "identified by"),
        rf"(?P<keep>(?:passw(?:or)?d|identified by)\s{{1,8}}){_QUOTED}",
        ("'", '"'),
    ),
    _SecretPattern(
        ("credential", "sig"),
        rf"(?P<keep>(?:credentials?|signature){_ASSIGNMENT})(?=[^\s&,;<>]{{8}}){_VALUE}",
        ("credential", "signature"),
    ),
    _SecretPattern(
        ("token",),
        rf"(?P<keep>token{_SUFFIX}{_ASSIGNMENT})(?=\\?[\"']?[^\s\"']{{6}}){_VALUE}",
        ("token=", "token:", "token_", "token-", "token'", 'token"', "token ", "token\\"),
    ),
    _SecretPattern(
        ("sig", "pass"), rf"(?P<keep>(?<![a-z])(?:sig|pass)=){_UNQUOTED}", ("sig=", "pass=")
    ),
    _SecretPattern(
        ("?", "&"),
        rf"(?P<keep>[?&](?:key|auth|sign|hmac|jwt|sas|token|pwd)=){_UNQUOTED}",
        ("key=", "auth=", "sign=", "hmac=", "jwt=", "sas=", "token=", "pwd="),
    ),
    # `<wsse:Password Type="x">hunter2</…`; `the password is hunter2`, not `the password is wrong`.
    _SecretPattern(
        ("</",),
        rf"(?P<keep><(?:[\w.-]{{1,40}}:)?[\w.-]{{0,40}}?(?:{_FIELD_NAME}|token){_SUFFIX}(?:\s[^<>]{{0,200}})?>)[^<>\s]{{1,4096}}",
    ),
    _SecretPattern(
        ("pass", "secret", "token", "key"),
        r"(?P<keep>(?:passw(?:or)?d|passphrase|secret|token|api[ _-]?key) (?:is|was):? [\"'`]?)"
        r"(?=[^\s\"'`]{0,200}\d)(?=[^\s\"'`]{0,200}[a-z])[^\s\"'`]{6,256}",
        (" is", " was"),
    ),
    _SecretPattern(
        ("-p", "-a"),
        r"(?P<keep>\b(?:(?:mysql|mariadb)[\w-]{0,20}\b[^\n]{0,200}?[\s\"']-p(?=[^\s\"',])"
        r"|(?:sshpass\b[^\n]{0,20}?[\s\"']-p|redis-cli\b[^\n]{0,200}?[\s\"']-a)(?:[\"']?,\s{0,4}[\"']?|\s{1,8})))[^\s\"',]{1,256}",
        ("mysql", "mariadb", "sshpass", "redis-cli"),
    ),
    _SecretPattern(
        ("-u",),
        r"(?P<keep>(?<![\w-])(?:-u|--user)(?:[\"']?,\s{0,4}|\s{1,8}|=)[\"']?[^\s:\"',]{1,100}:)[^\s\"',]{1,256}",
        ("curl", "wget"),
    ),
)

# Secrets with a prefix that names their issuer.
_PREFIXED_SECRET = lazy_regex(
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
# The pattern above is tried only if the text contains the prefix of an issuer, and either one of
# `_SECRET_PREFIXES` or a punctuation mark followed by a long word that is not all lower case.
_ISSUER_PREFIXES = (
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "glpat-", "glptt-", "gldt-", "glrt-"),
    *("glcbt-", "glsoat-", "glft-", "xox", "xapp-", "sk-", "sk_", "rk_", "whsec_", "aiza"),
    *("ya29.", "npm_", "hf_", "sg.", "akia", "asia", "pypi-", "_v1_", "shpat_", "shpss_"),
    *("shpca_", "shppa_", "sq0", "key-", "xkeysib-", "gsk_", "r8_", "pplx-", "nvapi-", "xai-"),
    *("lin_api_", "ntn_", "hvs.", "hvb.", "glsa_", "dapi", "atatt3", "eaac", ":aa", "eyj"),
)
_LONG_TOKEN = lazy_regex(r"[_.:-](?=\w[\w-]{15})(?<=\w[_.:-])(?=[a-z_-]{0,255}+[A-Z0-9])")
_SECRET_PREFIXES = ("eyj", "sk-", "akia", "asia", "aiza", "ghp_", "xox", "dapi", "eaac", "atatt3")

_SECRET_REGEXES = [lazy_regex(secret.pattern, re.IGNORECASE) for secret in _SECRET_PATTERNS]
# Substring → numbers of the patterns that need it.
_PATTERNS_BY_SUBSTRING: dict[str, list[int]] = {}
for _number, _secret in enumerate(_SECRET_PATTERNS):
    for _substring in _secret.substrings:
        _PATTERNS_BY_SUBSTRING.setdefault(_substring, []).append(_number)


def remove_secrets(text: str) -> str:
    """Replace every known shape of a secret. Applying it twice changes nothing."""
    return _repeat_until_stable(text, _remove_secrets_once)


def _repeat_until_stable(text: str, hide: Callable[[str], str]) -> str:
    """Apply `hide` again, because a replacement may complete another shape."""
    for _ in range(_MAX_ROUNDS):
        hidden = hide(text)
        if hidden == text:
            break
        text = hidden
    return text


def _remove_secrets_once(text: str) -> str:
    lowered = text.lower()
    if not lowered.isascii():
        lowered = ascii_probe(lowered)
    numbers: list[int] = []
    for substring, candidates in _PATTERNS_BY_SUBSTRING.items():
        if substring in lowered:
            numbers += candidates
    for number in sorted(set(numbers)):
        also = _SECRET_PATTERNS[number].also
        if not also or any(map(lowered.__contains__, also)):
            text = _SECRET_REGEXES[number].sub(rf"\g<keep>{_REDACTED}", text)
    if not (_LONG_TOKEN.search(text) or any(map(lowered.__contains__, _SECRET_PREFIXES))):
        return text
    # `casefold`: a pattern that ignores case also matches a long s and the sign of Kelvin.
    folded = lowered if text.isascii() else ascii_probe(text.casefold())
    if any(map(folded.__contains__, _ISSUER_PREFIXES)):
        return _PREFIXED_SECRET.sub(_REDACTED, text)
    return text


# --- Paths and addresses: those in URLs stay, and so does `and/or` ---

_ROOTS = (
    r"home|Users|root|tmp|var|srv|opt|etc|usr|mnt|media|data|app|apps|code|work|workspace|proc|sys|dev|run|lib|lib64"
    r"|bin|sbin|private|Volumes|Library|nix|snap|boot|storage|builds|scratch|nfs|Applications|System"
)
_SEGMENT = r"[\w.@+~%=,#-]"
_PATH = lazy_regex(
    r"(?P<scheme>\b(?:file|sqlite(?:\+\w{1,20})?):)//[^\s\"'<>]{1,1024}"
    r"|(?<![\w/.:~$)\]])(?P<quote>[\"'`])(?:~?/(?!/)|[A-Za-z]:[\\/]|\\\\)[^\"'`\n]{1,1024}(?P=quote)"
    rf"|(?<![\w/.~:$)\]>-])(?P<verb>\b(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) )?"
    rf"(?:~\w{{0,32}}/{_SEGMENT}{{1,255}}+|/(?:(?:{_ROOTS})(?![\w.-])|{_SEGMENT}{{1,255}}+(?=/{_SEGMENT})|[\w-]{{1,255}}+\.\w{{1,8}}\b))"
    rf"(?:/{_SEGMENT}{{0,255}}+){{0,64}}"
    rf"|(?P<colon>:)(?!//)(?:/{_SEGMENT}{{1,255}}+){{2,64}}"
    r"|(?<!\w)[A-Za-z]:\\(?!\\)[^\s\"'<>|]{1,1024}|(?<![\w\\])\\\\[\w.-]{1,255}\\[^\s\"'<>|]{1,1024}"
)
_MAIL = lazy_regex(
    r"(?<![\w.+%-])[\w.+%-]{1,64}@(?=(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}(?![\w]))", re.IGNORECASE
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = lazy_regex(rf"(?<![\w.])(?<!version )(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\w)")
_IPV6 = lazy_regex(r"(?<![\w:.])[0-9a-f:]{2,39}(?:%\w{1,15})?(?![\w:])", re.IGNORECASE)


def redact(text: str) -> str:
    """Replace secrets, paths and addresses. Applying it twice changes nothing."""
    return _repeat_until_stable(text, _redact_once)


def _redact_once(text: str) -> str:
    text = _remove_secrets_once(text)
    if "/" in text or "\\" in text:
        text = _PATH.sub(_replace_path, text)
    if "@" in text:
        text = _MAIL.sub("[address]@", text)
    if text.count(".") >= 3:
        text = _IPV4.sub("[ip]", text)
    if text.count(":") >= 2:
        text = _IPV6.sub(_replace_ip, text)
    return text


def _replace_path(match: re.Match[str]) -> str:
    if match["verb"]:  # `GET /api/v1/users` is not a path on a disk
        return match[0]
    quote = match["quote"] or ""
    return f"{match['scheme'] or ''}{match['colon'] or ''}{quote}[path]{quote}"


def _replace_ip(match: re.Match[str]) -> str:
    text = match[0]
    if text.count(":") < 2 or not any(map(str.isdigit, text)):  # `a::b` is a name in C++
        return text
    try:
        IPv6Address(text)
    except ValueError:
        return text
    return "[ip]"


# --- JSON values ---

_MAX_VALUE = 1 << 22
_SAMPLE = "Xq7Lw2Zk9Tb4"  # looks like a secret to every pattern that goes by a field's name


def mask_secrets(value: Any) -> Any:
    """Mask what is a secret by the name of its field or by its form."""
    if isinstance(value, str):
        return scrub(value, _MAX_VALUE)
    if isinstance(value, dict):
        return {scrub(name, _MAX_VALUE): _mask_field(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return _mask_list(value)
    return value


def _mask_field(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    return _REDACTED if is_secret_name(name) else mask_secrets(value)


def _mask_list(values: list[Any]) -> list[Any]:
    masked = [mask_secrets(value) for value in values]
    for place, (option, value) in enumerate(pairwise(values), start=1):
        # ["--password", "hunter2"]: the arguments of a program.
        if isinstance(option, str) and isinstance(value, str) and option.startswith("-"):
            pair = json.dumps([option, value])
            if remove_secrets(pair) != pair:
                masked[place] = _REDACTED
    return masked


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """True if the value of a field with this name is masked."""
    field = json.dumps({name[:200]: _SAMPLE})
    return _SAMPLE not in remove_secrets(field)


def is_secret_argument(path: str, text: str) -> bool:
    """True if viewers see this value of an argument, such as `login.password`, masked."""
    return any(map(is_secret_name, path.split("."))) or mask_secrets(text) != text
