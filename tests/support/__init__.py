"""Real counterparts for the tests: an upstream server, a Postgres server, the command line as a process."""
