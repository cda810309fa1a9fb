# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract tiny_dense, one framework a module."""
