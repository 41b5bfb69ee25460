"""`report`: print the report of an incident or of an anomaly."""
