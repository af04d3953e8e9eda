"""A real PgBouncer before a Postgres of the tests."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from tests.support.process import wait_until

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


def is_there() -> bool:
    """True if it is installed."""
    return Path(PROGRAM).exists()


@contextmanager
def pooled(url: str, mode: str) -> Iterator[str]:
    """The URL of a database behind a PgBouncer that pools by `session` or by `transaction`."""
    parts = make_url(url)
    with tempfile.TemporaryDirectory(prefix="orch-pool-") as name:
        folder = Path(name)
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{parts.database} = host={parts.query['host']} user=postgres\n[pgbouncer]\n"
            f"listen_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\nauth_type = any\n"
            f"pool_mode = {mode}\nmax_client_conn = 200\ndefault_pool_size = 20\n"
        )
        user = "nobody"
        entry = pwd.getpwnam(user)
        for path in (folder, settings):
            shutil.chown(path, entry.pw_uid, entry.pw_gid)
        with subprocess.Popen([PROGRAM, "-u", user, str(settings)], stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: (folder / ".s.PGSQL.6432").exists())
                yield f"postgresql+psycopg://postgres@/{parts.database}?host={folder}&port=6432"
            finally:
                process.terminate()
