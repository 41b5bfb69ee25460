"""The far end of a remote viewer: a run's journal and its hub over one byte stream."""
