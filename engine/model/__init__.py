"""Base models: loading, quantization, adapters, hidden states, and forms that save memory."""
