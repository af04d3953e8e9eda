"""Each way on which reports and alerts go: what arrives, and what is said where nothing does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.core.errors import InputError, OrchError
from orchestrator.daemon.channels import MOST_CHARACTERS, Folder, Mail, Message, Webhook, channels
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import locate
from tests.support.mailserver import MailServer
from tests.support.receiver import Receiver

AT = datetime(2026, 11, 22, 6, 30, tzinfo=UTC)
PAGE = "<!doctype html>\n<p>A night"
NIGHT = Message("night-1", "A night", "2 jobs <b> & more\n• see to it", "# A night\n", AT, PAGE)
ALERT = Message("alert-1", "An alert", "at risk", "# An alert\n", AT)
SECRET = "s3cr3t-of-the-address"


def config(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    (folder / "orch.toml").write_text(text)
    monkeypatch.setenv("ORCH_CONFIG", str(folder / "orch.toml"))
    return load(locate())


def test_a_webhook_gets_json_as_slack_takes_it() -> None:
    with Receiver() as receiver:
        Webhook("HOOK", {"HOOK": f" {receiver.url}\n"}).send(NIGHT)
        Webhook("HOOK", {"HOOK": receiver.url}).send(Message("n", "s", "x" * 9999, "t", AT))
    first, long = receiver.deliveries
    assert first.headers["content-type"] == "application/json"
    assert json.loads(first.body) == {"text": "*A night*\n2 jobs &lt;b&gt; &amp; more\n• see to it"}
    assert len(json.loads(long.body)["text"]) == MOST_CHARACTERS + 1


def refused(way: Webhook | Mail | Folder) -> str:
    with pytest.raises(OrchError) as caught:
        way.send(NIGHT)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    return caught.value.message


@pytest.mark.slow
def test_what_a_webhook_says_where_nothing_arrives() -> None:
    with Receiver(500, 302) as receiver:
        way = Webhook("HOOK", {"HOOK": f"{receiver.url}/{SECRET}"})
        assert refused(way) == "the webhook answered 500"
        assert refused(way) == "the webhook answered 302", "what leads elsewhere is not followed"
    assert refused(way) == "the webhook cannot be reached: ConnectError"
    assert refused(Webhook("HOOK", {"HOOK": SECRET})) == "the environment variable HOOK does not hold an http(s) URL"
    assert refused(Webhook("HOOK", {"HOOK": f"http://[{SECRET}"})).startswith("the webhook cannot be reached")
    assert refused(Webhook("HOOK", {})).startswith("the environment variable HOOK is not set")


MAIL = """
[reports]
email_to = ["a@example.com", "b@example.com"]
smtp = {{host = "127.0.0.1", port = {port}, from = "orch@example.com", tls = "none"}}
"""


@pytest.mark.slow
def test_mail_has_the_text_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MailServer() as server:
        [way] = channels(config(tmp_path, MAIL.format(port=server.port), monkeypatch), {})
        way.send(NIGHT)
        way.send(ALERT)
        night, alert = server.mails
        assert (night["subject"], night["from"], night["to"]) == (
            "A night",
            "orch@example.com",
            "a@example.com, b@example.com",
        )
        assert (night["date"], night["message-id"]) == ("Sun, 22 Nov 2026 06:30:00 +0000", "<night-1@example.com>")
        assert alert["message-id"] == "<alert-1@example.com>"
        assert [part.get_content_type() for part in night.iter_parts()] == ["text/plain", "text/html"]
        contents = [part.get_content().replace("\r\n", "\n").strip() for part in night.iter_parts()]
        assert contents == [NIGHT.text.strip(), NIGHT.page]
        assert alert.get_content().strip() == "# An alert"
        assert server.to[:2] == ["a@example.com", "b@example.com"]
        server.refuse = f"451 not now, {SECRET}"
        assert isinstance(way, Mail)
        assert refused(way) == "the mail server 127.0.0.1 answered 451"
    assert refused(way) == "the mail server 127.0.0.1 failed: ConnectionRefusedError"


def test_no_text_of_a_stranger_adds_a_header_or_an_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "x\r\nBcc: all@example.com\n\nbody\x1b[31m\u202e\udc80" + "y" * 2000
    message = Message("night-2", hostile, hostile, hostile, AT, hostile)
    with MailServer() as server, Receiver() as receiver:
        [way] = channels(config(tmp_path, MAIL.format(port=server.port), monkeypatch), {})
        for channel in (way, Webhook("HOOK", {"HOOK": receiver.url}), Folder(tmp_path / "told")):
            channel.send(message)
        [mail] = server.mails
        assert mail["bcc"] is None
        assert server.to == ["a@example.com", "b@example.com"]
        assert mail["subject"].startswith("x Bcc: all@example.com body\\u001b[31m\\u202e\\udc80yyy")
        told = [part.get_content() for part in mail.iter_parts()]
        told.append(json.loads(receiver.deliveries[0].body)["text"])
        told += [path.read_text() for path in (tmp_path / "told").iterdir()]
    for text in told:
        assert "\\u001b[31m\\u202e\\udc80" in text
        assert not set(text) & set("\x1b\u202e\udc80")


def test_a_mail_server_that_wants_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smtp = 'smtp = {host = "127.0.0.1", port = %d, from = "o@x.de", user_env = "U", password_env = "P", tls = "%s"}'
    text = '[reports]\nemail_to = ["a@b.de"]\n' + smtp
    with MailServer() as server:
        plain = text % (server.port, "starttls")
        [way] = channels(config(tmp_path, plain, monkeypatch), {"U": "me", "P": SECRET})
        assert isinstance(way, Mail)
        assert refused(way) == "the mail server 127.0.0.1 failed: SMTPNotSupportedError", "no password in the clear"
        [way] = channels(config(tmp_path, plain, monkeypatch), {"U": "me"})
        assert isinstance(way, Mail)
        assert refused(way).startswith("the environment variable P is not set")
        [way] = channels(config(tmp_path, text % (server.port, "tls"), monkeypatch), {"U": "me", "P": SECRET})
        assert isinstance(way, Mail)
        assert refused(way) == "the mail server 127.0.0.1 failed: SSLError"
        assert server.mails == []


def test_a_check_sends_nothing_and_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    text = 'webhook_env = "HOOK"\nfolder = "file/reports"\n[reports.channels.pigeon]\n'
    with MailServer() as server:
        [webhook, mail, folder, pigeon] = channels(
            config(tmp_path, MAIL.format(port=server.port) + text, monkeypatch), {}
        )
        mail.check()
        assert server.mails == []
    for channel, problem in (
        (webhook, "the environment variable HOOK is not set"),
        (mail, "the mail server 127.0.0.1 failed: ConnectionRefusedError"),
        (folder, "is not a folder to write into"),
        (pigeon, "there is no channel 'pigeon'"),
    ):
        with pytest.raises(OrchError, match=problem):
            channel.check()
    Folder(tmp_path / "later" / "reports").check()
    assert not (tmp_path / "later").exists()


def test_a_folder_gets_files_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [way] = channels(config(tmp_path, '[reports]\nfolder = "told/here"\n', monkeypatch), {})
    way.send(NIGHT)
    way.send(ALERT)
    way.send(NIGHT)
    found = {path.name: path.read_text() for path in (tmp_path / "told" / "here").iterdir()}
    assert found == {"night-1.md": NIGHT.text, "night-1.html": NIGHT.page, "alert-1.md": ALERT.text}
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(Folder(tmp_path / "file"))


def test_every_way_that_is_named_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MAIL.format(port=25) + 'webhook_env = "HOOK"\nfolder = "f"\n'
    assert [way.name for way in channels(config(tmp_path, text, monkeypatch), {})] == ["webhook", "mail", "folder"]
    assert channels(config(tmp_path, "", monkeypatch), {}) == []


BAD = {
    'email_to = ["a@b.de"]': "email_to needs a server",
    'smtp = {host = "h", from = "a@b.de"}': "smtp is for mail",
    'email_to = ["nobody"]\nsmtp = {host = "h", from = "a@b.de"}': "email_to",
    'email_to = ["a@b.de"]\nsmtp = {host = "h", from = "nobody"}': "from",
    'email_to = ["a@b.de"]\nsmtp = {host = "h", from = "a@b.de", user_env = "U"}': "user_env and password_env",
    'email_to = ["a@b.de"]\nsmtp = {host = "h", from = "a@b.de", user_env = "U", password_env = "P", tls = "none"}': (
        "anybody could read the password"
    ),
    'webhook = "https://hooks.example.com/x"': "webhook",
}


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_bad_settings_are_told(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        config(tmp_path, f"[reports]\n{text}\n", monkeypatch)
    assert message in str(caught.value)
    assert "orch.toml:" in str(caught.value)


@pytest.mark.long
def test_apprise_sends_to_every_address_and_tells_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = config(tmp_path, '[reports]\nchannels = {apprise = {urls_env = "PLACES"}}\n', monkeypatch)
    with Receiver() as receiver:
        address = receiver.url.replace("http://", "json://") + f"/{SECRET}"
        (way,) = channels(made, {"PLACES": f"{address}\n{address}"})
        way.send(NIGHT)
    assert [json.loads(one.body)["title"] for one in receiver.deliveries] == ["A night", "A night"]
    for places in ("", "nonsense", address):
        (way,) = channels(made, {"PLACES": places})
        with pytest.raises(OrchError) as caught:
            way.send(NIGHT)
        assert SECRET not in str(caught.value)
    assert SECRET not in "".join(capfd.readouterr())
