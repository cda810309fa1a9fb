"""Brackets that are never closed."""

DATA = b"[" * 100_000
