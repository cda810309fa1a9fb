"""UTF-16 with its byte order mark."""

DATA = "isoexec: 1\n".encode("utf-16")
