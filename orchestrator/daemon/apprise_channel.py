"""Reports and alerts through Apprise, which reaches about a hundred services by address."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from orchestrator.core.errors import BackendError, UsageError
from orchestrator.core.extras import install_line
from orchestrator.core.sanitize import escape_controls, one_line
from orchestrator.daemon.channels import Message

DEFAULT = "APPRISE_URLS"


class Apprise(Struct, frozen=True):
    """A channel for Apprise. Its option `urls_env` names the variable with the addresses, separated by spaces."""

    options: Mapping[str, Any]
    environ: Mapping[str, str]

    def send(self, message: Message) -> None:
        """Send a message to all addresses. Raises UsageError if Apprise or a valid address is missing.

        Raises BackendError if a service refuses the message.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings from Apprise's own libraries
            self._send(message)

    def _send(self, message: Message) -> None:
        try:
            import apprise
        except ImportError:
            raise UsageError("the channel apprise needs the extra `apprise`", hint=install_line("apprise")) from None
        variable = str(self.options.get("urls_env", DEFAULT))
        logging.getLogger("apprise").disabled = True  # its log contains addresses, which are keys
        services = apprise.Apprise()
        addresses = self.environ.get(variable, "").split()
        if not addresses:
            raise UsageError(f"the environment variable {variable} is not set; it must hold apprise's addresses")
        for number, address in enumerate(addresses, 1):
            if not services.add(address):
                raise UsageError(f"address {number} in {variable} is not one that apprise knows")
        if not services.notify(title=one_line(message.subject), body=escape_controls(message.brief)):
            raise BackendError("a service that apprise was given did not accept the message")
