"""The rooms of precision_tool. `cli.py` one level up is where to start reading."""
