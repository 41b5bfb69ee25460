"""Convert rows to typed records, with the formats, column names and messages in common use."""
