"""Nested block sequences."""

DATA = b"- " * 33 + b"x"
