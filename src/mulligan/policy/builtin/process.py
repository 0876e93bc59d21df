"""How programs end: signals, exit codes that mean the same everywhere, and those of programs that have their own."""

from __future__ import annotations

from mulligan.policy.builtin.row import row, words

_FFMPEG = ("ffmpeg", "ffprobe", "ffplay")
# Current ffmpeg ends with the low byte of its negative error number: 256 − errno, or of its own tags.
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

_SYSEXITS = ("sendmail", "postfix", "procmail", "maildrop", "mutt", "msmtp", "uuencode", "fetchmail", "spamc")
_OTHERS = (
    row("sysexits.data", "INVALID_INPUT", program=_SYSEXITS, exit_code=(65, 66, 67, 68)),
    row("sysexits.again", "NOT_READY", program=_SYSEXITS, exit_code=(69, 71, 74, 75)),
    row("sysexits.denied", "PERMISSION", program=_SYSEXITS, exit_code=77),
    row("sysexits.setup", "MISCONFIGURED", program=_SYSEXITS, exit_code=(64, 70, 72, 73, 76, 78)),
    row(
        "curl.tls",
        "CERTIFICATE",
        provider_code="curl:35",
        message=r"\bSSL routines\b.{0,60}\b(?:unsafe|unsupported|wrong|legacy|alert|handshake)\b",
    ),
    row(
        "curl.connection",
        "CONNECTION",
        provider_code=words(
            """
            curl:5 curl:6 curl:7 curl:16 curl:18 curl:35 curl:52 curl:55 curl:56 curl:92 curl:95 curl:96
            """
        ),
    ),
    row("curl.timeout", "TIMEOUT", provider_code="curl:28"),
    row("curl.certificate", "CERTIFICATE", provider_code=words("curl:51 curl:58 curl:60 curl:77 curl:83")),
    row("curl.auth", "AUTH", provider_code=("curl:67", "curl:94")),
    row("curl.invalid", "INVALID_INPUT", provider_code=words("curl:1 curl:3 curl:47 curl:61 curl:63 curl:2 curl:4")),
    row("curl.missing", "MISSING", provider_code=words("curl:19 curl:37 curl:78")),
    row("curl.set-up", "MISCONFIGURED", provider_code=words("curl:26 curl:43 curl:48 curl:53 curl:54 curl:59 curl:66")),
    row("curl.memory", "MEMORY", provider_code="curl:27"),
    row("curl.exit-connection", "CONNECTION", program="curl", exit_code=(5, 6, 7, 16, 18, 35, 52, 55, 56, 92)),
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

RULES = (*_FFMPEG_EXITS, *_OTHERS, *_SIGNALS)
