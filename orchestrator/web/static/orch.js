"use strict";
// What the pages do in a browser: times in the reader's zone, and content that stays current.
(() => {
  // --- times

  const format = new Intl.DateTimeFormat("en-GB", {
    weekday: "short", day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
  });
  const here = (root) => {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const text = format.format(at).replaceAll(",", "").replace("Sept", "Sep");
      const there = -at.getTimezoneOffset() !== Number(one.dataset.offset) ? one.dataset.there : "";
      one.textContent = text;
      one.title = `${one.dateTime}${there ? `, ${there} where the jobs run` : ""}`;
      one.classList.toggle("elsewhere", there !== "");
    }
  };
  const zone = () => {
    const told = document.getElementById("zone");
    if (told) told.textContent = `times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
  };

  // --- live

  const LOST_MS = 4500;
  let source = null;
  let heard = 0;
  const put = (html) => {
    const told = new DOMParser().parseFromString(html, "text/html");
    here(told);
    for (const id of ["daemon", "main"]) {
      const old = document.getElementById(id);
      const fresh = told.getElementById(id);
      if (!old || !fresh || (id === "main" && !document.body.dataset.live)) continue;
      Idiomorph.morph(old, fresh, {
        morphStyle: "outerHTML", ignoreActiveValue: true,
        callbacks: {
          beforeAttributeUpdated: (name, node) => !(name === "open" && node.nodeName === "DETAILS"),
        },
      });
    }
    document.body.classList.remove("lost");
  };
  const lost = () => {
    if (document.body.classList.contains("lost")) return;
    document.body.classList.add("lost");
    const told = document.getElementById("daemon");
    if (told) {
      told.className = "daemon down";
      told.replaceChildren(Object.assign(document.createElement("span"), { className: "dot bad" }),
        Object.assign(document.createElement("span"), { textContent: "daemon down", title: "orch does not answer; this page goes on by itself once it does" }));
    }
  };
  const listen = () => {
    source?.close();
    heard = Date.now();
    source = new EventSource(`/live?page=${encodeURIComponent(document.body.dataset.live ?? "")}`);
    source.addEventListener("page", (event) => { heard = Date.now(); put(event.data); });
    source.addEventListener("alive", () => { heard = Date.now(); });
    source.addEventListener("error", () => {
      lost();
      // Refused: perhaps the key was revoked, and whoever looks has to sign in again.
      if (source?.readyState === EventSource.CLOSED) fetch("/schedules", { method: "HEAD" }).then(
        (answer) => { if (answer.status === 401) location.reload(); }, () => {});
    });
  };
  // A browser has few connections to one place: a page that nobody sees gives its own back.
  const watch = () => {
    if (document.hidden) { source?.close(); source = null; } else if (!source) listen();
  };
  setInterval(() => {
    if (document.hidden || !source) return;
    if (source.readyState === EventSource.CLOSED || Date.now() - heard > LOST_MS) { lost(); listen(); }
  }, 1000);

  document.addEventListener("visibilitychange", watch);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  });
  document.addEventListener("htmx:afterSettle", () => here(document));
  here(document);
  zone();
  watch();
})();
