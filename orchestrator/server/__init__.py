"""The Batch API (`/v1/files`, `/v1/batches`) in front of any synchronous OpenAI-compatible endpoint.

    app        routes: HTTP in, wire objects out
    uploads    multipart bodies streamed to disk
    records    what files and batches there are (a small SQLite database of the server's own)
    plan       checks an input file and says where its rows lie
    results    append-only result files: group commit, and recovery after a kill
    resultlines  the lines of those files
    run        a batch that is being worked on: rows that wait, rows that are done
    batches    the life of a batch, from validating to its end
    fanout     rows to upstreams and back
    flow       how many requests an upstream is given at once
    retry      what an attempt's end means for its row
    upstreams  one synchronous endpoint: requests, gauges, health
    host       the server in a thread, on a Unix socket or TCP

The server knows nothing of jobs: it meets the orchestrator on a socket.
"""
