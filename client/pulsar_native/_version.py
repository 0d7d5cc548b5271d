"""The version, told to brokers in the handshake."""

__version__ = "0.1.0"
