"""Status, cost and night reports: data → words, tables, pages."""
