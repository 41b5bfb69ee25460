"""The state that the app shows, as frozen values, and the pure functions that advance it."""
