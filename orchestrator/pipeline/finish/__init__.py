"""Stage that merges outcomes into one file in input order, and delivers it as the job file says."""
