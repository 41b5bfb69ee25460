"""Pure decisions: lifecycle, control at a step boundary, anomaly detection, meters, retention."""
