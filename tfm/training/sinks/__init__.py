"""Where the metrics of a run go besides metrics.jsonl: one file for each program that shows them."""
