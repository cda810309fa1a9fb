"""NUL in a name."""

DATA = b"isoexec: 1\ncontract: tiny\x00\x00dense\n"
