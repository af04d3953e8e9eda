"""Packages of hosted backends: ours, and those of other distributions, each found where it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.backends.package import package_of, rules_for
from orchestrator.settings.backend_packages import GROUP, hosted_kinds

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ROOT / "orchestrator" / "backends"
OURS = {path.parent.name for path in BACKENDS.glob("*/__init__.py")}
SDKS = {
    "openai",
    "anthropic",
    "mistralai",
    "together",
    "fireworks",
    "xai_sdk",
    "cohere",
    "fastavro",
    "openrouter",
    "google.auth",
    "google.genai",
    "boto3",
    "botocore",
}
THEIRS = """
from typing import Literal
from orchestrator.backends.package import BackendPackage
from orchestrator.backends.profiles import Profile
from orchestrator.settings.backends import HostedBackend

class TheirSettings(HostedBackend):
    kind: Literal["theirs"]
    base_url: str = "https://api.theirs.example"
    region: str = "north"

class Theirs(BackendPackage):
    kinds = {"theirs": TheirSettings}
    def profile(self, settings):
        return Profile(f"theirs-{settings.region}")
    def open(self, settings, access):
        raise NotImplementedError

PACKAGE = Theirs()
"""
ASKED = """
import sys
from pathlib import Path
from orchestrator.backends.open import profile_for
from orchestrator.settings.config import ConfigFile
from orchestrator.pipeline.dialects import recipient_of
read = ConfigFile.model_validate({"backends": {"a": {"kind": "theirs", "api_key_env": "K", "region": "south"}}})
print(profile_for(read.backends["a"]).name, recipient_of(read.backends["a"]).provider)
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def install(folder: Path, target: str) -> None:
    """Put a distribution with an entry point into a folder of the path."""
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ntheirs = {target}\n")
    (folder / "their_package.py").write_text(THEIRS)


@pytest.mark.long
def test_a_package_of_another_distribution_is_found_by_its_entry_point(tmp_path: Path) -> None:
    install(tmp_path, "their_package:PACKAGE")
    ended = run(ASKED, tmp_path)
    assert (ended.stdout.split(), ended.stderr) == (["theirs-south", "theirs-south"], "")


@pytest.mark.long
def test_a_broken_package_is_left_out_and_harms_no_other(tmp_path: Path) -> None:
    install(tmp_path, "their_package:MISSING")
    ended = run("from orchestrator.settings.backend_packages import hosted_kinds; print(*hosted_kinds())", tmp_path)
    assert ended.stdout.split() == list(hosted_kinds())
    assert "the package of backend theirs is left out" in ended.stderr


@pytest.mark.long
def test_reading_an_orch_toml_of_every_kind_imports_no_sdk_of_a_provider(tmp_path: Path) -> None:
    """Nor do the modules beside the packages, which they share."""
    shared = [f"orchestrator.backends.{path.stem}" for path in BACKENDS.glob("[a-z]*.py")]
    assert len(shared) > 15
    code = f"""
import sys
from importlib import import_module
from orchestrator.settings.backend_packages import hosted_kinds
print(*hosted_kinds())
for name in {shared!r}:
    import_module(name)
print(*sorted({SDKS!r} & set(sys.modules)))
"""
    ended = run(code, tmp_path)
    kinds, imported = ended.stdout.splitlines()
    assert (kinds.split(), imported, ended.stderr) == (list(hosted_kinds()), "", "")


def test_a_folder_has_at_most_700_lines() -> None:
    for folder in OURS:
        lines = sum(len(path.read_text().splitlines()) for path in (BACKENDS / folder).glob("*.py"))
        assert lines <= 700, f"{folder} has {lines} lines"


def test_what_packages_share_imports_none_of_them() -> None:
    """A package may use another's module only if that speaks the same requests."""
    allowed = {("vertex", "gemini")}
    for folder in ["", *sorted(OURS)]:
        for path in (BACKENDS / folder).glob("*.py"):
            used = set(re.findall(r"^ *from orchestrator\.backends\.([a-z_]+)", path.read_text(), re.MULTILINE))
            foreign = used & OURS - {folder}
            assert {(folder, other) for other in foreign} <= allowed, path


def test_each_of_our_folders_is_a_package_whose_kinds_lead_back_to_it() -> None:
    found = set()
    for kind, settings in hosted_kinds().items():
        values = {"kind": kind, "api_key_env": "K", "base_url": "https://api.example"}
        found.add(type(package_of(settings.model_construct(**values))).__module__.rpartition(".")[2])
    assert found == OURS


def test_lines_of_a_package_are_for_its_provider_alone() -> None:
    assert rules_for("anthropic")
    assert rules_for("openai") == ()
