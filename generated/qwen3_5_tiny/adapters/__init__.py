# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract qwen3_5_tiny, one framework a module."""
