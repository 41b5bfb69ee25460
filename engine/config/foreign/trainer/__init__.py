"""Keys about training that the three tools share: optimizer, length, intervals, and devices."""
