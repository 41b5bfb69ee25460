"""Thresholds for slow ranks, shared by the anomaly detector and the app.

They are two numbers because they answer two questions, and they stand here because the app does not
import `engine.core`. The detector smooths each rank's time over about 25 steps and waits 50 steps,
so 5 % is clear of noise. The app marks a rank in a single step, in which ranks differ by more than
that because their batches do; there only 20 % is worth a mark.
"""

from __future__ import annotations

SLOW_RANK_RATIO = 1.05
"""Smoothed time of a rank over the median of the others, above which the detector counts it as
slow. All ranks wait for the slowest, so the whole run pays for it."""
SLOW_STEP_RATIO = 1.2
"""Time of a rank in one step over the median of all ranks, above which the app marks it."""
