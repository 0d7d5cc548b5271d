"""Consumers: partition, multi-topics and pattern consumers, Arrow receivers, table views.

`PartitionConsumer` (`consumer`) combines receiving (`receiver_queue`, `permits`, `entry_decoder`), acknowledging
(`ack_grouping_tracker`, `ack_receipts`, `dead_letter`), the position (`seek`, `redeliver_all`) and closing (`close`).
"""
