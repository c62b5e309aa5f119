"""The arithmetic that has a compiled form: one C file, optional, with numpy as the reference beside it."""
