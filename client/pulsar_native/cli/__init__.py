"""Command line `python -m pulsar_native`: publish, consume, tail, peek, lag, check.

Rules: standard output has data only; progress, summaries and errors go to standard error, progress only on a terminal.
No secret is accepted on the command line, and none is printed. Jobs do the work; no socket is opened here.
"""
