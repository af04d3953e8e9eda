"""Sends rows to upstreams, and makes their results durable.

request_header, plan  check an input file, and locate its rows; row_order, prefix_tree: their order
inputs                the input's rows, read again in blocks
active_batch          a batch in progress: waiting and finished rows; tally: counts of its result files
fair_queue            whose batch is served next; upstream_queue: which row goes next to which upstream
body_changes          changes to a row's body before it is sent; packing: several rows in one request
dispatcher            rows to upstreams and back; in_flight: a request on its way
client                one HTTP request, on http1
verdicts, retry       what a failed attempt means, and what happens to its row; outcomes: its last result
upstreams             one endpoint: rows and health; gauges, pages: its own reports; stats: its work so far
concurrency_limiter   how many rows an upstream gets at once; rate_limiter: how many in a minute
send_log              the log of what left for an upstream that bills every request
outage                why all rows fail at an upstream
results               append-only result files, durable in groups; result_lines: their lines
torn_result_lines     removal of incomplete lines that a kill left
"""
