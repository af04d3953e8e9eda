"""Plans of jobs: prices, forecasts, orders for open rows, and the time of the next planning."""
