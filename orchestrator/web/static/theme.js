"use strict";
// Light or dark, before anything is drawn; "auto" is as the system is.
(() => {
  const kept = () => { try { return localStorage.getItem("orch-theme"); } catch { return null; } };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(kept());
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#theme")) return;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    const next = shown === "dark" ? "light" : "dark";
    apply(next);
    try { localStorage.setItem("orch-theme", next); } catch { /* it holds for this page */ }
  });
})();
