"""Which tensors belong together, and why others do not."""
