"""The values that flow through the tool: frozen, picklable dataclasses that do no input or output."""
