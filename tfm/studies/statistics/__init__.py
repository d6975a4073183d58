"""Statistics of a few seeds: what differs, by how much, how sure, and how many seeds would decide."""
