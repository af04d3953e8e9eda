"""Functions over untrusted data, run in worker processes with limits on memory and time.

from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
from orchestrator.core.bounded.process import WorkerLimits, Tripped

with WorkerPool(workers=4, limits=WorkerLimits()) as pool:
    for results in pool.map(WorkerCall("package.module:function", (argument,)) for argument in arguments):
        try:
            for value in results: ...
        except Tripped as tripped: ...     # only this call failed; the other calls continue

A function is a generator: it may yield no value, one, or millions. Its values arrive in order and must be plain
(see `messages`). A call that exceeds a limit, crashes or hangs ends only its own worker. `pool` is the parent's side,
`process` is one worker as the parent sees it, and `confined_child` is the program in the worker. This file imports
nothing, because workers load it too: a worker starts in a twentieth of a second.
"""
