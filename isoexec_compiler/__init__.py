"""isoexec: a contract compiler for on-policy RL. See README.md; `pipeline.py` shows the passes on one screen."""

__version__ = "0.1.0"
