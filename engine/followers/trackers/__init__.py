"""Delivery of a run's records to trackers such as W&B and MLflow, each record exactly once.

`story` turns records into deliveries, `courier` passes on those that are not delivered yet,
`ledger` keeps what is delivered, and a sink writes to one tracker.
"""
