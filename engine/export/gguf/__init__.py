"""GGUF: turns an exported model into one file for llama.cpp and Ollama."""
