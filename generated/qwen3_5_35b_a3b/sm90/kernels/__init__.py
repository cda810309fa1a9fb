# SPDX-License-Identifier: Apache-2.0
"""Kernels of target sm90, one region a module."""
