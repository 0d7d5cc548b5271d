"""Context of a Pulsar function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class Context:
    """Interface of the context, implemented by the functions runtime."""

    @abstractmethod
    def get_message_id(self) -> Any:
        """Return the id of the message that is processed."""

    @abstractmethod
    def get_message_key(self) -> Any:
        """Return the message's key."""

    @abstractmethod
    def get_message_eventtime(self) -> Any:
        """Return the message's event time."""

    @abstractmethod
    def get_message_properties(self) -> Any:
        """Return the message's properties."""

    @abstractmethod
    def get_current_message_topic_name(self) -> Any:
        """Return the topic of the message."""

    @abstractmethod
    def get_function_tenant(self) -> Any:
        """Return the tenant the function belongs to."""

    @abstractmethod
    def get_function_namespace(self) -> Any:
        """Return the namespace the function belongs to."""

    @abstractmethod
    def get_function_name(self) -> Any:
        """Return the function's name."""

    @abstractmethod
    def get_function_id(self) -> Any:
        """Return the function's id."""

    @abstractmethod
    def get_instance_id(self) -> Any:
        """Return the id of the instance that runs the function."""

    @abstractmethod
    def get_function_version(self) -> Any:
        """Return the function's version."""

    @abstractmethod
    def get_logger(self) -> Any:
        """Return the logger to use."""

    @abstractmethod
    def get_user_config_value(self, key: str) -> Any:
        """Return a value of the user configuration, None for an unknown key."""

    @abstractmethod
    def get_user_config_map(self) -> Any:
        """Return the user configuration as a dictionary."""

    @abstractmethod
    def get_secret(self, secret_name: str) -> Any:
        """Return a secret, None for an unknown name."""

    @abstractmethod
    def get_partition_key(self) -> Any:
        """Return the message's partition key."""

    @abstractmethod
    def get_ordering_key(self) -> Any:
        """Return the message's ordering key."""

    @abstractmethod
    def record_metric(self, metric_name: str, metric_value: float) -> Any:
        """Record a value of a metric."""

    @abstractmethod
    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[..., Any] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> Any:
        """Publish a message to a topic, encoded by the named `SerDe`; `message_conf` has options of `send`."""

    @abstractmethod
    def get_input_topics(self) -> Any:
        """Return the topics the function reads."""

    @abstractmethod
    def get_output_topic(self) -> Any:
        """Return the topic the function writes to."""

    @abstractmethod
    def get_output_serde_class_name(self) -> Any:
        """Return the name of the output's `SerDe`."""

    @abstractmethod
    def ack(self, msgid: Any, topic: str) -> Any:
        """Acknowledge a message."""

    @abstractmethod
    def incr_counter(self, key: str, amount: int) -> Any:
        """Add to a counter of the function's state."""

    @abstractmethod
    def get_counter(self, key: str) -> Any:
        """Return a counter of the function's state."""

    @abstractmethod
    def del_counter(self, key: str) -> Any:
        """Remove a counter of the function's state."""

    @abstractmethod
    def put_state(self, key: str, value: Any) -> Any:
        """Set a value of the function's state."""

    @abstractmethod
    def get_state(self, key: str) -> Any:
        """Return a value of the function's state."""
