"""Status, cost and night reports: data, and their rendering as text, tables and pages."""
