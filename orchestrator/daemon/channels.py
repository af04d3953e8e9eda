"""Channels for reports and alerts to people: webhook, mail or a folder. No error shows an address or a key."""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec
from msgspec import Struct

from orchestrator.core.atomic import durable
from orchestrator.core.errors import BackendError, OrchError, StorageError, UsageError
from orchestrator.core.sanitize import escape_controls, one_line
from orchestrator.settings.config import Config, Reports, Smtp

GROUP = "orch.channels"
_APPRISE = metadata.EntryPoint("apprise", "orchestrator.daemon.apprise_channel:Apprise", GROUP)
SECONDS = 10.0
MOST_CHARACTERS = 3000
"""Maximum characters of a webhook's message: chats cut longer messages."""


class Message(Struct, frozen=True):
    """A message to people. `brief` is for a chat; `text` (Markdown) and `page` (HTML, may be None) are for the full
    report.

    `name` is its file name without suffix, and identifies the message if it is sent repeatedly. `at` is when it was
    written.
    """

    name: str
    subject: str
    brief: str
    text: str
    at: datetime
    page: str | None = None


class Channel(Protocol):
    @property
    def name(self) -> str:
        """Name under which deliveries are recorded."""

    def send(self, message: Message) -> None:
        """Send a message. Raises OrchError if the message was not accepted; the monitor then sends it again."""

    def check(self) -> None:
        """Check the channel as far as possible without sending a message. Raises OrchError."""


class Webhook(Struct, frozen=True):
    """A channel that posts JSON in the format of Slack's incoming webhooks, which other services accept too."""

    variable: str
    environ: Mapping[str, str]
    name: str = "webhook"

    def send(self, message: Message) -> None:
        """POST a message. Raises UsageError if the variable has no URL, BackendError if the message is not
        accepted.
        """
        url = _variable(self.variable, self.environ, "the address of the webhook")
        text = f"*{_slack(one_line(message.subject))}*\n{_slack(message.brief)}"
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}…"
        body = msgspec.json.encode({"text": text})
        try:
            with httpx2.Client(timeout=SECONDS) as client:
                answer = client.post(url, content=body, headers={"content-type": "application/json"})
        except httpx2.UnsupportedProtocol:
            raise UsageError(f"the environment variable {self.variable} does not hold an http(s) URL") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The error's text may contain the address, which is the key.
            raise BackendError(f"the webhook cannot be reached: {type(error).__name__}") from None
        if not answer.is_success:
            raise BackendError(f"the webhook answered {answer.status_code}")

    def check(self) -> None:
        _variable(self.variable, self.environ, "the address of the webhook")


class Mail(Struct, frozen=True):
    """A channel that sends mail over SMTP, with the text and the page."""

    to: tuple[str, ...]
    server: Smtp
    environ: Mapping[str, str]
    name: str = "mail"

    def send(self, message: Message) -> None:
        """Send a message. Raises UsageError if a variable is not set, BackendError if the message is not accepted."""
        with self._connected() as smtp:
            smtp.send_message(self._written(message))

    def check(self) -> None:
        """Connect and sign in to the mail server, without sending a message.

        Raises UsageError if a variable is not set, BackendError if the server fails or refuses.
        """
        with self._connected():
            pass

    @contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        try:
            with self._opened() as smtp:
                yield smtp
        except smtplib.SMTPResponseException as error:
            # The server's text may repeat the credentials.
            raise BackendError(f"the mail server {self.server.host} answered {error.smtp_code}") from None
        except (smtplib.SMTPException, OSError) as error:
            raise BackendError(f"the mail server {self.server.host} failed: {type(error).__name__}") from None

    def _written(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        domain = self.server.sender.rpartition("@")[2].rstrip("> ") or "localhost"
        mail["Subject"], mail["From"], mail["To"] = one_line(message.subject), self.server.sender, ", ".join(self.to)
        mail["Date"] = format_datetime(message.at)
        # The same for the same report: if a killed process sends it twice, a mail program shows it once.
        mail["Message-ID"] = f"<{message.name}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(escape_controls(message.text))
        if message.page is not None:
            mail.add_alternative(escape_controls(message.page), subtype="html")
        return mail

    @contextmanager
    def _opened(self) -> Iterator[smtplib.SMTP]:
        server = self.server
        login = None
        if server.user_env is not None and server.password_env is not None:
            named = ((server.user_env, "the user"), (server.password_env, "the password"))
            login = [_variable(variable, self.environ, f"{what} of the mail server") for variable, what in named]
        context = ssl.create_default_context()
        connection = (
            smtplib.SMTP_SSL(server.host, server.port, timeout=SECONDS, context=context)
            if server.tls == "tls"
            else smtplib.SMTP(server.host, server.port, timeout=SECONDS)
        )
        with connection as smtp:
            if server.tls == "starttls":
                smtp.starttls(context=context)
            if login is not None:
                smtp.login(*login)
            yield smtp


class Folder(Struct, frozen=True):
    """A channel that writes the text to a file, and the page to a file beside it. Each file is complete or absent."""

    path: Path
    name: str = "folder"

    def send(self, message: Message) -> None:
        try:
            for ending, text in (("md", message.text), ("html", message.page)):
                if text is not None:
                    with durable(self.path / f"{message.name}.{ending}", for_user=True) as file:
                        file.write(escape_controls(text).encode())
        except OSError as error:
            raise StorageError(f"a report cannot be written to {self.path}: {error.strerror}") from error

    def check(self) -> None:
        """Check that the path is a writable folder, or that a folder can be created there. Raises StorageError."""
        place = next(one for one in (self.path, *self.path.absolute().parents) if one.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise StorageError(f"a report cannot be written to {self.path}: {place} is not a folder to write into")


class Plugged(Struct, frozen=True):
    """A channel from another package: an entry point in the group `orch.channels`, called with options and
    environment.

    The plug-in returns an object with `send(message)`. orch loads the plug-in for each message. A broken plug-in is
    only reported.
    """

    name: str
    options: Mapping[str, Any]
    environ: Mapping[str, str]

    def send(self, message: Message) -> None:
        """Send a message. Raises UsageError if the plug-in is missing, BackendError if it fails."""
        found = self._entry_point()
        try:
            found.load()(self.options, self.environ).send(message)
        except OrchError:
            raise
        except Exception as error:  # noqa: BLE001 (a plug-in may raise anything; the text may contain an address)
            raise BackendError(f"the channel {self.name} failed: {type(error).__name__}") from None

    def check(self) -> None:
        self._entry_point()

    def _entry_point(self) -> metadata.EntryPoint:
        known: dict[str, metadata.EntryPoint] = {
            one.name: one for one in (_APPRISE, *metadata.entry_points(group=GROUP))
        }
        if self.name not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"there is no channel {self.name!r} (installed: {names})", hint="install its package")
        return known[self.name]


def channels(config: Config, environ: Mapping[str, str] = os.environ) -> list[Channel]:
    wanted: Reports = config.reports
    found: list[Channel] = []
    if wanted.webhook_env is not None:
        found.append(Webhook(wanted.webhook_env, environ))
    if wanted.smtp is not None:
        found.append(Mail(wanted.email_to, wanted.smtp, environ))
    if wanted.folder is not None:
        beside = config.path.parent if config.path is not None else Path()
        found.append(Folder(beside / Path(wanted.folder).expanduser()))
    found.extend(Plugged(name, options, environ) for name, options in wanted.channels.items())
    return found


def _variable(name: str, environ: Mapping[str, str], what: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise UsageError(f"the environment variable {name} is not set; it must hold {what}")
    return value


def _slack(text: str) -> str:
    return escape_controls(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
