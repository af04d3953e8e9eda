"""A Python with a Ray that has one node, this machine, for `ray_python` of [documents].

The child that speaks to it is the real one, and so are the worker processes of its tasks; Ray alone is not. What a
task is given says what becomes of it: with UNLUCKY in it, its node is lost the first time, with POISON each time.
`folder/lost` has a line for each. `problem` is for a cluster that cannot be reached, and `silent` one of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RAY = """
import asyncio, json, pathlib, threading
from ray.exceptions import RayError
FOLDER = pathlib.Path(__file__).parents[1]
PLAN = json.loads((FOLDER / "cluster.json").read_text())
class Remote:
    def __init__(self, function):
        self.function = function
    def options(self, **given):
        assert given == dict(num_cpus=1, max_retries=0), given
        return self
    async def remote(self, request, *more):
        lost = FOLDER / "lost"
        before = lost.read_bytes().split(b"\\n") if lost.exists() else []
        for word, times in ((b"UNLUCKY", 1), (b"POISON", 9)):
            if word in request and before.count(word) < times:
                lost.write_bytes(b"\\n".join([*before, word]))
                raise NodeDiedError("its node is gone")
        if PLAN["version"]:
            import orchestrator
            orchestrator.__version__ = PLAN["version"]
        return await asyncio.to_thread(self.function, request, *more)
class NodeDiedError(RayError):
    pass
remote = Remote
put = bytes
def init(**given):
    (FOLDER / "address").write_text(given["address"])
    if PLAN["problem"] == "silent":
        threading.Event().wait()
    if PLAN["problem"]:
        raise ConnectionError(PLAN["problem"])
def shutdown():
    pass
def cluster_resources():
    return dict(CPU=PLAN["cpus"])
"""


def fake_cluster(folder: Path, *, cpus: float = 2.0, problem: str = "", version: str = "") -> Path:
    """Write it into a folder and return the path of the Python."""
    (folder / "ray").mkdir(parents=True)
    (folder / "ray" / "__init__.py").write_text(RAY)
    (folder / "ray" / "exceptions.py").write_text("class RayError(Exception):\n    pass\n")
    (folder / "cluster.json").write_text(json.dumps({"cpus": cpus, "problem": problem, "version": version}))
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:{ROOT} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def losses(folder: Path) -> list[str]:
    """What nodes were lost with, in order."""
    path = folder / "lost"
    return path.read_text().split() if path.exists() else []
