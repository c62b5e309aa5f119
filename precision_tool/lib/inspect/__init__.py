"""Single tensors and ops: shown, exported, converted."""
