"""What the journal of a run has of variants of a race that trained on other devices."""
