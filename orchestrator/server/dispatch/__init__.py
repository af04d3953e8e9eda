"""How rows reach upstreams and come back as durable results.

request_header, plan  check an input file, and locate its rows inputs         the input's rows, read in blocks;
outcomes: the result of the last attempt at a row prefixes, order, upstream_queue  which row goes next to which
upstream, by shared prefixes fair_queue     whose batch is served next active_batch   a batch in progress: waiting
rows, finished rows; tally: counts of its result files in_flight      a request on its way; dispatcher: rows to
upstreams and back bodies         changes to a row's body before it is sent; packing: several rows in one request
client         one HTTP request, on http1; retry: what an attempt's end means for its row upstreams      one endpoint:
rows and health; gauges, pages: its own reports; stats: its work so far concurrency_limiter  how many rows it gets at
once; rate_limiter: how many in a minute send_log       the record of what left for an upstream that bills each
request unreachable    the reason why an upstream cannot be reached results        append-only result files, durable
in groups; result_lines: their lines torn_result_lines  incomplete lines that a kill left, removed at the next start
"""
