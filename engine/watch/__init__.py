"""Training scripts of others under control: their Hugging Face trainers and their plain loops."""
