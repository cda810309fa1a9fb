# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract qwen3_5_35b_a3b, one framework a module."""
