"""A Python that seems to have Ray: given as `ray_python`, it plays the process that speaks to Ray, and the cluster.

Written from the protocol as it is documented, not from the program. `folder/cluster.json` says how the cluster is:
`{"reachable": true, "room": 2}`. Each engine is the test upstream, with the key that it was told. `folder/said.jsonl`
has every line that was said to it, `folder/engines.jsonl` what was started. A file `folder/lose-ID` makes it lose
that engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """#!{python}
import json, os, pathlib, select, subprocess, sys
folder = pathlib.Path({folder!r})
if "-c" in sys.argv[1:3]:
    sys.exit(0 if (folder / "cluster.json").exists() else 3)  # asked whether it has Ray
def tell(event, **more):
    print(json.dumps(dict(event=event, **more)), flush=True)
def cluster():
    return json.loads((folder / "cluster.json").read_text())
verb, address = sys.argv[2:4]
if not cluster()["reachable"]:
    tell("unreachable", problem="there is no Ray cluster at " + address)
    sys.exit(4)
nodes = [dict(id="n%d" % n, address="10.0.0.%d" % n, alive=True, cpus=8.0, gpus=1.0, memory_bytes=2**30)
         for n in range(cluster()["room"])]
if verb == "status":
    tell("status", ray="9.9.9", nodes=nodes, free=dict(CPU=8.0, GPU=1.0))
    sys.exit(0)
(folder / "pid.new").write_text(str(os.getpid()))
(folder / "pid.new").rename(folder / "pid")
tell("connected", ray="9.9.9", nodes=nodes)
running, pending = {{}}, {{}}
def engine(name, state, url="", problem=None, starts=1):
    tell("engine", id=name, state=state, url=url, node="n0", problem=problem, starts=starts)
def begin(name, one):
    engine(name, "starting")
    model = one["arguments"][one["arguments"].index("--served-model-name") + 1]
    process = subprocess.Popen(
        [{python!r}, "-m", "tests.support.upstream", "--model", model,
         "--api-key=" + one["env"]["VLLM_API_KEY"], *{extra!r}],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd={root!r},
        env=dict((name, value) for name, value in os.environ.items() if name != "PYTHONSAFEPATH"))
    port = json.loads(process.stdout.readline())["port"]
    with (folder / "engines.jsonl").open("a") as file:
        file.write(json.dumps(dict(id=name, pid=process.pid, port=port, asked=one)) + chr(10))
    running[name] = process
    engine(name, "ready", "http://127.0.0.1:%d/v1" % port)
def end(name):
    process = running.pop(name)
    process.kill()
    process.wait()
def want(line):
    with (folder / "said.jsonl").open("a") as file:
        file.write(line)
    wanted = {{one["id"]: one for one in json.loads(line)["wanted"]}}
    for name in [name for name in running if name not in wanted]:
        end(name)
    for name in [name for name in pending if name not in wanted]:
        del pending[name]
    for name, one in wanted.items():
        if name not in running and name not in pending:
            pending[name] = one
            engine(name, "pending", starts=0)
    tell("there", ids=[*running, *pending])
os.set_blocking(0, False)
rest = ""
while True:
    if select.select([0], [], [], 0.05)[0]:
        piece = os.read(0, 1 << 20).decode()
        if not piece:
            break
        *lines, rest = (rest + piece).split(chr(10))
        for line in lines:
            want(line + chr(10))
    for name in [*running]:
        lost = folder / ("lose-" + name.replace("/", "-"))
        if lost.exists():
            lost.unlink()
            one = json.loads((folder / "engines.jsonl").read_text().splitlines()[0])["asked"]
            end(name)
            engine(name, "lost", problem="its node is gone")
            pending[name] = one
    for name in [*pending]:
        if len(running) < cluster()["room"]:
            begin(name, pending.pop(name))
for name in [*running]:
    end(name)
"""


def fake_ray(folder: Path, *upstream_options: str, room: int = 2, reachable: bool = True) -> Path:
    """Write the program into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    arrange(folder, room=room, reachable=reachable)
    path = folder / "python-with-ray"
    path.write_text(
        PROGRAM.format(python=sys.executable, folder=str(folder), root=str(ROOT), extra=list(upstream_options))
    )
    path.chmod(0o755)
    return path


def arrange(folder: Path, *, room: int = 2, reachable: bool = True) -> None:
    """The cluster from now on has room for so many engines."""
    beside = folder / "cluster.json.new"
    beside.write_text(json.dumps({"room": room, "reachable": reachable}))
    beside.rename(folder / "cluster.json")


def lose(folder: Path, engine: str) -> None:
    """The node of this engine is lost."""
    (folder / f"lose-{engine.replace('/', '-')}").touch()


def engines_started(folder: Path) -> list[dict[str, Any]]:
    """What was started so far."""
    path = folder / "engines.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pid_of(folder: Path) -> int:
    """The process that speaks to the cluster."""
    return int((folder / "pid").read_text())
