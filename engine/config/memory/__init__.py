"""Memory planning without torch: architectures, estimates, hardware, and what makes a run fit."""
