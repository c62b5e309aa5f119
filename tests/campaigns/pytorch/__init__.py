"""Sets of msprobe's dumps of networks that train on CPU PyTorch, a fault in them or none, with the truth.

`sets` says what a set has, without PyTorch; `networks`, `faults` and `training` run where PyTorch and msprobe are.
Nothing here uses the formulas of `precision_tool.lib.ops`: the sets test them.
"""
