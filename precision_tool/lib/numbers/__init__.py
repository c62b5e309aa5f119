"""Numbers as files hold them: data types with their limits, decoding, layouts and the order of a tensor."""
