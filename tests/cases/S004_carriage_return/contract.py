"""Lines that end in a carriage return alone."""

DATA = b"isoexec: 1\rcontract: tiny\r"
