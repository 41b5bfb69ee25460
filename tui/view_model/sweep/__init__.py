"""A sweep over settings: its search space, its trials, and what they found; pure."""
