"""An SFTP server over a folder, by asyncssh; run by path in the environment of `make storages`.

    python sftpd.py FOLDER HOST_KEY CLIENT_KEYS

It writes `ready PORT` to stdout, and `read PATH` for each file that is opened. The end of stdin is its end.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncssh  # type: ignore[import-not-found]


class Files(asyncssh.SFTPServer):  # type: ignore[misc]
    def __init__(self, channel: Any) -> None:
        super().__init__(channel, chroot=sys.argv[1])

    def open(self, path: bytes, flags: int, attributes: Any) -> Any:
        if flags & asyncssh.FXF_READ:
            sys.stdout.write(f"read {path.decode()}\n")
            sys.stdout.flush()
        return super().open(path, flags, attributes)


async def main() -> None:
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[sys.argv[2]], authorized_client_keys=sys.argv[3], sftp_factory=Files
    )
    sys.stdout.write(f"ready {server.get_port()}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
