"""Opening files that strangers may have put there: no devices, nothing of the system's own, nothing outside a folder.

What is judged is the file that was opened, not its path: between a look at a path and its opening, any part of it may
have become a link to somewhere else.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache

from orchestrator.documents.types import DocumentProblem, ExtractionError

SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
# File systems that hold no files of anybody's but show the state of the kernel and of processes, environments too.
_SYSTEM_KINDS = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 debugfs tracefs securityfs configfs pstore efivarfs bpf mqueue "
    "binfmt_misc fusectl selinuxfs rpc_pipefs nsfs".split()
)
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY


@cache
def system_devices() -> frozenset[int]:
    """The devices (`st_dev`) of the system's own file systems, wherever they are mounted."""
    found = set()
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                major, _, minor = fields.split()[2].partition(":")
                if rest.split()[0] in _SYSTEM_KINDS:
                    found.add(os.makedev(int(major), int(minor)))
    except (OSError, ValueError, IndexError):
        pass  # no Linux: the folders' names are what is known
    ordinary = _device("/")
    return frozenset(found | {device for folder in SYSTEM_FOLDERS if (device := _device(folder)) != ordinary}) - {-1}


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


def is_system(real_path: str, device: int | None = None) -> bool:
    """Whether a path without links, or the device of a file, is of the system and not of its users."""
    return (
        device in system_devices()
        or real_path.startswith(tuple(f"{folder}/" for folder in SYSTEM_FOLDERS))
        or (real_path in SYSTEM_FOLDERS)
    )


def is_inside(real_path: str, real_root: str) -> bool:
    """Whether a path without links is in a folder without links, or is it."""
    return real_path == real_root or real_path.startswith(real_root.rstrip("/") + "/")


def open_file(path: str, within: str | None = None) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and what the system says of it.

    `within` is the folder, without links, that the file must be in; None where it may be anywhere but in the system's
    own folders. Raises OSError; ExtractionError for what is not such a file.
    """
    # Without O_NONBLOCK a pipe put in the place of a listed file would hang here for ever.
    fd = os.open(path, _READING | os.O_NONBLOCK)
    try:
        status = _regular(fd)
        _check_place(fd, path, status, within)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def open_folder(path: str, within: str | None) -> int:
    """A descriptor of a folder. Raises as `open_file`."""
    fd = os.open(path, _READING | os.O_DIRECTORY)
    try:
        _check_place(fd, path, os.fstat(fd), within)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Opener:
    """Opens files of one folder after another as `open_file` does, at half the price: it keeps the folder open.

    What is opened in a folder that is held, and is not a link, is where the folder is.
    """

    def __init__(self) -> None:
        self._held: tuple[str, str | None] | None = None
        self._folder = -1

    def open(self, path: str, within: str | None) -> tuple[int, os.stat_result]:
        """As `open_file`."""
        folder, _, name = path.rpartition("/")
        if not folder:
            return open_file(path, within)
        if self._held != (folder, within):
            self.close()
            self._folder = open_folder(folder, within)
            self._held = folder, within
        try:
            fd = os.open(name, _READING | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._folder)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return open_file(path, within)  # a link
        try:
            return fd, _regular(fd)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Let go of the folder."""
        if self._held is not None:
            os.close(self._folder)
            self._held = None


def _regular(fd: int) -> os.stat_result:
    """What the system says of an open file that is one, and is not the system's. Raises ExtractionError."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise not_a_file()
    _check_device(status)
    return status


def _check_device(status: os.stat_result) -> None:
    if status.st_dev in system_devices():
        raise ExtractionError(DocumentProblem.UNREADABLE, "It belongs to the system (/proc, /sys, /dev); exclude it.")


def _check_place(fd: int, path: str, status: os.stat_result, within: str | None) -> None:
    _check_device(status)
    if within is not None and not is_inside(_place(fd, path, status), within):
        raise ExtractionError(
            DocumentProblem.UNREADABLE,
            "A link leads out of the source's folder to it; exclude it, or set `follow_links: true`.",
        )


def _place(fd: int, path: str, status: os.stat_result) -> str:
    """Where an open file is, without links; empty where that cannot be told for certain."""
    try:
        # What the kernel itself knows of it.
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
    real = os.path.realpath(path)
    try:
        there = os.stat(real)
    except OSError:
        return ""
    # The same file is at a path without links, whatever the path that it was opened by may have become.
    return real if (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino) else ""


def not_a_file() -> ExtractionError:
    """For pipes, sockets and devices, which may never end."""
    return ExtractionError(
        DocumentProblem.UNREADABLE, "This is a pipe, socket, device or folder, not a file; exclude it."
    )
