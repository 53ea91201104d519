"""A report of runs: their figures over seeds with intervals, curves, what differs, and where each number is from."""
