"""What the planner is told of a job, and when a job is planned again."""
