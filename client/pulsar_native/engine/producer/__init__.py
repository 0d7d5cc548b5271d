"""Producers: partition producer, partitioned and lazy producers, and bulk sends."""
