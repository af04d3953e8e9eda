"""The Batch API (`/v1/files`, `/v1/batches`) in front of any synchronous OpenAI-compatible endpoint.

    app, api/    routes: HTTP in, wire objects out
    service      the parts of one server put together
    host, listen the server in a thread on a Unix socket; the server of `orch serve`
    open_files   how many connections and rows fit into the files that may be open; rooms: what fits into memory
    database     a small SQLite database of the server's own
    records      what files and batches there are, and whose
    keys         who may use the server, and how much of it; endpoints: what may be reached at upstreams
    uploads      files that come in parts; multipart: bodies streamed to disk
    batches      the life of a batch, from validating to its end; batch_problems: what keeps one from going on
    leftovers    a finished batch's rows that did not succeed, as a new batch
    merged       results in input order
    webhooks     who is notified of a batch's end
    upkeep       removes what is over its time
    health, metrics, logs  what operators look at
    replicated_folder  what of it all is on its replica, from which another server takes over
    dispatch/    how rows reach upstreams and come back as durable results

The server knows nothing of jobs: it meets the orchestrator on a socket.
"""
