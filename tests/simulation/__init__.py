"""Engine, hub, viewers and ranks under simulated time, with a schedule that a seed decides."""
