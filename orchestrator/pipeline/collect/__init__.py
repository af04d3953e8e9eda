"""Stage that polls batches until they are over and turns result files into outcomes; unanswered rows continue."""
