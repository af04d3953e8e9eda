"""A copy of the server's state where another server finds it, and who of them is the active one.

    storage        where the replica lies: create an object unless it is there, put, get, list, remove
    active_server  numbered heads: who is active, in which generation, and which manifest holds
    manifest       which objects make up which file
    takeover       waiting until this server is the active one, and taking over
    restore        a server's folder, made as the replica has it
    replicator     what changes here, sent there

docs/decisions/0018-standby.md says why it is so.
"""
