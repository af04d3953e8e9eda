"""Traces and metrics over OTLP, made from the store's records after work has ended.

`spans` and `usage` turn facts into spans and histograms, and `messages` turns prompts and answers into attributes;
these are pure. `reader` gets the facts, `otlp` encodes and sends them, and `sent` remembers what was sent. `exporter`
is the thread; `switch` starts it for a daemon whose settings ask for it.
"""
