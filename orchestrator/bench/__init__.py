"""`orch bench`: measures an engine with a job's own rows, and predicts a night's duration and cost.

- `run`: a whole bench, namely the sample, the engine, the points and the conclusions
- `sample`: a share of the job's rows, chosen by length
- `target`: the engine, already running or started for the bench
- `session`: the points to measure and their order; each is on disk before the next starts
- `rig`: the upstreams and rows that the points share, and the memory of this machine's GPUs
- `point`: one point, from its first row to its figures
- `rows`: the rows of a point, when each is sent, and how it ended
- `sweep`: the next concurrency, until the knee is known
- `halving`: the next settings of an engine, until the best are known
- `verdict`: rows an hour, money, tokens a second
- `report`: the figures for people and programs, and `page` as HTML
"""
