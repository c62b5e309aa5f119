"""One pass over the bytes of pairs and tensors: blocks, metrics, workers."""
