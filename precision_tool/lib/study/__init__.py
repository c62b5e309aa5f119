"""A study: every step, rank and model of one or many data folders, judged as one; who is to blame, where and when."""
