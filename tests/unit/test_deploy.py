"""The recipes of deploy/: settings that orch can read, commands that it has, and names that lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import COMMANDS
from orchestrator.settings import config
from orchestrator.settings.backends import RayBackend
from orchestrator.settings.discovery import Place

AUDIT = """
import os, sys
sys.dont_write_bytecode = True
def told(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        sys.__stderr__.write(f"WRITES {os.path.abspath(arguments[0])}\\n")
    if event == "sqlite3.connect":
        file = str(arguments[0]).removeprefix("file:").partition("?")[0]
        sys.__stderr__.write(f"WRITES {os.path.abspath(file)}\\n")
sys.addaudithook(told)
"""
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RECIPES = sorted(path.name for path in DEPLOY.glob("*.yaml"))


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(each)


def settings_in(name: str) -> str:
    """The orch.toml of a recipe."""
    for text in (text for document in documents(name) for text in strings(document)):
        if (heredoc := re.search(r"<<SETTINGS\n(.*?)^SETTINGS$", text, re.DOTALL | re.MULTILINE)) is not None:
            return heredoc[1].replace("$HOME", "~")  # the shell fills it in
        if "[backends." in text:
            return text
    raise AssertionError(f"{name} has no settings")


def test_every_recipe_is_in_the_list() -> None:
    listed = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DEPLOY.iterdir() if f"({path.name})" not in listed] == ["README.md"]


@pytest.mark.parametrize("name", RECIPES)
def test_orch_reads_the_settings(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "orch.toml", tmp_path, "sqlite:///x", 1.0)
    found = config.parse(place, settings_in(name))
    assert found.backends
    for backend in found.backends.values():
        if isinstance(backend, RayBackend):
            assert all(model.engines[0] == 0 for model in backend.models.values())


@pytest.mark.parametrize("name", RECIPES)
def test_orch_has_the_commands(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    used = re.findall(r"/orch (\w+)", code)
    for document in documents(name):
        containers = [one for one in _containers(document) if one["name"] == "orch"]
        used += [one["args"][0] for one in containers if "command" not in one]
        used += [document["services"]["orch"]["command"][0]] if "services" in document else []
    assert used
    assert set(used) <= COMMANDS.keys()


def _containers(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield from document.get("containers", [])
        for value in document.values():
            yield from _containers(value)
    elif isinstance(document, list):
        for value in document:
            yield from _containers(value)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kuberay.yaml"])
def test_what_kubernetes_is_told_to_mount_is_there(name: str) -> None:
    found = documents(name)
    # The second recipe is applied behind the first.
    made = {(one["kind"], one["metadata"]["name"]) for one in [*documents("kubernetes.yaml"), *found]}
    for one in found:
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            for volume in volumes.values():
                claim, settings = volume.get("persistentVolumeClaim"), volume.get("configMap")
                assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in made
                assert settings is None or ("ConfigMap", settings["name"]) in made
            for container in pod["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            # One process runs a home.
            assert (one["spec"]["replicas"], one["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_ray_has_no_machines_by_day() -> None:
    (cluster,) = [one for one in documents("kuberay.yaml") if one["kind"] == "RayCluster"]
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"]) == (0, 0)
    backend = config.parse(
        Place(Path("orch.toml"), Path(), "sqlite:///x", 1.0), settings_in("kuberay.yaml")
    ).backends["cluster"]
    assert isinstance(backend, RayBackend)
    # The machines have room for as many engines as there may be.
    gpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    model = backend.models["qwen"]
    assert group["maxReplicas"] * (gpus // model.gpus) == model.engines[1]
    assert backend.address.split(":")[0] == f"{cluster['metadata']['name']}-head-svc"


def test_compose_mounts_what_it_names() -> None:
    (found,) = documents("compose.yaml")
    for service in found["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in found["volumes"] or source.startswith("..")
        assert {one["source"] for one in service.get("configs", ())} <= found["configs"].keys()
        assert service.get("depends_on", {}).keys() <= found["services"].keys()


CONTAINERFILES = ("Containerfile", "Containerfile.ray")


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Containerfile with what follows them, continued lines as one."""
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_images_are_built_as_linters_ask(name: str) -> None:
    """The rules that matter most; `make soak-release` runs hadolint itself."""
    steps = instructions(name)
    assert {word for word, _ in steps} <= {
        "FROM", "RUN", "COPY", "USER", "ENV", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    for word, rest in steps:
        if word == "FROM":
            assert re.fullmatch(r"docker\.io/[\w/-]+:\d[\w.-]*", rest), "a full name and a version"
        if word == "COPY":
            assert all((DEPLOY.parent / source).exists() for source in rest.split()[:-1]), rest
        if word == "RUN" and "apt-get install" in rest:
            assert "apt-get update" in rest
            assert "--no-install-recommends" in rest
            assert rest.endswith("rm -rf /var/lib/apt/lists/*")
        if word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
        if word in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "without a shell, which would keep signals"
    users = [rest for word, rest in steps if word == "USER"]
    assert users, "it runs as somebody"
    # By number: Kubernetes cannot tell that a name is not root's.
    assert all(re.fullmatch(r"[1-9]\d*", user) for user in users), users
    assert [word for word, _ in steps].index("USER") > max(at for at, (word, _) in enumerate(steps) if word == "RUN")


def test_the_image_has_what_the_wheel_is_made_of_and_a_health_check() -> None:
    steps = instructions("Containerfile")
    copied = {source for word, rest in steps if word == "COPY" for source in rest.split()[:-1]}
    assert copied >= {"pyproject.toml", "orchestrator", "docs", "README.md", "LICENSE", "NOTICE"}
    [check] = [rest for word, rest in steps if word == "HEALTHCHECK"]
    command = yaml.safe_load(check.partition(" CMD ")[2])
    assert command[0] == "orch"
    assert command[1] in COMMANDS


def test_services_are_confined() -> None:
    (found,) = documents("compose.yaml")
    for name, service in found["services"].items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "healthcheck" in service
        assert not service.get("privileged")
        assert "build" in service or not service["image"].endswith(":latest")
        if name != "engine":
            assert service["read_only"] is True
            assert not service["user"].startswith(("0", "root"))
    (pod,) = [one["spec"]["template"]["spec"] for one in documents("kubernetes.yaml") if one["kind"] == "Deployment"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "livenessProbe" in container


@pytest.mark.long
def test_orch_writes_to_its_home_and_the_folder_of_temporary_files_alone(orch_home: Path, tmp_path: Path) -> None:
    """What a read-only root refuses: anything written elsewhere, as an audit of Python's own calls tells it."""
    (orch_home / "orch.toml").write_text(
        "[backends.local]\nupstreams = ['http://127.0.0.1:9/v1']\nlocation = 'local'\n"
    )
    audit = tmp_path / "audit"
    audit.mkdir()
    (audit / "sitecustomize.py").write_text(AUDIT)
    environment = {"ORCH_HOME": str(orch_home), "ORCH_CONFIG": str(orch_home / "orch.toml"), "TMPDIR": str(audit)}
    command = [sys.executable, "-m", "orchestrator", "status", "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment, "PYTHONPATH": f"{audit}:{DEPLOY.parent}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    written = {Path(line.removeprefix("WRITES ")) for line in done.stderr.splitlines() if line.startswith("WRITES ")}
    assert written, "the database"
    assert [path for path in written if not path.is_relative_to(orch_home) and path != Path("/dev/null")] == []


MOST_EXPOSED = 30
"""Tenths, as `systemd-analyze security` scores a unit: from 0 to 100."""


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: apt-get install systemd"
)
def test_the_service_is_confined() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}"]
    done = subprocess.run([*command, str(DEPLOY / "orch.service")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:]


def test_the_service_can_do_its_work() -> None:
    """It writes its own folder, reads documents, and starts engines, which compile code and use GPUs."""
    lines = (DEPLOY / "orch.service").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert (told["StateDirectory"], told["Environment"]) == ("orch", "ORCH_CONFIG=/etc/orch/orch.toml")
    assert "Environment=ORCH_HOME=/var/lib/orch" in lines
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(told["RestrictAddressFamilies"].split())
    assert not {"MemoryDenyWriteExecute", "PrivateDevices", "PrivateNetwork", "DeviceAllow"} & told.keys()
