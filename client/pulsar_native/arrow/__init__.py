"""Arrow support: record batches from entries, messages from table rows, and the value types of both."""
