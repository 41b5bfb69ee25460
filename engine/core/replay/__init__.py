"""Search for the samples behind an anomaly: the steps to train again, and the tests of groups."""
