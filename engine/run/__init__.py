"""The run directory: journal, control journal, checkpoint ledger, endpoint; no torch."""
