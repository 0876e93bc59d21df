"""Find optional tools (compiler, libfaketime, unshare, pgbouncer). Faults that lack theirs are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from storm.processes import ROOT, wait_until

SHIM = Path(__file__).parent / "shims" / "slow_sync.c"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
POOLER = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def sync_shim(folder: Path) -> Path | None:
    """Compile the fsync shim. Return None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "slow_sync.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(SHIM), "-ldl"]
    return (
        made if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
    )


def faketime() -> Path | None:
    """Return libfaketime from the system or from Debian's package; None if there is neither."""
    from support.debian import unpack_packages  # noqa: PLC0415 - `world` extends the path first

    candidates = [
        *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
        Path("/usr/lib/faketime/libfaketimeMT.so.1"),
    ]
    for path in candidates:
        if path.exists():
            return path
    machine = os.uname().machine
    inside = f"usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1"
    folder = unpack_packages("faketime", lambda: ["libfaketime"], inside)
    return None if folder is None else folder / inside


def namespaces() -> bool:
    """True if this process may create pid namespaces."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class Pooler:
    """pgbouncer in transaction mode in front of a server."""

    def __init__(self, url: str, folder: Path, port: int, user: dict[str, object]) -> None:
        parts = urlsplit(url)
        self._file = folder / "pgbouncer.ini"
        self._log = folder / "logs" / "pgbouncer.log"
        self._user = user
        upstream = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": parts.password,
        }
        self._file.write_text(POOLER.format(**upstream, listen=port))
        self._file.chmod(0o644)
        self.url = f"postgresql://user@127.0.0.1:{port}{parts.path}"
        self._process = self._start()

    @classmethod
    def available(cls) -> bool:
        return shutil.which("pgbouncer") is not None

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            command = ["pgbouncer", str(self._file)]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)  # type: ignore[call-overload]
        wait_until(
            lambda: process.poll() is not None or b"process up" in self._log.read_bytes(), 10
        )
        return process

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def next_version(folder: Path) -> Path:
    """Copy the package and add one schema step, as the next release would."""
    home = folder / "next"
    if not home.exists():
        ignored = shutil.ignore_patterns("__pycache__")
        package = Path(
            shutil.copytree(ROOT / "src" / "mulligan", home / "mulligan", ignore=ignored)
        )
        steps = package / "storage" / "schema"
        for dialect in ("sqlite", "postgres"):
            text = "-- compatible_from: 1\nALTER TABLE {p}job ADD COLUMN next_version TEXT;\n"
            (steps / f"0999_next.{dialect}.sql").write_text(text)
    return home
