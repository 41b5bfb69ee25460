"""Ranks: device placement, agreement between ranks, lost ranks, restarts."""
