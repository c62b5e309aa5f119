"""The vendor's toolkit as an engine: where it is, and its atc and msaccucmp as subprocesses."""
