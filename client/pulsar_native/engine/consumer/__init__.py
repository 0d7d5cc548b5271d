"""Messages from topics: one partition's consumer, a topic's and a pattern's, rows, columns and table views.

A partition's consumer is the joint: taking (`permits`, `opening`), answering (`acknowledging`, `receipts`, `letters`),
standing somewhere (`positions`, `rewinding`) and going (`leaving`) are modules of their own.
"""
