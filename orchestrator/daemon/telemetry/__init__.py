"""Traces and metrics over OTLP, made from the store's records after the fact.

`spans` and `usage` turn facts into spans and histograms, `messages` prompts and answers into attributes; these are
pure. `reader` gets the facts, `otlp` encodes and sends, and `sent` remembers what was sent. `exporter` is the thread;
`switch` starts it for a daemon whose settings request it.
"""
