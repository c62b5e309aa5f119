"""What TensorFlow's debugger dumped, turned into `.npy` benchmark tensors. Runs on Python 3.7."""
