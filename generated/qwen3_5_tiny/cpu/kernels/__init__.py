# SPDX-License-Identifier: Apache-2.0
"""Kernels of target cpu, one region a module."""
