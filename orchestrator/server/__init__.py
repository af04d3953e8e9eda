"""The Batch API (`/v1/files`, `/v1/batches`) in front of any synchronous OpenAI-compatible endpoint.

    app, api/    routes: HTTP in, wire objects out
    service      assembles the parts of one server
    in_process   the server in a thread, on a Unix socket; listen: the server of `orch serve`
    open_files   limits on connections and rows, from the limit on open files; memory_limits: what fits into memory
    database     a small SQLite database of the server's own
    records      files, uploads and batches, and their owners
    keys         API keys and their limits; endpoints: the paths allowed at upstreams
    uploads      files uploaded in parts; multipart: bodies streamed to disk
    batches      the life of a batch, from validating to its end; batch_problems: why batches wait
    unsuccessful_rows  a new batch of a finished batch's unsuccessful rows
    ordered_results  results in input order
    webhooks     notifications of a batch's end
    expired_files  deletion of expired files and uploads
    health, metrics, logs  state of the server, for operators
    replicated_folder  the files copied to the replica; another server can take over from the replica
    dispatch/    sends rows to upstreams and makes their results durable

The server does not know about jobs: the orchestrator talks to it over a socket.
"""
