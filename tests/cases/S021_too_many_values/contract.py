"""A list of 100,001 numbers."""

DATA = b"sizes: [" + b"1, " * 100_000 + b"1]\n"
