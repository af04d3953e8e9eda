"""The HTML reports in a real browser: readable on a phone, and nothing is asked of any other place."""

from __future__ import annotations

import re
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.cli import run
from orchestrator.core.events import EventKind
from orchestrator.core.model import Forecast
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.chromium import NO_BROWSER, installed
from tests.support.nights import Bad, Nights
from tests.support.stored import NOW, later

PHONE, DESK = 390, 1280
PROBE = """<script>
addEventListener("load", () => {
  const parts = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().height > 0);
  const asked = performance.getEntriesByType("resource").length, all = document.documentElement;
  const cut = parts.filter((one) => one instanceof HTMLElement && (
    one.getBoundingClientRect().right > all.clientWidth + 1
    || (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible")));
  const outside = [...document.querySelectorAll("svg text")].filter((one) => {
    const box = one.getBoundingClientRect(), picture = one.ownerSVGElement.getBoundingClientRect();
    return box.left < picture.left - 1 || box.right > picture.right + 1 || box.bottom > picture.bottom + 1;
  });
  parent.postMessage([all.scrollWidth, all.clientWidth, parts.length, asked, cut.length, outside.length].join(), "*");
});
</script>"""
# A browser's own window is never as narrow as a phone.
FRAME = """<title></title><iframe src="{name}" style="border: 0; width: {width}px; height: 900px"></iframe>
<script>addEventListener("message", (told) => { document.title = told.data });</script>"""


@pytest.fixture
def browser() -> str:
    found = installed()
    if found is None:
        pytest.skip(NO_BROWSER)
    return found


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The morning report and the cost report of a home with two nights, with long names and texts in them."""
    (tmp_path / "orch.toml").write_text("")
    for name, value in {"ORCH_CONFIG": tmp_path / "orch.toml", "ORCH_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    before = {f"folder/of/letters/a-rather-long-name-{n:03}.txt": {"party": f"Party {n}"} for n in range(30)}
    after = {name: {"party": f"{fields['party']} <b>&amp;</b> " + "Sons " * 20} for name, fields in before.items()}
    broken = {"w" * 120 + ".txt": Bad("truncated", "no-blank-" * 40)}
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        nights = Nights(store, Home(tmp_path))
        long = f"{'a-job-with-a-name-as-long-as-it-may-be':40.40}-12345678"
        nights.finish(nights.run(before, at=NOW, cost="123456.789"), later(2))
        late = nights.run({**after, **broken}, at=later(24), deadline_at=later(30), budget=Decimal(9), id=long)
        store.jobs.note(
            late.id, EventKind.HELD, "queued behind quota: 1.9M of 2M tokens", later(25), f"{late.id}.001"
        )
        store.forecasts.made([Forecast(late.id, "cost", "", "", NOW, 0.5, 1.5, "prior")])
        nights.finish(late, later(36))
    found = {"night": tmp_path / "night.html", "cost": tmp_path / "cost.html"}
    for kind, path in found.items():
        assert run(["report", kind, "--html", str(path)]) == 0
    return found


def seen(browser: str, page: Path, width: int) -> tuple[int, ...]:
    """How wide page and window are; numbers of parts with a height, requests, parts cut, and texts outside charts."""
    probed, frame = (page.with_name(f"{page.stem}-{what}-{width}.html") for what in ("probed", "frame"))
    probed.write_text(page.read_text(encoding="utf-8").replace("</html>", f"{PROBE}</html>"), encoding="utf-8")
    frame.write_text(FRAME.replace("{name}", probed.name).replace("{width}", str(width)), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]
    command = [browser, *options, f"--user-data-dir={page.parent / 'profile'}", "--window-size=1400,1000"]
    shown = subprocess.run([*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=90)
    title = re.search(r"<title>([\d,]+)</title>", shown.stdout)
    assert title is not None, shown.stderr[-2000:]
    return tuple(map(int, title[1].split(",")))


@pytest.mark.parametrize("kind", ["night", "cost"])
def test_a_page_is_readable_on_a_phone_and_at_a_desk(browser: str, pages: dict[str, Path], kind: str) -> None:
    for width in (PHONE, DESK):
        wide, window, parts, asked, cut, outside = seen(browser, pages[kind], width)
        assert window == width
        assert wide <= window, f"at {width} points the page is {wide} wide, and has to be pushed to and fro"
        assert parts > 20, "nothing is shown"
        assert cut == 0, f"at {width} points {cut} parts of the page have to be pushed to and fro"
        assert outside == 0, f"at {width} points {outside} labels leave their chart"
        assert asked == 0, "a page that is sent by mail has all that it needs"
