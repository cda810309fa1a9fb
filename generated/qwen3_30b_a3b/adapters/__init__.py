# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract qwen3_30b_a3b, one framework a module."""
