"""What training scripts get from `precision_tool.tf_config` and `precision_tool.tf_session`, and the replay of a step.

Importing these modules imports no TensorFlow, no numpy and no npu_bridge: `packages.py` loads them when they are used.
All of this runs on Python 3.7.
"""
