"""What a run is: the names and folders of dumps, and the tensors in them by op."""
