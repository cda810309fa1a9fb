"""One byte more than a contract may have."""

DATA = b"#" * ((1 << 20) + 1)
