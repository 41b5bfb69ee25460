"""The process of `fttui bench`: measures tasks of lm-evaluation-harness on checkpoints of a run."""
