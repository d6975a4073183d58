"""Studies: a question, its arms, what is held equal, and what the numbers say."""
