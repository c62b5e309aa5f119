"""Files that users edit: settings in `config.py`, fusion switches in the `.cfg` files."""
