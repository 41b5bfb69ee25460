"""The search for the samples behind an anomaly: its way back, and which samples it leaves out."""
