"""The training side: switches, dumps, passports, replay. Python 3.7 and the standard library."""
