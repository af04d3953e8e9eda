"""A mail server: enough of SMTP for the client of the standard library, one connection at a time."""

from __future__ import annotations

import base64
import email
import socketserver
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from typing import Self, cast

from tests.support.inthread import InThread


@dataclass
class MailServer(InThread):
    """`with MailServer() as server:` keeps every mail that it takes; `refuse` is its answer to senders."""

    refuse: str | None = None
    mails: list[EmailMessage] = field(default_factory=list)
    to: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        kept = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 ready")
                while line := self.rfile.readline().decode().strip():
                    if not self.answer(line):
                        return

            def say(self, text: str) -> None:
                self.wfile.write(text.encode() + b"\r\n")

            def answer(self, line: str) -> bool:
                match line.upper().partition(" ")[0]:
                    case "EHLO":
                        self.say("250-mail\r\n250 AUTH PLAIN")
                    case "AUTH":
                        said = base64.b64decode(line.split(" ")[2]).decode()
                        self.say(f"535 no {said!r}")
                    case "MAIL" if kept.refuse is not None:
                        self.say(kept.refuse)
                    case "RCPT":
                        kept.to.append(line.partition("<")[2].rstrip(">"))
                        self.say("250 ok")
                    case "DATA":
                        self.say("354 go on")
                        self.take()
                    case "QUIT":
                        self.say("221 bye")
                        return False
                    case _:
                        self.say("250 ok")
                return True

            def take(self) -> None:
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line[1:] if line.startswith(b"..") else line)
                kept.mails.append(cast("EmailMessage", email.message_from_bytes(b"".join(lines), policy=default)))
                self.say("250 taken")

        server = socketserver.TCPServer(("127.0.0.1", 0), Session)
        self.port: int = server.server_address[1]
        self.serve(server)
        return self
