"""A copy of a folder's state that another machine can read, and the choice of the active process.

storage        objects of a replica: create unless it exists, put, get, list, remove
who_is_active  numbered heads: the active process, its generation, and the current manifest
contents       the replicated part of a folder: see `server/replicated_folder` and `daemon/replica`
manifest       the objects that make up each file
takeover       waiting to become the active process, and taking over
restore        rebuilding a folder from the replica
replicator     sending changes to the replica

docs/decisions/0018-standby.md gives the reasons.
"""
