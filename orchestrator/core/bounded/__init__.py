"""Functions over data from strangers, in worker processes with limits on memory and time.

    from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
    from orchestrator.core.bounded.process import WorkerLimits, Tripped

    with WorkerPool(workers=4, limits=WorkerLimits()) as pool:
        for results in pool.map(WorkerCall("package.module:function", (argument,)) for argument in arguments):
            try:
                for value in results: ...
            except Tripped as tripped: ...     # of this call alone; the others go on

A function is a generator: it may give no value, one, or millions. What it gives comes back in order, and only plain
values do (`messages`). A call that exceeds a limit, crashes or hangs takes its worker with it and nothing else.
`pool` is the parent's side, `process` one worker as the parent sees it, `worker` the program that it runs. Nothing is
imported here: a worker starts in a twentieth of a second because it imports no more than it needs.
"""
