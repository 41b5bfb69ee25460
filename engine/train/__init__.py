"""The training process: trainers, step loop, control, monitoring, checkpoints, CUDA graphs."""
