"""Run batch LLM jobs over documents: finished by the hour you name, for the least money."""

__version__ = "0.1.0"
