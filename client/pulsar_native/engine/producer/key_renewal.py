"""Data key renewal of a topic's producer: creation before the first message, renewal in the background.

Rules: one data key serves all partitions; keys are read in a plug-in thread, never on the loop or in a sending thread.
"""

from __future__ import annotations

import asyncio
import os
import time

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.loop import Engine, to_plugin_thread
from pulsar_native.enums import ProducerCryptoFailureAction
from pulsar_native.exceptions import CryptoError
from pulsar_native.protocol import data_keys
from pulsar_native.protocol.data_keys import Encryptor
from pulsar_native.topic import TopicName

_log = get_logger("pulsar_native.producer")


class KeyRenewal:
    """Keep an `Encryptor` supplied with data keys. On the loop only, except the `encryptor` itself."""

    def __init__(self, engine: Engine, config: ProducerConfig, topic: TopicName) -> None:
        assert config.crypto_key_reader is not None
        self.encryptor = Encryptor(
            config.encryption_key_names,
            config.crypto_key_reader,
            config.crypto_failure_action,
            clock=time.monotonic,
            random=os.urandom,
        )
        self._engine = engine
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the first data key; raises `CryptoError` when that fails, unless the failure action is SEND.

        With SEND the key reader is asked several times first: a short failure has no message sent in plain text.
        """
        is_send = self.encryptor.action is ProducerCryptoFailureAction.SEND
        for attempts_left in reversed(range(data_keys.ATTEMPTS if is_send else 1)):
            try:
                await to_plugin_thread(self.encryptor.renew)
                break
            except CryptoError as error:
                error.topic = self._topic.full
                if not is_send:
                    raise
                if attempts_left:
                    await asyncio.sleep(data_keys.PAUSE_SECONDS)
                else:
                    _log.warning("Messages to %s are sent unencrypted (crypto_failure_action=SEND): %s", *_of(error))
        self._task = self._engine.spawn(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self.encryptor.due - time.monotonic()))
            try:
                await to_plugin_thread(self.encryptor.renew)
            except CryptoError as error:
                error.topic = self._topic.full
                _log.warning("The data key of %s cannot be renewed yet: %s", *_of(error))
            except CALLBACK_ERRORS as error:
                if cancels_task(error):
                    raise
                self.encryptor.retry_later()
                _log.warning("The data key of %s cannot be renewed yet: %s", self._topic.full, type(error).__name__)

    def stop(self) -> None:
        """Stop the renewal."""
        if self._task is not None:
            self._task.cancel()


def _of(error: CryptoError) -> tuple[str | None, str]:
    return error.topic, error.message
