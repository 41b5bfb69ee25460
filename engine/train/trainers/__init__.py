"""The Hugging Face trainers of every task, their arguments, and the parts around them."""
