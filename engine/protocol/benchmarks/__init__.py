"""Results of benchmarks, which other processes than the training measure on checkpoints."""
