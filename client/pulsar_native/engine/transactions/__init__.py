"""Transactions: the work done in one, and the coordinators that begin and end them."""
