"""Arrow: record batches made of entries, rows of tables turned into messages, and the values both stand for."""
