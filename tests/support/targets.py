"""Where laws run in this process: the cpu kernels always; the Triton kernels on a Hopper GPU, or interpreted.

Triton decides when a kernel is defined whether it is interpreted, so a process that starts with TRITON_INTERPRET=1 is
the interpreter's and no other.
"""

from __future__ import annotations

import os

import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
HOPPER = not INTERPRETING and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
PLACES = ("interpreter",) if INTERPRETING else ("cpu", "sm90") if HOPPER else ("cpu",)
TARGET = {"cpu": "cpu", "sm90": "sm90", "interpreter": "sm90"}
DEVICE = {"cpu": "cpu", "sm90": "cuda", "interpreter": "cpu"}
