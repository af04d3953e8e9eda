"""Pipeline of a job: `job_steps.Pipeline.advance(job)` is one idempotent step through its stages, a folder each:

    build     documents, or a ready batch file → request lines and rows
    plan      which backend gets the rows, and when to plan again
    submit    rows → shards (`rows_to_shards`) → batches (`create_once`), as far as
              `backend_admission` lets them go; one row goes before a batch of unproven requests (`preflight`)
    collect   batches polled until they are over (`poll`), result files until they are whole (`fetch`), outcomes of
              rows (`settling`, `unanswered`, `reask`), the request about a long document's parts (`reduce`),
              clean-up at backends (`remote_cleanup`, `late_answers`)
    finish    outcomes → one file in input order, delivered as the job file says
    gc        what is removed from the home, and when

`shard_steps` takes one shard through submit and collect; calls to a provider go through `provider_calls`. Whatever
happened before, another call continues from the state of the store and the backends.
"""
