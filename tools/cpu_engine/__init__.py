"""Models for the CPU engine, made without a model hub: used by the tests, the benchmarks and `make demo`."""
