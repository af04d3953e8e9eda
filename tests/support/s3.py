"""An S3 server in this process, and its bucket, as the AWS libraries find them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class _OneWriteAtATime:
    """An application whose writes wait for each other.

    moto looks for an object and creates it in two steps. Of two requests at once, both would create it.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "PUT":
            return self._app(environ, start_response)
        with self._lock:
            return self._app(environ, start_response)


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    assert server._server is not None
    server._server.app = _OneWriteAtATime(server._server.app)
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_environment(server: str) -> Mapping[str, str]:
    """What leads the libraries to a server."""
    return {
        "AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip


@contextmanager
def empty_bucket() -> Iterator[Any]:
    """A client of a server with an empty bucket named `bucket`; the environment leads to the server."""
    import boto3
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    api = boto3.Session().client("s3")
    api.create_bucket(Bucket="bucket")
    yield api
    for found in api.list_objects_v2(Bucket="bucket").get("Contents", ()):
        api.delete_object(Bucket="bucket", Key=found["Key"])
    api.delete_bucket(Bucket="bucket")
    api.close()


@contextmanager
def replica_place(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place for a replica: a folder, or a bucket of a server that runs as long as the block."""
    if kind == "folder":
        yield f"file://{folder / 'replica'}"
        return
    with s3_server() as server:
        for name, value in s3_environment(server).items():
            monkeypatch.setenv(name, value)
        with empty_bucket():
            yield "s3://bucket/replica"
