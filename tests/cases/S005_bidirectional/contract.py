"""A comment that reads from right to left, and a zero-width space."""

DATA = "isoexec: 1 # \u202e\u2066approved\u2069\ncontract: ti\u200bny\n".encode()
