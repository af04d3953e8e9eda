"""Status, cost and night reports: from data to text, tables and pages."""
