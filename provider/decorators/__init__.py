"""Decorators that make tasks of functions."""
