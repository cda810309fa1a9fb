# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract tiny_moe, one framework a module."""
