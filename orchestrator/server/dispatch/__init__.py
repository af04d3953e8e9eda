"""How rows reach upstreams and come back as durable results.

request_header, plan  check an input file, and say where its rows lie
inputs         the input's rows, read in blocks; outcomes: what the last attempt at a row becomes
prefixes, order, upstream_queue  which row goes next to which upstream, by what rows share
fair_queue     whose batch is served next
active_batch   a batch that is being worked on: rows that wait, rows that are done; tally: what its files hold
in_flight      a request on its way; dispatcher: rows to upstreams and back
bodies         what is done to a row's body before it is sent; packing: several rows in one request
client         one HTTP request, on http1; retry: what an attempt's end means for its row
upstreams      one endpoint: rows and health; gauges, pages: what it says of itself; stats: what it did
concurrency_limiter  how many rows it is given at once; rate_limiter: how many in a minute
send_log       what left for an upstream that bills each request
unreachable    what is said where none of them answers
results        append-only result files, durable in groups; result_lines: their lines
torn_result_lines  what a kill left of a file, cut off at the next start
"""
