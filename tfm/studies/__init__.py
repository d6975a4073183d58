"""Studies: a question, its arms, matching, statistics and the report."""
