"""Sets of simulated dumps of devices that are not ideal, with the truth: networks, numerics, faults, writer.

Nothing here uses the formulas of `precision_tool.lib.ops`: the sets test them.
"""
