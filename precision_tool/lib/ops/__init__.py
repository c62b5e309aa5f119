"""What operators compute, in float64, and how far rounding can take it: one module per family of ops."""
