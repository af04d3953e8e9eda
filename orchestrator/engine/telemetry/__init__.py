"""Traces and metrics over OTLP, told from what the store has recorded and never while it happens.

`spans` and `usage` turn facts into spans and histograms, `messages` prompts and answers into attributes; these are
pure. `reader` gets the facts, `otlp` encodes and sends, `sent` remembers what was sent, `exporter` is the thread, and
`switch` starts it for an engine whose settings ask for it.
"""
