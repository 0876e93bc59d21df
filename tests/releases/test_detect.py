"""The release of an app is read from Git without running it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mulligan.releases.detect import find_release


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "jobs.py").write_text("")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_commit_of_the_code_is_its_release(repository):
    commit = git(repository, "rev-parse", "HEAD")
    assert find_release([str(repository / "src" / "jobs.py")]) == commit[:12]


def test_a_detached_head_and_packed_refs_are_read(repository):
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert find_release([str(repository / "src" / "jobs.py")]) == commit[:12]
    git(repository, "checkout", "-q", "--detach")
    assert find_release([str(repository / "src" / "jobs.py")]) == commit[:12]


def test_a_worktree_has_its_own_commit(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "second")
    commit = git(tmp_path / "other", "rev-parse", "HEAD")
    assert find_release([str(tmp_path / "other" / "src" / "jobs.py")]) == commit[:12]


def test_without_git_the_version_of_the_package_is_the_release(tmp_path, monkeypatch):
    (tmp_path / "shop_with_version").mkdir()
    package = tmp_path / "shop_with_version" / "__init__.py"
    package.write_text('__version__ = "2.1"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("shop_with_version")
    assert find_release([str(package)]) == "2.1"
    sys.modules.pop("shop_with_version")


def test_code_without_a_file_has_no_release(tmp_path):
    assert find_release(["<stdin>", "<string>"]) == ""
    assert find_release([]) == ""


def test_a_damaged_repository_gives_no_release(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "jobs.py").write_text("")
    assert find_release([str(tmp_path / "jobs.py")]) == ""
