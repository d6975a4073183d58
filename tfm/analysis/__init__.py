"""Analysis of configs: their parameters, memory, FLOPs, communication and step-time bounds, without training."""
