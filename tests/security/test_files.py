"""Files are private whatever the umask, and symlinks are not followed."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mulligan.config import read_settings
from mulligan.core.errors import ConfigError
from mulligan.doctor.settings import secret_checks
from mulligan.storage import open_store
from mulligan.worker import liveness as life
from support.waiting import until

pytestmark = pytest.mark.processes

JOBS = """
import os, time
from pathlib import Path
from mulligan import Context, Mulligan

app = Mulligan()

@app.job
def keep(ctx: Context, until: str):
    (ctx.workdir / "kept.txt").write_text("x")
    Path(until + ".at").write_text(str(ctx.workdir))
    while not Path(until).exists():
        time.sleep(0.02)
"""


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of files that other users may read."""
    found = [path for path in [folder, *folder.rglob("*")] if not path.is_symlink()]
    return {
        str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in found
    }


def open_to_others(folder: Path, ours: str) -> dict[str, str]:
    return {
        name: mode for name, mode in modes(folder).items() if ours in name and int(mode, 8) & 0o077
    }


@pytest.mark.security("S52", "A09")
@pytest.mark.parametrize("umask", ["000", pytest.param("022", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "state",
    ["made/for/us", pytest.param("", marks=pytest.mark.slow)],
    ids=["state_dir", "beside the file"],
)
@pytest.mark.timeout(180)
def test_all_files_of_a_worker_are_private_to_its_user(tmp_path, umask, state):
    place = tmp_path / "place"
    place.mkdir(0o755)
    (tmp_path / "jobs.py").write_text(JOBS)
    environment = {
        **os.environ,
        "MULLIGAN_DATABASE_URL": f"sqlite:///{place}/mulligan.db",
        "MULLIGAN_WORKER__STATE_DIR": state and str(place / state),
    }
    end = tmp_path / "end"

    def mulligan(arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "-c", f"umask {umask}; exec {sys.executable} -m mulligan {arguments}"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    assert mulligan(f"enqueue keep until={end}").wait(50) == 0
    with mulligan("worker jobs:app") as worker:
        try:
            until(Path(f"{end}.at").exists, 40, "a work directory")
            assert mulligan(f"backup {place}/copy.db").wait(50) == 0
            found = modes(place)
        finally:
            end.write_text("")
            worker.terminate()
    ours = {
        name: mode
        for name, mode in found.items()
        if name not in {".", "kept.txt"} and "kept.txt" not in name
    }
    assert {name: mode for name, mode in ours.items() if int(mode, 8) & 0o077} == {}
    assert any(name.endswith(".life") for name in ours)
    assert "copy.db" in ours


@pytest.mark.security("S52", "A10")
def test_a_world_writable_folder_is_refused(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="every user may write"):
        life.LivenessFile(folder, "w1")


@pytest.mark.security("S52", "A10")
def test_a_tmp_folder_owned_by_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setattr(life.tempfile, "gettempdir", lambda: str(tmp_path))
    ours = tmp_path / f"mulligan-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ours.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="does not belong to this user"):
        life.state_folder("", "", "x")
    ours.unlink()
    ours.mkdir(0o755)
    assert life.state_folder("", "", "x").parent == ours
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    monkeypatch.setattr(life.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="does not belong to this user"):
        life.state_folder("", "", "x")


@pytest.mark.security("S52", "A10")
def test_a_planted_symlink_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "life"
    folder.mkdir(0o700)
    (folder / "w1.life").symlink_to(victim)
    (folder / "w2.work").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        life.LivenessFile(folder, "w1")
    life.remove_dead_folders(folder, {"me"})
    assert victim.read_text() == "precious"
    assert folder.is_dir()


@pytest.mark.security("S52")
def test_a_database_behind_a_symlink_is_private(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "there.db")
    before = os.umask(0)
    try:
        with closing(open_store(f"sqlite:///{tmp_path}/link.db")) as store:
            store.prepare()
    finally:
        os.umask(before)
    assert open_to_others(tmp_path, "there.db") == {}


@pytest.mark.security("A10")
def test_a_backup_neither_follows_nor_replaces_a_symlink(file_app, call, tmp_path):
    file_app.store.prepare()
    (tmp_path / "copy.db").symlink_to(tmp_path / "victim")
    assert call("backup", tmp_path / "copy.db").code != 0
    (tmp_path / "victim").write_text("precious")
    assert call("backup", tmp_path / "copy.db").code != 0
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.security("A11")
def test_a_worker_opens_no_listening_or_named_socket(file_app, start):
    """Supervisor and runner use an unnamed socket pair; nothing listens."""
    worker = start("worker", "jobs:app")
    until(lambda: len(_children(worker.process.pid)) > 1, 60, "the fork server and a runner")
    for pid in (worker.process.pid, *_children(worker.process.pid)):
        assert _named_sockets(pid) == []
    worker.stop()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _named_sockets(pid: int) -> list[str]:
    """Return sockets that listen on the network or have a name in the file system."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a file that is closed meanwhile
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    unix = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    tcp = [line.split() for name in ("tcp", "tcp6") for line in _lines(pid, name)]
    found = [row[7] for row in unix if row[6] in inodes and len(row) > 7]
    return found + [row[1] for row in tcp if row[9] in inodes and row[3] == "0A"]


def _lines(pid: int, name: str) -> list[str]:
    file = Path(f"/proc/{pid}/net/{name}")
    return file.read_text().splitlines()[1:] if file.exists() and socket.has_ipv6 else []


# -- Readable secrets ----------------------------------------------------------------------
def found(flags=None, environ=None, file=None):
    settings = read_settings(flags or {}, environ=environ or {}, file=file or Path("none.toml"))
    return [(one.status, one.found) for one in secret_checks(settings)]


@pytest.mark.security("A12")
def test_doctor_reports_secrets_that_other_users_can_read(tmp_path):
    url = "postgresql://ann:hunter2@db/x"
    assert [status for status, _ in found()] == ["ok"]
    assert [status for status, _ in found(environ={"MULLIGAN_DATABASE_URL": url})] == ["ok"]
    (typed,) = found({"database_url": url})
    assert typed[0] == "warn"
    assert "command line" in typed[1]
    file = tmp_path / "mulligan.toml"
    file.write_text(f'database_url = "{url}"\n[mail]\npassword = "hunter2"\n')
    file.chmod(0o644)
    assert [status for status, _ in found(file=file)] == ["warn"]
    file.chmod(0o600)
    assert [status for status, _ in found(file=file)] == ["ok"]
    assert "hunter2" not in str(found({"database_url": url}))
