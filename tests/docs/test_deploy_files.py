"""The files in deploy/: each is checked by its own linter or against its published schema."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml
from doc_pages import ROOT

from mulligan.worker.scaling import Scale
from support.helm import render_chart

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "mulligan"
BIN = Path(sys.executable).parent
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = "1.31"
KEDA_KINDS = ("ScaledObject", "TriggerAuthentication")


def validate(manifest: dict[str, Any]) -> None:
    """Compare a manifest with the schema of Kubernetes. Unknown fields are errors."""
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def by_name(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in manifests}


def test_kubernetes_accepts_the_manifests():
    manifests = [*yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())]
    assert len(manifests) == 4
    for manifest in manifests:
        validate(manifest)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"release": "2026-03", "worker": {"queue": "bulk"}, "web": {"enabled": False}},
        {"scaling": {"enabled": True}, "env": [{"name": "MULLIGAN_LOG__LEVEL", "value": "INFO"}]},
    ],
)
def test_kubernetes_accepts_what_the_chart_makes_of_its_values(values):
    manifests = render_chart(CHART, **values)
    assert manifests
    for manifest in manifests:
        if manifest["kind"] not in KEDA_KINDS:
            validate(manifest)


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
def test_helm_finds_nothing_wrong_with_the_chart():
    subprocess.run(["helm", "lint", "--strict", CHART], check=True)


def test_the_chart_makes_the_manifests_of_the_example():
    example = by_name([*yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())])
    chart = by_name(render_chart(CHART))
    assert chart.keys() == example.keys()
    for name in (("Deployment", "jobs-worker"), ("Deployment", "jobs-web")):
        [shown], [made] = (
            manifests[name]["spec"]["template"]["spec"]["containers"]
            for manifests in (example, chart)
        )
        for field in ("image", "command", "livenessProbe", "envFrom"):
            assert made[field] == shown[field]


def test_the_chart_and_the_units_wait_longer_than_the_worker_needs():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["worker"]["terminationGracePeriod"] > values["worker"]["shutdownGrace"]


def test_the_scaler_asks_for_a_number_that_the_api_answers():
    manifests = by_name(
        render_chart(CHART, scaling={"enabled": True}, worker={"queue": "bulk", "concurrency": 4})
    )
    scaled = manifests["ScaledObject", "jobs-worker"]["spec"]
    assert "replicas" not in manifests["Deployment", "jobs-worker"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": "jobs-worker"}
    [trigger] = scaled["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    assert (url.hostname, url.path) == ("jobs-web", "/api/v1/scale")
    assert parse_qs(url.query) == {"target": ["30"], "slots": ["4"], "queue": ["bulk"]}
    assert trigger["metadata"]["valueLocation"] in Scale.__dataclass_fields__
    assert (trigger["metricType"], trigger["metadata"]["targetValue"]) == ("AverageValue", "1")
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in manifests


def test_the_compose_file_follows_the_compose_specification():
    checker = BIN / "check-jsonschema"
    options = ["--builtin-schema", "vendor.compose-spec"]
    found = subprocess.run(
        [checker, *options, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout.strip()) == (0, "ok -- validation done")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    for unit in UNITS:
        text = unit.read_text().replace("/srv/app/.venv/bin/mulligan", str(BIN / "mulligan"))
        (tmp_path / unit.name).write_text(text)
    copies = [tmp_path / unit.name.replace("@.", "@1.") for unit in UNITS]
    (tmp_path / "mulligan-worker@1.service").symlink_to(tmp_path / "mulligan-worker@.service")
    verified = subprocess.run(
        ["systemd-analyze", "verify", *copies], capture_output=True, text=True, check=False
    )
    lines = [line for line in verified.stderr.splitlines() if "mulligan-" in line]
    assert (verified.returncode, lines) == (0, [])


def test_the_worker_unit_is_the_one_of_the_page():
    page = (ROOT / "docs/operate/deploy.md").read_text()
    shown = page.partition("# mulligan-worker.service\n")[2].partition("```")[0]
    unit = (DEPLOY / "systemd" / "mulligan-worker@.service").read_text()
    for line in shown.splitlines():
        if "=" in line and not line.startswith(("Description=", "After=")):
            assert line in unit.splitlines(), line
