"""Formulas of operators in float64 with bounds of their rounding error: one module per family of ops."""
