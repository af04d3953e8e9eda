"""Traces and metrics over OTLP, made from the store's records after work has ended.

`spans` and `usage` turn records into spans and histograms, and `messages` turns prompts and answers into attributes.
These three modules are pure. `reader` reads the records, `otlp` encodes and sends the result, and `sent` remembers
what was sent. `exporter` is the thread. `switch` starts it if the daemon's settings ask for telemetry.
"""
