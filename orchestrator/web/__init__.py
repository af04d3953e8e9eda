"""Pages of a home, served by `orch view` and `orch up --web`. They read the store and reports. Only the command line
imports this package.

  access      who may look: links, cookies, keys
  guard       checks of each request, and headers of each answer
  reader      the interface to a home, which the command line provides
  figures     numbers, money and times as markup that names their `--json` source
  views       one function per page
  live        open pages, kept current over server-sent events
  loop_health health of the daemon's loop, shared across processes
  metrics     /metrics
  app         routes, templates
  serving     a thread that listens
"""
