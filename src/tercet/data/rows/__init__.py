"""From ids to batches: rows and buckets, and the order in which they come."""
