"""What was seen: records, their store, statistics and comparisons."""
