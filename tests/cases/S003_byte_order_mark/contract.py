"""UTF-8 with a byte order mark."""

DATA = b"\xef\xbb\xbfisoexec: 1\n"
