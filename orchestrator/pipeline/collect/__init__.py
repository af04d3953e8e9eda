"""Polling of batches, and collection of their result files into outcomes. Unanswered rows are sent again."""
