"""Memory of this machine's GPUs, from NVIDIA's management library if it is installed (the extra `gpu`)."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

NOT_INSTALLED = "nvidia-ml-py is not installed (pip install 'orch-batch[gpu]')"
NO_DRIVER = "this machine has no NVIDIA driver"


class GpuMemory:
    """The memory in use on some GPUs of this machine, of all processes together.

    `problem` says why it is unknown; `names` are the GPUs' names.
    """

    def __init__(self, library: Any = None, handles: Sequence[Any] = (), problem: str | None = None) -> None:
        self._library = library
        self._handles = handles
        self.problem = problem
        self.names = tuple(sorted({_text(library.nvmlDeviceGetName(handle)) for handle in handles}))

    def used(self) -> int | None:
        """Return the bytes in use, or None if unknown."""
        if not self._handles:
            return None
        try:
            return sum(int(self._library.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._handles)
        except self._library.NVMLError:
            return None  # a GPU that shares its CPU's memory reports nothing, and a GPU may fall off the bus


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


@contextmanager
def gpu_memory(wanted: Sequence[int] | None = None) -> Iterator[GpuMemory]:
    """Yield the memory of these GPUs, or of all; its `used` is None if nothing can be read."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        yield GpuMemory(problem=NOT_INSTALLED)
        return
    try:
        library.nvmlInit()
    except library.NVMLError:
        yield GpuMemory(problem=NO_DRIVER)
        return
    try:
        numbers = range(library.nvmlDeviceGetCount()) if wanted is None else wanted
        yield GpuMemory(library, [library.nvmlDeviceGetHandleByIndex(number) for number in numbers])
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()
