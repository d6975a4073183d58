"""Speed and memory, measured beside PyTorch; the only folder that may import other frameworks."""
