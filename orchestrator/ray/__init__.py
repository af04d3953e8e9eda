"""All that knows Ray. A home without a cluster imports nothing of it; Ray itself stays in the cluster's own Python.

driver         engines as actors of a cluster
process        the process that speaks to Ray, as this process sees it; `engines_child` is its program
local_node     this machine as a node of a cluster
reading_pool   documents read on the nodes; `reading_child` submits the calls, `reading_node` answers on a node
"""
