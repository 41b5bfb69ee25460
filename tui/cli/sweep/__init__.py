"""`sweep`: many runs with settings from a search space, chosen by a sampler of Optuna."""
