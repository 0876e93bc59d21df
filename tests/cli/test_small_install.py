"""`pip install mulligan` without extras: small, quick to start, and enough to run jobs."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.waiting import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
MAX_PACKAGES = 12
MAX_MEGABYTES = 25
# CPU milliseconds: 25 and 200 on a quiet machine.
MAX_IMPORT = 75
MAX_LIST = 600

JOBS = """
from mulligan import Context, Exponential, Mulligan, Policy, Webhook

app = Mulligan()
app.notify(on="job.died", to=Webhook("https://example.com/hook"))

@app.job(timeout=60, policy=Policy(max_retries=5, backoff=Exponential(base=0.1, cap=60)))
def charge(ctx: Context, order: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionResetError("the gateway hung up")
    return f"order {order} charged on attempt {ctx.attempt}"
"""


def required_distributions(name: str = "mulligan") -> Iterator[metadata.Distribution]:
    """Yield what pip installs with a distribution, without extras and without itself."""
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield metadata.distribution(requirement.name)
            yield from required_distributions(requirement.name)


@pytest.fixture(scope="module")
def dependencies() -> dict[str, metadata.Distribution]:
    return {one.name.lower(): one for one in required_distributions()}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, dependencies) -> Path:
    """Interpreter of an environment that has only Mulligan and what it requires."""
    folder = tmp_path_factory.mktemp("small")
    venv.EnvBuilder(symlinks=True).create(folder)
    (packages,) = folder.glob("lib/*/site-packages")
    for distribution in dependencies.values():
        for name in {file.parts[0] for file in distribution.files or () if ".." not in file.parts}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    (packages / "mulligan.pth").write_text(str(ROOT / "src"))
    return folder / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("MULLIGAN_")}


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "mulligan", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def test_the_install_has_few_and_small_dependencies(dependencies):
    sizes = {
        name: sum(file.size or 0 for file in one.files or () if file.suffix != ".pyc")
        for name, one in dependencies.items()
    }
    assert len(sizes) <= MAX_PACKAGES, sorted(sizes)
    assert sum(sizes.values()) < MAX_MEGABYTES * 1_000_000, sizes


def test_jobs_run_and_are_shown_without_extras(python, folder):
    worker = subprocess.Popen([python, "-m", "mulligan", "worker", "jobs:app"], cwd=folder)
    try:
        until((folder / "mulligan.db").exists, 30)
        until(lambda: "live" in run(python, folder, "workers", "list").stdout, 30)
        job = run(python, folder, "enqueue", "charge", "order=7").stdout.strip()
        assert run(python, folder, "jobs", "watch", job).returncode == 0
        shown = run(python, folder, "jobs", "show", job).stdout
        assert "order 7 charged on attempt 2" in shown
        assert "CONNECTION" in shown
        refused = run(python, folder, "enqueue", "charge", "order=x")
        assert 'order: expected an integer, got "x"' in refused.stderr
    finally:
        worker.terminate()
        assert worker.wait(30) == 0


def test_a_channel_without_its_packages_is_named_by_doctor(python, folder):
    seed = "import jobs; jobs.app.open(); jobs.app.run_inline()"
    subprocess.run([python, "-c", seed], cwd=folder, env=environment(), check=True)
    report = run(python, folder, "doctor", "jobs:app").stdout
    assert "packages are missing, so nothing is sent. Install them: pip install" in report


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("web",), "web"),
        (("up", "jobs:app"), "web"),
        (("demo",), "web"),
        (("demo", "watermark"), "apps"),
        (("metrics",), "web"),
        (("jobs", "list", "--database", "postgresql://localhost/shop"), "postgres"),
    ],
)
def test_a_missing_extra_is_one_sentence_with_the_command(python, folder, arguments, extra):
    ended = run(python, folder, *arguments)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"pip install 'mulligan[{extra}]'" in line


def cpu_milliseconds(command: list[str | Path], folder: Path) -> float:
    """Return the least CPU time of three runs."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(3)) * 1000


def test_importing_and_listing_cost_little(python, folder):
    subprocess.run([python, "-c", "import jobs; jobs.app.open()"], cwd=folder, check=True)
    bare = cpu_milliseconds([python, "-c", "pass"], folder)
    assert cpu_milliseconds([python, "-c", "import mulligan"], folder) - bare < MAX_IMPORT
    listing = [python, "-m", "mulligan", "jobs", "list"]
    assert cpu_milliseconds(listing, folder) < MAX_LIST


def test_the_package_says_what_it_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"web", "postgres", "otel", "sentry", "apps", "all"}
    assert extras <= project["optional-dependencies"].keys()
    assert "Typing :: Typed" in project["classifiers"]
    (program,) = metadata.entry_points(group="console_scripts", name="mulligan")
    assert program.dist.name == program.name  # so `uvx mulligan` needs no --from
    assert (ROOT / "src" / "mulligan" / "py.typed").exists()


# --- Wheel and source distribution, as they would be published ---


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    code = f"from hatchling.build import *; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = [path for path in folder.iterdir() if path.is_dir()]
    # From the unpacked source, not from the clone: what is missing there is missing for users.
    code = f"from hatchling.build import *; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True)
    (wheel,) = folder.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["wheel", "sdist"])
def test_readmes_try_runs_from_what_is_published(what, built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    pip = [programs / "python", "-m", "pip"]
    constraints = ["-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, "install", "-q", *constraints, built[what]], check=True)
    listed = subprocess.check_output([*pip, "list", "--format=freeze"], text=True)
    packages = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert len(packages - {"pip", "setuptools", "mulligan"}) <= MAX_PACKAGES
    page = (ROOT / "README.md").read_text()
    (jobs,) = re.findall(r"```python\n# jobs\.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "jobs.py").write_text(jobs)

    def call(*arguments: str) -> str:
        command = [programs / "mulligan", *arguments]
        return subprocess.check_output(command, cwd=tmp_path, env=environment(), text=True)

    command = [programs / "mulligan", "worker", "jobs:app"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment())
    try:
        until((tmp_path / "mulligan.db").exists, 30)
        until(lambda: "live" in call("workers", "list"), 30)
        job = call("enqueue", "charge", "order=7").strip()
        assert "succeeded" in call("jobs", "watch", job)
        assert "order 7 charged on attempt 2" in call("jobs", "show", job)
    finally:
        worker.terminate()
        assert worker.wait(30) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pipx_and_uvx_run_it(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "-q", "pipx", "uv"], check=True)
    environ = environment() | {"PIPX_HOME": str(tmp_path / "pipx"), "UV_NO_PROGRESS": "1"}
    wheel = str(built["wheel"])
    for program, *options in (["pipx", "run", "--spec", wheel], ["uvx", "--from", wheel]):
        command = [programs / program, *options, "mulligan", "--version"]
        shown = subprocess.check_output(command, env=environ, text=True)
        assert shown.startswith("mulligan, version")


@pytest.mark.slow
def test_the_wheel_has_types_and_no_tests(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = archive.namelist()
    assert "mulligan/py.typed" in names
    assert not [name for name in names if "/tests/" in name or name.startswith("tests/")]
