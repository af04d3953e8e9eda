"""All code that uses Ray. Homes without a cluster never import it; Ray itself stays in the cluster's own Python.

driver         engines as actors of a cluster
process        the parent's side of the process that uses Ray; `engines_child` is that process's program
local_node     this machine as a node of a cluster
reading_pool   reads documents on the nodes; `reading_child` submits the calls, `reading_node` answers on a node
"""
