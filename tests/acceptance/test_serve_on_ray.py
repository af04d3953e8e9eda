"""`orch serve --ray` as its users have it; a cluster that the tests play (`tests/support/fakeray.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.batchapi import create, ended, health, row, sdk_at
from tests.support.cli import Orch, kill_group
from tests.support.fakeray import engines_started, fake_ray
from tests.support.process import wait_until
from tests.support.serving import serve, url_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines run on Linux")

IDS = [f"r{n}" for n in range(60)]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.soak
def test_batches_bring_engines_which_end_with_the_rows_and_with_the_server(
    run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    (orch_home / "orch.toml").touch()
    cluster = tmp_path / "ray"
    python = fake_ray(cluster, "--latency-ms", "200", "--slots", "8")
    options = (
        "--vllm",
        "org/model",
        "--ray",
        "auto",
        "--engines",
        "0..3",
        "--idle",
        "1s",
        "--ray-python",
        str(python),
    )
    process, url = serve(run_orch, *options, "--tensor-parallel", "2", "--", "--max-model-len", "9")
    with sdk_at(url) as sdk:
        assert [(one["model"], one["state"]) for one in wait_until(lambda: health(sdk)["engines"])] == [
            ("org/model", "cold")
        ]
        batch = create(sdk, [row(name, model="org/model") for name in IDS])
        started = wait_until(lambda: engines_started(cluster))
        kill_group(process)
        process.wait()
        wait_until(lambda: not is_running(started[0]["pid"]))
    process = run_orch.start("serve", "--port", "0", *options)
    with sdk_at(url_of(run_orch, process)) as sdk:
        ended(sdk, batch.id, 60).check(IDS)
        wait_until(lambda: [one["state"] for one in health(sdk)["engines"]] == ["cold"])
        assert health(sdk)["upstreams"] == []
        create(sdk, [row("last", "[[fault:slow:60000]]", model="org/model")])
        wait_until(lambda: [one["state"] for one in health(sdk)["engines"]] == ["warm"])
        process.terminate()
        assert process.wait(60) == 0
    first, *_, last = engines_started(cluster)
    assert not any(is_running(one["pid"]) for one in engines_started(cluster))
    assert (first["asked"]["gpus"], last["asked"]["gpus"]) == (2, 1)
    told = first["asked"]["arguments"]
    assert told[told.index("--served-model-name") + 1] == "org/model"
    assert told[-2:] == ["--max-model-len", "9"]
    assert "orch: ray: connected to Ray 9.9.9 with 2 nodes" in run_orch.output(process)


def test_a_command_line_that_makes_no_sense(run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    (orch_home / "orch.toml").touch()
    for arguments, told in (
        (("--ray", "auto", "--vllm", "m", "--gpus", "0"), "--ray goes with --vllm MODEL, and without --gpus"),
        (("--vllm", "m", "--engines", "0..8"), "go with --ray ADDRESS"),
        (("--vllm", "m", "--ray", "auto", "--engines", "8..0"), "is not a number of engines such as"),
        (("--vllm", "m", "--ray", "auto", "--idle", "soon"), "is not a length of time such as"),
        (("--vllm", "m", "--ray", "auto"), "name it with --ray-python PATH"),
        (("--vllm", "m", "--ray", "auto", "--ray-python", sys.executable, "--", "--port", "1"), "--port cannot be"),
    ):
        done = run_orch("serve", "--port", "0", *arguments, env={"PATH": str(tmp_path)})
        assert (done.returncode, told in done.stderr) == (2, True), (arguments, done.stderr)
    done = run_orch("serve", "--port", "0", "--vllm", "m", "--ray", "auto", "--ray-python", sys.executable)
    assert (done.returncode, "has no Ray" in done.stderr, "--ray-python" in done.stderr) == (4, True, True)
