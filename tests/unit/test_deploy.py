"""The recipes of deploy/: settings that orch can read, commands that it has, and names that lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import COMMANDS
from orchestrator.settings import config
from orchestrator.settings.backends import RayBackend
from orchestrator.settings.discovery import Place

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
            return heredoc[1]
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
