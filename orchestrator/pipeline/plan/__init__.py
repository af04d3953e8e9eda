"""Input of the planner, and the times of planning."""
