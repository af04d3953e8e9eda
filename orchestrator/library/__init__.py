"""The Python interface: jobs from frames, documents and request dicts, in the same homes as the command line."""
