"""Matching NPU tensors with benchmark tensors, the metrics of a pair, the engine, and the result CSV."""
