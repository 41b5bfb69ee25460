"""The loss of every task over one optimizer step, and its evaluation."""
