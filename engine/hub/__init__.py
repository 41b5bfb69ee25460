"""The hub process, which publishes a run over ZeroMQ and accepts commands for it; no torch."""
