"""Identity of the content a run is made of: base model, tokenizer, chat template and data."""
