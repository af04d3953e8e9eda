"""The page of a home: what `orch view` and `orch up --web` serve. It reads the store and reports; nothing imports it
but the command line.

    access      who may look: links, cookies, keys
    guard       what every request must show, and what every answer carries
    reader      what the command line hands in of a home
    figures     numbers, money and times as markup that says which `--json` they are from
    views       one function a page: what it shows
    live        open pages, kept current over server-sent events
    loop_health how the engine's loop is, told across processes
    metrics     /metrics
    app         routes, templates
    serving     a thread that listens
"""
