"""Builds: a job file or batch file becomes a job, with requests in a file and rows in the store."""
