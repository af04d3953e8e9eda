"""Pages of a home, served by `orch view` and `orch up --web`. They read the store and reports. Only the command line
imports this package.

  access      who may look: links, cookies, keys
  guard       required proof of each request, and headers of each answer
  reader      what the command line provides of a home
  figures     numbers, money and times as markup that names their `--json` source
  views       one function per page
  live        open pages, kept current over server-sent events
  loop_health health of the daemon's loop, shared across processes
  metrics     /metrics
  app         routes, templates
  serving     a thread that listens
"""
