"""The Hugging Face trainers of every task, and what is needed to build them."""
