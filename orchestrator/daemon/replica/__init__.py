"""A home's replica: the copy that `orch up --replica` keeps elsewhere, so that another machine can continue.

home_contents  the replicated parts of a home: its databases and files at one moment
home_replica   sends them while the daemon works; decides whether this daemon may act
paid_calls     makes paid calls to a provider only once the replica has their records
status_file    the replica's state for other commands of this machine, which may wait until it has their records

`core/replica` decides who is active; docs/decisions/0018-standby.md gives the reasons.
"""
