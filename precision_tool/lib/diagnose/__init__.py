"""The pipeline of a leaf: compare, check, recompute, plan."""
