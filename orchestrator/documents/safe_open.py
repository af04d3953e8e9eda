"""Opens untrusted files safely: no devices, no system files, nothing outside a folder.

Checks apply to the opened file, not to its path: between a check and the opening, any part of a path may become a
link.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache

from orchestrator.documents.types import ExtractionError, unreadable

SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
# File systems without users' files. They expose the state of the kernel and of processes, including environments.
_SYSTEM_KINDS = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 debugfs tracefs securityfs configfs pstore efivarfs bpf mqueue "
    "binfmt_misc fusectl selinuxfs rpc_pipefs nsfs".split()
)
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY


@cache
def system_devices() -> frozenset[int]:
    """Return the devices (`st_dev`) of the system's own file systems, including bind mounts elsewhere."""
    found = set()
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                major, _, minor = fields.split()[2].partition(":")
                if rest.split()[0] in _SYSTEM_KINDS:
                    found.add(os.makedev(int(major), int(minor)))
    except (OSError, ValueError, IndexError):
        pass  # not Linux: only SYSTEM_FOLDERS are known
    ordinary = _device("/")
    return frozenset(found | {device for folder in SYSTEM_FOLDERS if (device := _device(folder)) != ordinary}) - {-1}


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


def is_system(real_path: str, device: int | None = None) -> bool:
    """Return True if a link-free path, or a file's device, belongs to the system rather than to users."""
    return (
        device in system_devices()
        or real_path.startswith(tuple(f"{folder}/" for folder in SYSTEM_FOLDERS))
        or (real_path in SYSTEM_FOLDERS)
    )


def is_inside(real_path: str, real_root: str) -> bool:
    """Return True if a link-free path is a link-free folder or inside it."""
    return real_path == real_root or real_path.startswith(real_root.rstrip("/") + "/")


def open_file(path: str, within: str | None = None) -> tuple[int, os.stat_result]:
    """Return a descriptor of a regular file, and its status.

    `within` is the link-free folder that must contain the file; None allows any folder except the system's.

    Raises OSError. Raises ExtractionError if it is not a regular file, or is outside the allowed folders.
    """
    # Without O_NONBLOCK, opening a pipe that replaced a listed file would block for ever.
    fd = os.open(path, _READING | os.O_NONBLOCK)
    try:
        status = _regular(fd)
        _check_place(fd, path, status, within)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def open_folder(path: str, within: str | None) -> int:
    """Return a descriptor of a folder. Raises as `open_file` does."""
    fd = os.open(path, _READING | os.O_DIRECTORY)
    try:
        _check_place(fd, path, os.fstat(fd), within)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Opener:
    """Opens the files of one folder after another at half the cost of `open_file`, by keeping the folder open.

    A file opened relative to an open folder, without following a link, is inside that folder.
    """

    def __init__(self) -> None:
        self._held: tuple[str, str | None] | None = None
        self._folder = -1

    def open(self, path: str, within: str | None) -> tuple[int, os.stat_result]:
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
            return open_file(path, within)  # the file is a link
        try:
            return fd, _regular(fd)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        if self._held is not None:
            os.close(self._folder)
            self._held = None


def _regular(fd: int) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise not_a_file()
    _check_device(status)
    return status


def _check_device(status: os.stat_result) -> None:
    if status.st_dev in system_devices():
        raise unreadable("It belongs to the system (/proc, /sys, /dev); exclude it.")


def _check_place(fd: int, path: str, status: os.stat_result, within: str | None) -> None:
    _check_device(status)
    if within is not None and not is_inside(_place(fd, path, status), within):
        raise unreadable("A link leads out of the source's folder to it; exclude it, or set `follow_links: true`.")


def _place(fd: int, path: str, status: os.stat_result) -> str:
    """Return the link-free path of an open file; empty if uncertain."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
    real = os.path.realpath(path)
    try:
        there = os.stat(real)
    except OSError:
        return ""
    # The path may have changed since the file was opened. It counts only if it still leads to this file.
    return real if (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino) else ""


def not_a_file() -> ExtractionError:
    """Return the error for pipes, sockets and devices, which may never end."""
    return unreadable("This is a pipe, socket, device or folder, not a file; exclude it.")
