"""Ranks: device placement, agreement between ranks, detection of lost ranks, restarts."""
