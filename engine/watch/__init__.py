"""Control of other people's training scripts: their Hugging Face trainers and plain loops."""
