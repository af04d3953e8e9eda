"""Documents in, finished rows out: batch LLM jobs by the hour you named, for the least money."""

__version__ = "0.1.0"
