"""A made-up training step in the real file formats, with a fault whose place is known."""
