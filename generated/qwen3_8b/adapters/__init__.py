# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract qwen3_8b, one framework a module."""
