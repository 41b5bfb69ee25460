"""The trackers: each module writes to one of them through its own library."""
