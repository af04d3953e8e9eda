"""Disks that are really full, until they have room again; only root can make one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_BLOCK = 64 * 1024


@contextmanager
def disk_of(size: int, folder: Path) -> Iterator[None]:
    """A disk of its own in this folder, which is really full once it has so many bytes."""
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "full", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.decode(errors='replace')}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def filled(folder: Path, *, but: int = 0) -> Iterator[None]:
    """The disk of a folder, with so many bytes free; it gets its room back at the end of the block."""
    there = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        left = there.f_bavail * there.f_frsize - but
        while left > 0:
            left -= file.write(b"x" * min(left, _BLOCK))
    try:
        yield
    finally:
        filler.unlink()
