"""How rows reach upstreams and come back as durable results.

heads, plan  checks an input file, and says where its rows lie
prefixes, order, upstream_queue  which row goes next to which upstream, by what rows share
fair         whose batch is served next
run          a batch that is being worked on: rows that wait, rows that are done; tally: what its files hold
inputs       the input's rows, read one by one; outcomes: what the last attempt at a row becomes
work         a request on its way; dispatcher: rows to upstreams and back
bodies       what is done to a row's body before it is sent; packing: several rows in one request
client       one HTTP request
retry        what an attempt's end means for its row
upstreams    one endpoint: rows, gauges, health; pages: what it says of itself; stats: what it did
flow         how many rows it is given at once
pace         how many it is given in a minute; sent: what left for one that bills each request
results      append-only result files: group commit, and recovery after a kill; resultlines: their lines
"""
