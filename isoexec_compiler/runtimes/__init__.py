"""Frameworks that a contract can bind: one a file."""
