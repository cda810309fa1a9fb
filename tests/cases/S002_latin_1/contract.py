"""Latin-1."""

DATA = b"isoexec: 1\nnote: caf\xe9\n"
