"""A job file or batch file becomes a job: documents → requests in a file and rows in the store."""
