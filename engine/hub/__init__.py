"""The hub process: publishes a run over ZeroMQ and takes its commands; no torch."""
