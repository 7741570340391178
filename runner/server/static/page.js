// Makes pages live, and adds keys. Everything works without it: pages are whole, forms are forms.
"use strict";
(() => {
  const html = window.trustedTypes
    ? trustedTypes.createPolicy("runner", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const main = document.getElementById("main");
  const announcer = document.getElementById("announcer");
  const say = (text) => { announcer.textContent = text; };

  // -- parts that are read again ---------------------------------------------------------------------
  // A part that has the focus, or a form in which something was typed, stays as it is.
  const typed = new WeakSet();
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form");
    if (form) typed.add(form);
  });
  const isBusy = (part) =>
    part.contains(document.activeElement) || [...part.querySelectorAll("form")].some((form) => typed.has(form));

  const opened = (part) => new Set([...part.querySelectorAll("details[open] > summary")].map((item) => item.closest("[id], tr")?.id));
  let loading = false, again = false;
  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    try {
      const reply = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (!reply.ok) throw new Error(`${reply.status}`);
      const fresh = new DOMParser().parseFromString(html.createHTML(await reply.text()), "text/html");
      for (const part of document.querySelectorAll("[data-part]")) {
        const other = fresh.getElementById(part.id);
        if (!other || other.isEqualNode(part)) continue;
        if (isBusy(part)) { say("This page has changed; load it again to see what is new."); continue; }
        const open = opened(part);
        part.replaceWith(document.adoptNode(other));
        for (const item of other.querySelectorAll("details > summary")) {
          if (open.has(item.closest("[id], tr")?.id) && item.closest("[id], tr")?.id) item.parentElement.open = true;
        }
      }
      main.removeAttribute("data-stale");
    } catch {
      main.setAttribute("data-stale", "");
      say("The server can't be reached; what you see may be old.");
    } finally {
      loading = false;
      if (again) { again = false; setTimeout(refresh, 200); }
    }
  }
  let due = 0;
  const soon = () => { if (!due) due = setTimeout(() => { due = 0; refresh(); }, 150); };

  if (main.dataset.stream && window.EventSource) {
    const source = new EventSource(main.dataset.after ? `${main.dataset.stream}?after=${main.dataset.after}` : main.dataset.stream);
    for (const kind of ["run.started", "run.ended", "run.cancelled", "node.ready", "node.started", "node.waiting", "node.resumed",
      "node.completed", "node.failed", "node.skipped", "node.cancelled", "node.retrying", "node.held", "progress",
      "interrupt.asked", "interrupt.answered", "interrupt.voted", "interrupt.claimed", "interrupt.released", "interrupt.delegated",
      "interrupt.commented", "interrupt.escalated", "interrupt.expired", "interrupt.withdrawn", "interrupt.reminded", "reset", "snapshot"]) {
      source.addEventListener(kind, soon);
    }
    addEventListener("pagehide", () => source.close());
  } else if (main.dataset.refresh) {
    setInterval(() => { if (!document.hidden) refresh(); }, main.dataset.refresh * 1000);
  }

  // -- JSON that is typed ------------------------------------------------------------------------------
  document.addEventListener("input", (event) => {
    if (!event.target.matches("textarea[data-json]")) return;
    let problem = "";
    try { JSON.parse(event.target.value); } catch (error) { problem = error.message; }
    event.target.setCustomValidity(problem && `This is not JSON: ${problem}`);
    event.target.setAttribute("aria-invalid", problem ? "true" : "false");
  });

  // -- keys ----------------------------------------------------------------------------------------------
  const root = document.body.dataset.root;
  const toggle = document.getElementById("keys-on");
  const stored = () => { try { return localStorage.getItem("runner-keys"); } catch { return null; } };
  toggle.checked = stored() !== "off";
  toggle.addEventListener("change", () => { try { localStorage.setItem("runner-keys", toggle.checked ? "on" : "off"); } catch { /* private */ } });
  let before = "";
  const rows = () => [...document.querySelectorAll("tr[data-row]")];
  function move(step) {
    const all = rows();
    if (!all.length) return;
    const now = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, now + step))];
    next.querySelector("a, summary, button")?.focus();
  }
  document.addEventListener("keydown", (event) => {
    const inField = event.target.closest("input, textarea, select, [contenteditable]");
    if (!toggle.checked || inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = before === "g" ? `g${event.key}` : event.key;
    before = event.key === "g" && before !== "g" ? "g" : "";
    const acts = {
      j: () => move(1), k: () => move(-1),
      gi: () => location.assign(`${root}/inbox`), gr: () => location.assign(`${root}/runs`), gh: () => location.assign(`${root}/`),
      "/": () => document.getElementById("search")?.focus(),
      "?": () => { const keys = document.querySelector(".keys"); keys.open = true; keys.querySelector("summary").focus(); },
    };
    if (acts[key]) { event.preventDefault(); acts[key](); }
  });
})();
