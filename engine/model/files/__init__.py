"""Files of models: checks of weight files, GGUF and packaged models, and readable errors."""
