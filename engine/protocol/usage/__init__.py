"""What a run has used: time, energy and money, and the limits of a budget."""
