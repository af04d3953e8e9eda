"""A home's replica: what `orch up --replica` keeps elsewhere, so that another machine goes on with it.

    home_contents  what of a home is replicated: its databases and files at one moment
    home_replica   sends it while the engine works; whether this engine may act
    paid_calls     a provider is asked for what it bills only once the replica knows that it will be
    status_file    what other commands of this machine know of it, and what they wait for

`core/replica` says how it is decided who is active, and docs/decisions/0018-standby.md why it is so.
"""
