"""A copy of a folder's state where another machine finds it, and which process is the active one.

    storage        where the replica lies: create an object unless it is there, put, get, list, remove
    who_is_active  numbered heads: who is active, in which generation, and which manifest holds
    contents       what of a folder is replicated: see `server/replicated_folder` and `engine/replica`
    manifest       which objects make up which file
    takeover       waiting until this process is the active one, and taking over
    restore        a folder, made as the replica has it
    replicator     what changes here, sent there

docs/decisions/0018-standby.md says why it is so.
"""
