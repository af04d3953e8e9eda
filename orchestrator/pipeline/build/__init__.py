"""Stage that turns a job file or batch file into a job: requests in a file, rows in the store."""
