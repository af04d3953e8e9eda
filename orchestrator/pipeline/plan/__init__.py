"""Plans of jobs: prices, forecasts, orders for open rows, and times for replanning."""
