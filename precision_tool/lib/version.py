"""The version of the package, for what lies below its public names. This module runs on Python 3.7."""

__version__ = "0.2.0"
