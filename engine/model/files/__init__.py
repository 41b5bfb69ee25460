"""Files of models: whole weights, GGUF and packaged models, and readable errors."""
