"""One tenant's heaviest files, beside another tenant's ten rows: memory stays bounded, also after a restart."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import httpx2
import pytest

from tests.support.cli import Orch
from tests.support.heavy import heavy_upstream
from tests.support.process import wait_until
from tests.support.serving import serve

MB = 1_000_000
MOST_BYTES = 600 * MB
SLOWER = 2.0
SCALE = float(os.environ.get("ORCH_SOAK_BODIES", "1"))
"""The part of the heavy rows that is made."""


def line(number: int, content: str) -> bytes:
    head = f'{{"custom_id":"r{number}","method":"POST","url":"/v1/chat/completions","body":'
    return f'{head}{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}}}\n'.encode()


def rows(count: int, content: str) -> Iterator[bytes]:
    return (line(number, content) for number in range(max(1, round(count * SCALE))))


def text(size: int) -> str:
    return '"' + "x" * size + '"'


HEAVY: dict[str, tuple[int, Callable[[], Iterator[bytes]], int, bool]] = {
    "rows of 30 MB": (24, lambda: rows(16, text(30 * MB)), 0, False),
    "pictures of 6 MB": (3, lambda: rows(67, text(6 * MB)), 0, False),
    "small rows": (1, lambda: rows(50_000, text(9_500)), 0, False),
    "brackets": (4, lambda: rows(16, "[" + ",".join(["[[[]]]"] * (4 * MB)) + "]"), 0, False),
    "escapes": (4, lambda: rows(16, '"' + "\\u00e4\\n" * (3 * MB) + '"'), 0, False),
    "no ASCII": (4, lambda: rows(16, '"' + "ä" * (14 * MB) + '"'), 0, False),
    "answers of 30 MB": (4, lambda: rows(50, text(2000)), 30 * MB, False),
    "chunked answers": (4, lambda: rows(50, text(2000)), 30 * MB, True),
}


class Tenant:
    """A client with a key of its own."""

    def __init__(self, url: str, secret: str) -> None:
        self.http = httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=600)

    def close(self) -> None:
        self.http.close()

    def upload(self, path: Path) -> str:
        with path.open("rb") as file:
            made = self.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file)})
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def batch(self, file_id: str) -> str:
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = self.http.post("/v1/batches", json=body)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def wait(self, batch_id: str, timeout: float = 1800) -> None:
        def ended() -> bool:
            batch = self.http.get(f"/v1/batches/{batch_id}").json()
            assert batch["status"] not in ("failed", "expired"), batch["errors"]
            return batch["status"] == "completed"

        wait_until(ended, timeout)

    def ten_rows(self, path: Path) -> float:
        began = time.monotonic()
        self.wait(self.batch(self.upload(path)))
        return time.monotonic() - began


def pairs(times: int, path: Path, beside: Tenant, alone: Tenant) -> list[tuple[float, float]]:
    """Seconds of ten rows beside another tenant's, and of the same at a server without any: the machine has both."""
    return [(beside.ten_rows(path), alone.ten_rows(path)) for _ in range(times)]


def peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.soak
@pytest.mark.parametrize("kind", HEAVY)
def test_one_tenants_heavy_rows_take_bounded_memory_and_hold_up_no_other(
    kind: str, run_orch: Orch, tmp_path: Path
) -> None:
    batches, make, answer_bytes, chunked = HEAVY[kind]
    heavy, light, folder = tmp_path / "heavy.jsonl", tmp_path / "light.jsonl", str(tmp_path / "served")
    with heavy.open("wb") as file:
        file.writelines(make())
    light.write_bytes(b"".join(line(number, text(100)) for number in range(10)))
    secrets = [run_orch("keys", "add", name, "--dir", folder).stdout.strip() for name in ("one", "two")]
    with (
        heavy_upstream(answer_bytes=answer_bytes, seconds=0.5, chunked=chunked) as upstream,
        heavy_upstream(seconds=0.5) as idle,
    ):
        options = ("--dir", folder, "--require-keys", "--upstream", upstream)
        _, quiet = serve(run_orch, "--dir", str(tmp_path / "quiet"), "--upstream", idle)
        process, url = serve(run_orch, *options)
        with closing(Tenant(url, secrets[0])) as one, closing(Tenant(url, secrets[1])) as two:
            file_id = one.upload(heavy)
            ids = [one.batch(file_id) for _ in range(batches)]
            with closing(Tenant(quiet, "none")) as alone:
                seconds = pairs(5, light, two, alone)
            first_peak = peak(process.pid)
            process.kill()
            process.wait()
        process, url = serve(run_orch, *options)
        with closing(Tenant(url, secrets[0])) as one, closing(Tenant(url, secrets[1])) as two:
            with closing(Tenant(quiet, "none")) as alone:
                seconds += pairs(5, light, two, alone)
            for batch_id in ids:
                one.wait(batch_id)
        peaks = first_peak, peak(process.pid)
    beside, apart = (median(times) for times in zip(*seconds, strict=True))
    figures = {"pairs": seconds, "medians": [beside, apart], "peaks": [size // MB for size in peaks]}
    sys.stderr.write(f"{kind}: {json.dumps(figures)}\n")
    assert max(peaks) <= MOST_BYTES
    assert beside <= SLOWER * apart
