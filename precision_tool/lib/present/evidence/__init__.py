"""The words for what checks find: `checks/casts.py` has the evidence on casts, `casts.py` here the sentences on it."""
