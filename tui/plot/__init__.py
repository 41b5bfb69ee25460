"""From series of numbers to cells of a terminal plot."""
