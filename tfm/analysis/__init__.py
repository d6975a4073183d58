"""Analysis of configs without training: memory, FLOPs, communication and step-time bounds."""
