"""An upstream for bodies that are as long as may be: a process of its own, which drops what it reads.

    with heavy_upstream(answer_bytes=30_000_000, seconds=0.5) as url: ...

A POST of more than 1,000 bytes is answered with about so many, that many seconds after its last byte came; a shorter
one with few.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.canned import MODELS

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 256 * 1024


@contextmanager
def heavy_upstream(*, answer_bytes: int = 0, seconds: float = 0.0, chunked: bool = False) -> Iterator[str]:
    options = ["--answer-bytes", str(answer_bytes), "--seconds", str(seconds), *(["--chunked"] if chunked else [])]
    command = [sys.executable, "-m", __name__, *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


def _answer(size: int) -> bytes:
    return (
        b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",'
        b'"message":{"role":"assistant","content":"%b"}}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}' % (b"x" * size)
    )


async def _serve(given: argparse.Namespace) -> None:
    long, short = _answer(given.answer_bytes), _answer(0)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            left = int(head.get("content-length", "0"))
            answer = long if left > 1000 else short
            while left and (block := await reader.read(min(left, BLOCK))):
                left -= len(block)
            if left:
                break
            is_post = head["method"] == "POST"
            if is_post:
                await asyncio.sleep(given.seconds)
            known = head["path"].endswith("/models")
            await _write(writer, 200 if is_post or known else 404, answer if is_post else MODELS, given.chunked)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return {}
    method, path, _ = lines[0].split(" ")
    named = (line.partition(": ") for line in lines[1:] if line)
    return {"method": method, "path": path, **{name.lower(): value for name, _, value in named}}


async def _write(writer: asyncio.StreamWriter, status: int, body: bytes, chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    writer.write(b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n%b\r\n\r\n" % (status, length))
    for start in range(0, len(body), BLOCK):
        block = body[start : start + BLOCK]
        writer.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
        await writer.drain()  # a whole long answer would be copied at once, and hold up every other one
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer-bytes", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--chunked", action="store_true")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
