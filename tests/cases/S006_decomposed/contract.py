"""The same word in two forms."""

DATA = "isoexec: 1\nnote: cafe\u0301, caf\u00e9\n".encode()
