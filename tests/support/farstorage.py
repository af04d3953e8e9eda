"""Storages far away, for real: an SFTP server, an emulator of Google's and Azurite, from `make storages`.

Where they are not installed, tests that need them skip and say so. `orch` is ours in that environment, which has the
libraries that the tests' own has not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.process import PATIENCE, wait_until
from tests.support.raycluster import free_port

FOLDER = Path(__file__).resolve().parents[2] / ".storages"
PYTHON = FOLDER / "bin" / "python"
needs_storages = pytest.mark.skipif(not (FOLDER / "installed").exists(), reason="not installed: make storages")
HOUR_AGO = 3600
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that Azurite publishes for its one account."""
_WRITE = """
import json, sys
from fsspec.core import url_to_fs
storage, root = url_to_fs(sys.argv[1])
if not storage.exists(root):
    storage.mkdir(root)
for name, text in json.load(sys.stdin).items():
    path = f"{root}/{name}"
    storage.rm_file(path) if text is None else storage.pipe_file(path, text.encode())
"""
_READ = """
import sys
from orchestrator.core import storages
storage, path = storages.opened(sys.argv[1])
sys.stdout.buffer.write(storage.cat_file(path))
"""


@dataclass
class Far:
    """A storage at `address`; `env` is what its users set, and `log` what it says of each request."""

    address: str
    env: dict[str, str]
    log: Path
    read_line: re.Pattern[str]
    wrong_keys: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    pid: int = 0
    seen: int = 0

    def write(self, **files: str | None) -> None:
        """Files by name, with `__` for a slash and `_` for a dot; None removes one."""
        told = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
        if self.folder is None:
            self.run(_WRITE, self.address, given=json.dumps(told))
            return
        for name, text in told.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
                continue
            path.write_text(text)
            # One that changed just now might change again within its second.
            os.utime(path, (time.time() - HOUR_AGO,) * 2)

    def text(self, address: str) -> str:
        """What a file there holds."""
        return self.run(_READ, address)

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        """A program of Python in the environment of the storages."""
        command = [PYTHON, "-c", program, *arguments]
        done = subprocess.run(command, input=given, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def orch(self, home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Our command there. A storage that hangs fails the test by its time."""
        command = [PYTHON.with_name("orch"), *arguments]
        given = {**self.env, "ORCH_HOME": str(home), **env}
        return subprocess.run(command, env=given, cwd=home, capture_output=True, text=True, timeout=PATIENCE)

    def reads(self) -> Counter[str]:
        """The files that were read since this was last asked."""
        lines = self.log.read_text(errors="replace").splitlines()
        new, self.seen = lines[self.seen :], len(lines)
        return Counter(unquote(found[1]) for found in map(self.read_line.search, new) if found)


@contextmanager
def sftp(folder: Path) -> Iterator[Far]:
    """Files of a user with a key, on a server whose key is known."""
    root, ssh = folder / "files", folder / ".ssh"
    root.mkdir()
    ssh.mkdir(mode=0o700)
    keys = "import asyncssh, sys\nfor name in sys.argv[1:]:\n    key = asyncssh.generate_private_key('ssh-ed25519')\n"
    keys += "    key.write_private_key(name); key.write_public_key(name + '.pub')"
    ours, theirs = ssh / "id_ed25519", folder / "host"
    env = {**plain_env(), "HOME": str(folder)}
    subprocess.run([PYTHON, "-c", keys, ours, theirs], check=True, env=env)
    log = folder / "sftp.log"
    server = Path(__file__).with_name("sftpd.py")
    with started([PYTHON, server, root, theirs, f"{ours}.pub"], log, env) as pid:
        port = int(wait_until(lambda: re.search(r"ready (\d+)", log.read_text()), PATIENCE)[1])
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {theirs.with_suffix('.pub').read_text()}")
        (folder / "stranger").mkdir()
        (folder / "stranger/.ssh").mkdir()
        (folder / "stranger/.ssh/known_hosts").write_text((ssh / "known_hosts").read_text())
        wrong = {"HOME": str(folder / "stranger")}
        yield Far(f"sftp://me@127.0.0.1:{port}", env, log, re.compile(r"read /(\S+)"), wrong, root, pid)


@contextmanager
def google(folder: Path) -> Iterator[Far]:
    port, log = free_port(), folder / "google.log"
    emulator = [FOLDER / "bin/gcp-storage-emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    # The second asks Google's own service of each bucket what kind it is.
    env = {**plain_env(), "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
    env["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    with started([*emulator, "--default-bucket=bucket"], log, env):
        wait_until(lambda: "All services started" in log.read_text(), PATIENCE)
        yield Far("gs://bucket", env, log, re.compile(r'"GET /download/storage/v1/b/bucket/o/(\S+)\?.*alt=media'))


@contextmanager
def azure(folder: Path) -> Iterator[Far]:
    port, log = free_port(), folder / "azure.log"
    azurite = [FOLDER / "node_modules/.bin/azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    with started([*azurite, *options], log, plain_env()):
        wait_until(lambda: "successfully listens" in log.read_text(), PATIENCE)
        address = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        account = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey="
        name = "AZURE_STORAGE_CONNECTION_STRING"
        env = {**plain_env(), name: f"{account}{AZURE_KEY};{address}"}
        wrong = {name: f"{account}d3Jvbmc=;{address}"}
        yield Far("az://bucket", env, log, re.compile(r'"GET /devstoreaccount1/bucket/([^?\s]+) HTTP'), wrong)


KINDS: dict[str, Callable[[Path], object]] = {"sftp": sftp, "gs": google, "az": azure}


def plain_env() -> dict[str, str]:
    """Ours without what might name another storage, an SSH agent or keys."""
    ours = ("AWS_", "AZURE_", "GOOGLE_", "SSH_", "STORAGE_", "ORCH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextmanager
def started(command: list[object], log: Path, env: dict[str, str]) -> Iterator[int]:
    """The process of a server that writes to `log` until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=out, stderr=out, env=env
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
