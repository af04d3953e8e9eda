"""A Python that seems to have vLLM: given to `orch serve --vllm-python`, it starts the test upstream in vLLM's place.

`fake_vllm(folder)` writes the program. What it was started with stands in `folder/starts.jsonl`, one object a start:
its options, its CUDA_VISIBLE_DEVICES, its process id.
`--max-num-seqs` is how many rows run at once, as in vLLM. `refuse(folder, text)` makes each start end with that text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """#!{python}
import json, os, sys
if sys.argv[1] == "-c":
    sys.exit(0)  # asked whether it has vLLM
assert sys.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"], sys.argv
options = sys.argv[3:]
with open({starts!r}, "a") as file:
    seen = {{"options": options, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid()}}
    seen["key"] = os.environ.get("VLLM_API_KEY")
    seen["secrets"] = [name for name in os.environ if name.endswith("_API_KEY") and name != "VLLM_API_KEY"]
    file.write(json.dumps(seen) + chr(10))
try:
    with open({refusal!r}) as file:
        code, text = file.read().split(chr(10), 1)
except FileNotFoundError:
    pass
else:
    print("loading weights", flush=True)
    print(text, flush=True)
    sys.exit(int(code))
name = options[options.index("--served-model-name") + 1]
port = options[options.index("--port") + 1]
host = options[options.index("--host") + 1]
extra = {extra!r}
for place, option in enumerate(options):
    if option == "--max-num-seqs":
        extra += ["--slots", options[place + 1]]  # the last counts
if os.environ.get("VLLM_API_KEY"):
    extra += ["--api-key=" + os.environ["VLLM_API_KEY"]]
os.chdir({root!r})
del os.environ["PYTHONSAFEPATH"]  # the upstream is a module of the working directory
upstream = [{python!r}, "-m", "tests.support.upstream", "--host", host, "--port", port]
os.execv({python!r}, [*upstream, "--model", name, *extra])
"""


def fake_vllm(folder: Path, *upstream_options: str) -> Path:
    """Write the program into a folder and return its path."""
    path = folder / "python-with-vllm"
    text = PROGRAM.format(
        python=sys.executable,
        starts=str(folder / "starts.jsonl"),
        refusal=str(folder / "refusal"),
        root=str(ROOT),
        extra=list(upstream_options),
    )
    path.write_text(text)
    path.chmod(0o755)
    return path


def refuse(folder: Path, text: str | None, code: int = 1) -> None:
    """From now on each start ends with this text and exit code; None lets them work again."""
    if text is None:
        (folder / "refusal").unlink()
    else:
        (folder / "refusal").write_text(f"{code}\n{text}")


def starts(folder: Path) -> list[dict[str, Any]]:
    """What was started so far."""
    path = folder / "starts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def fake_nvidia_smi(folder: Path, *lines: str) -> str:
    """A PATH on which nvidia-smi tells of these GPUs: `index, total, free` in MiB each."""
    (folder / "gpus").write_text("".join(f"{line}\n" for line in lines))
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nexec cat {folder / 'gpus'}\n")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def model_folder(folder: Path, weights: int = 1000) -> Path:
    """A folder that looks like a model of so many bytes; on the disk it takes none."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"dtype": "bfloat16"}')
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(weights)
    return folder
