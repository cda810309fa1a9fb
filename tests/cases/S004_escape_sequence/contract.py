"""What would color a terminal."""

DATA = b"isoexec: 1\nnote: \x1b[31mred\x1b[0m\n"
