"use strict";
// What the pages do in a browser: times in the reader's zone, plots, and content that stays current.
(() => {
  // --- times

  const FORMS = {
    moment: { weekday: "short", day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
    clock: { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" },
    day: { weekday: "short", day: "2-digit", month: "short" },
  };
  const formats = Object.fromEntries(Object.entries(FORMS).map(([name, form]) => [name, new Intl.DateTimeFormat("en-GB", form)]));
  const here = (root) => {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const text = formats[one.dataset.form ?? "moment"].format(at).replaceAll(",", "");
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

  // --- plots

  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = (box) => {
    drawn.get(box)?.destroy();
    fit.observe(box);
    const told = JSON.parse(box.dataset.plot);
    const xs = told.x.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
    const styles = [{ fill: colour("--accent"), width: 0 }, { stroke: colour("--soft"), width: 1.5, points: { size: 5, fill: colour("--back") } }];
    const dollars = (value) => `$${value >= 1 || value === 0 ? value.toLocaleString("en-US", { maximumFractionDigits: 2 }) : value.toPrecision(2)}`;
    const bars = uPlot.paths.bars({ size: [0.6, 48] });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    drawn.set(box, new uPlot({
      width: box.clientWidth, height: 200, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { x: { range: (u, low, high) => [low - 86400, high + 86400] }, y: { range: (u, low, high) => [0, (high || 1) * 1.1] } },
      legend: { live: true }, cursor: { y: false, drag: { x: false, y: false } },
      axes: [{ ...axis, grid: { show: false }, space: 64, incrs: [1, 2, 7, 14, 30, 90].map((days) => days * 86400),
        values: (u, days) => days.map((at) => new Date(at * 1000).toLocaleDateString("en-GB", { day: "2-digit", month: "short", timeZone: "UTC" })) }, { ...axis, size: 64, values: (u, values) => values.map(dollars) }],
      series: [{ label: "day", value: (u, at) => (at == null ? "—" : new Date(at * 1000).toISOString().slice(0, 10)) },
        ...told.series.map((one, number) => ({
          label: one.label, value: (u, value) => (value == null ? "—" : dollars(value)),
          ...styles[number], ...(number === 0 ? { paths: bars, points: { show: false } } : {}),
        }))],
    }, [xs, ...told.series.map((one) => one.values)], box));
  };
  const plots = () => document.querySelectorAll("[data-plot]").forEach((box) => { if (!drawn.has(box)) draw(box); });
  const redraw = () => { for (const box of drawn.keys()) if (box.isConnected) draw(box); else drawn.delete(box); };

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
          beforeNodeMorphed: (before, after) => {
            if (before.dataset?.plot === undefined || after.dataset?.plot === undefined) return true;
            if (before.dataset.plot !== after.dataset.plot) { before.dataset.plot = after.dataset.plot; draw(before); }
            return false;
          },
          beforeAttributeUpdated: (name, node) => !(name === "open" && node.nodeName === "DETAILS"),
        },
      });
    }
    document.body.classList.remove("lost");
    plots();
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
    source.addEventListener("error", () => { lost(); });
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
  document.addEventListener("orch:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const fit = new ResizeObserver((seen) => { for (const { target } of seen) drawn.get(target)?.setSize({ width: target.clientWidth, height: 200 }); });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  });
  document.addEventListener("htmx:afterSettle", () => here(document));
  here(document);
  zone();
  plots();
  watch();
})();
