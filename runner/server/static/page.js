// Makes pages live, and adds keys. Everything works without it: pages are complete, forms are forms.
"use strict";
(() => {
  const html = window.trustedTypes
    ? trustedTypes.createPolicy("runner", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const main = document.getElementById("main");
  const announcer = document.getElementById("announcer");
  const say = (text) => { announcer.textContent = text; };

  const memory = {
    get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private */ } },
  };

  // -- parts that are read again ---------------------------------------------------------------------
  // A part is left unchanged if its form has the focus or typed text.
  const typed = new WeakSet();
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form");
    if (form) typed.add(form);
  });
  const isBusy = (part) =>
    (part.contains(document.activeElement) && document.activeElement.closest("form")) ||
    [...part.querySelectorAll("form")].some((form) => typed.has(form) || form.hasAttribute("data-typed"));

  const all = (root, selector) => [...root.querySelectorAll(selector)];
  // The key that finds an element in the next version of its part: its id, its node in the graph, or its address.
  const keyOf = (item) => item.id ||
    `${item.closest("[data-node]")?.dataset.node ?? item.getAttribute("href") ?? item.closest("[id]")?.id} ${item.getAttribute("class")} ${item.matches("summary") ? item.textContent : ""}`;
  function replace(part, other) {
    const active = part.contains(document.activeElement) && document.activeElement !== part ? document.activeElement : null;
    const open = new Set(all(part, "details[open] > summary").map(keyOf));
    const places = all(part, ".graph").map((graph) => [graph.scrollLeft, graph.scrollTop]);
    part.replaceWith(document.adoptNode(other));
    for (const item of all(other, "details > summary")) if (open.has(keyOf(item))) item.parentElement.open = true;
    all(other, ".graph").forEach((graph, number) => (places[number] ? graph.scrollTo(...places[number]) : begin(graph)));
    if (active) all(other, active.tagName).find((item) => keyOf(item) === keyOf(active))?.focus({ preventScroll: true });
  }
  // Amounts as the reader's language writes them, also where a title repeats one.
  const group = new Intl.NumberFormat().formatToParts(1e6).find(({ type }) => type === "group")?.value ?? "";
  const money = (amount) => new Intl.NumberFormat([], { minimumFractionDigits: 2, maximumFractionDigits: 15 }).format(amount);
  function localizeTitles(titles, from, to) {
    const same = new RegExp(`(?<![\\d.,])${from.replaceAll(".", "\\.")}(?![.,]?\\d)`, "g");
    if (from !== to) for (const title of titles) {
      for (const text of title.childNodes) if (text.nodeType === Node.TEXT_NODE) text.data = text.data.replace(same, to);
    }
  }
  function localizeAmount(root, item) {
    const [from, to] = [item.textContent, money(item.value)], row = item.closest("tr[data-row]");
    item.textContent = to;
    localizeTitles(row ? all(row, "th a") : all(root, "h1, title, .crumbs, table.together th a"), from, to);
  }
  function localize(root) {
    for (const item of all(root, "[data-written]")) localizeTitles([item], item.dataset.written, money(item.dataset.amount));
    for (const item of all(root, "data.amount")) localizeAmount(root, item);
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const short = new Date().toLocaleTimeString([], { timeZoneName: "short" }).split(" ").pop();
    root.getElementById("zone").textContent = `Times are in ${zone}${short === zone ? "" : ` (${short})`}.`;
    for (const item of all(root, "[data-zone]")) item.textContent = item.closest("form").elements.zone.value = zone;
    const today = new Date().toDateString();
    for (const item of all(root, "time[title]")) item.title = new Date(item.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "long" });
    for (const item of all(root, "time[data-clock]")) {
      const at = new Date(item.dateTime);
      item.textContent = item.dataset.clock === "0" || at.toDateString() === today ? at.toLocaleTimeString() : at.toLocaleString();
    }
  }

  // The seconds in which a decision can still be taken back.
  setInterval(() => {
    for (const item of all(document, "[data-left]")) {
      item.textContent = `, in ${Math.max(0, Math.ceil((item.dataset.left - Date.now()) / 1000))} s`;
    }
  }, 1000);

  // -- notifications of the inbox, which are off until a person asks for them
  const notifies = () => memory.get("runner-notify") === "on" && window.Notification?.permission === "granted";
  function offerNotices() {
    const button = document.getElementById("notify");
    if (!button || !window.Notification) return;
    button.hidden = false;
    button.textContent = notifies() ? "Stop notifying me" : "Notify me";
    button.onclick = async () => {
      const isOn = !notifies() && (await Notification.requestPermission()) === "granted";
      memory.set("runner-notify", isOn ? "on" : "off");
      offerNotices();
      if (!isOn && Notification.permission === "denied") say("This browser does not allow notifications of this site.");
    };
  }

  // -- rows that keep their places: new rows are announced, not inserted while a person reads
  const ended = new Map([["interrupt.answered", "answered"], ["interrupt.expired", "expired"], ["interrupt.withdrawn", "withdrawn"]]);
  function end(id, word) {
    const row = document.getElementById(`q-${id}`);
    if (!row || row.dataset.ended) return;
    row.dataset.ended = word;
    const box = row.querySelector("input[type=checkbox]");
    if (box) { box.checked = false; box.disabled = true; tally(box.form); }
    row.querySelector("th").append(Object.assign(document.createElement("span"), { className: "hint", textContent: ` ${word} meanwhile` }));
  }
  function renew(list, fresh) {
    const other = fresh.getElementById(list.id);
    if (!list.querySelector("tr[data-row]")) { list.replaceWith(document.adoptNode(other)); return; }
    let fewer = 0;
    for (const row of other.querySelectorAll("tr[data-row]")) {
      const own = document.getElementById(row.id);
      if (!own) { fewer += 1; continue; }
      if (own.dataset.ended || own.contains(document.activeElement) || own.querySelector(":checked")) continue;
      if (!own.isEqualNode(row)) own.replaceWith(document.adoptNode(row.cloneNode(true)));
    }
    const link = Object.assign(document.createElement("a"), { href: list.dataset.more, textContent: `${fewer} new` });
    if (fewer && document.hidden && notifies()) new Notification(document.title, { body: `${fewer} new`, tag: "runner-inbox" });
    const news = document.getElementById("news");
    if (news.textContent !== (fewer ? `${fewer} new` : "")) news.replaceChildren(...(fewer ? [link] : []));
  }
  // -- the notice that the server is away -----------------------------------------------------------------
  const warning = Object.assign(document.createElement("p"), { className: "stale", hidden: true });
  warning.setAttribute("role", "status");
  main.prepend(warning);
  let read = new Date(), retry = 0;
  function stale(isStale) {
    main.toggleAttribute("data-stale", isStale);
    if (isStale) {
      warning.textContent = `The server can't be reached. You see what it said at ${read.toLocaleTimeString()}; this page tries again by itself.`;
      clearTimeout(retry);
      retry = setTimeout(refresh, 5000);
    } else read = new Date();
    warning.hidden = !isStale;
  }
  addEventListener("offline", () => stale(true));
  addEventListener("online", () => refresh());

  let loading = false, again = false, took = 0, etag = "";
  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    const began = performance.now();
    try {
      const reply = await fetch(main.dataset.page || location.href, { headers: { Accept: "text/html", "If-None-Match": etag }, credentials: "same-origin" });
      if (reply.status === 304) { stale(false); return; }
      if (!reply.ok) throw new Error(`${reply.status}`);
      etag = reply.headers.get("ETag") ?? "";
      const fresh = new DOMParser().parseFromString(html.createHTML(await reply.text()), "text/html");
      localize(fresh);
      for (const part of document.querySelectorAll("[data-part]")) {
        const other = fresh.getElementById(part.id);
        if (!other || other.isEqualNode(part)) continue;
        if (isBusy(part)) { say("This page has changed; load it again to see what is new."); continue; }
        replace(part, other);
      }
      shown();
      offer(document.getElementById("decide"));
      // A decision that was taken back in another tab.
      if (document.getElementById("decide")) document.querySelector(".callout[data-result=accepted]")?.remove();
      document.querySelectorAll("[data-rows]").forEach((list) => renew(list, fresh));
      document.title = fresh.title;
      stale(false);
    } catch {
      stale(true);
    } finally {
      loading = false;
      took = performance.now() - began;
      if (again) { again = false; soon(); }
    }
  }
  let due = 0;
  // A slow page is read less often.
  const soon = () => { if (!due) due = setTimeout(() => { due = 0; refresh(); }, Math.max(150, 2 * took)); };

  // A browser opens six connections to a server without HTTP/2, and a stream takes one: only two pages have a
  // stream, the visible ones that had the focus last. The others read news every 15 seconds.
  const STREAMS = 2;
  if (main.dataset.stream && window.EventSource) {
    let source = null, position = main.dataset.after, leave = () => {};
    const close = () => { source?.close(); source = null; leave(); leave = () => {}; };
    const kinds = ["run.started", "run.ended", "node.started", "node.waiting", "node.resumed",
      "node.completed", "node.failed", "node.skipped", "node.cancelled", "node.retrying", "node.held", "node.released", "node.overridden", "node.limited",
      "node.expanded", "node.lost", "node.left", "run.retried", "run.migrated", "run.status", "run.stopping", "progress",
      "interrupt.asked", "interrupt.answered", "interrupt.voted", "interrupt.claimed", "interrupt.released", "interrupt.delegated",
      "interrupt.commented", "interrupt.escalated", "interrupt.expired", "interrupt.withdrawn", "interrupt.reminded", "reset", "snapshot"];
    function open() {
      source = new EventSource(position ? `${main.dataset.stream}${main.dataset.stream.includes("?") ? "&" : "?"}after=${position}` : main.dataset.stream);
      for (const kind of kinds) {
        source.addEventListener(kind, (event) => {
          position = event.lastEventId || position;
          if (ended.has(kind)) end(JSON.parse(event.data).detail, ended.get(kind));
          soon();
        });
      }
      source.addEventListener("error", () => {
        soon();
        // A refused stream does not reconnect by itself.
        if (source?.readyState === EventSource.CLOSED) close();
      });
    }
    const hold = (number, how) => new Promise((resolve) => {
      const held = (lock) => {
        resolve(Boolean(lock));
        if (!lock) return null;
        if (document.hidden || source) return null;
        open();
        return new Promise((done) => { leave = done; });
      };
      navigator.locks.request(`runner-stream-${number}`, how, held).catch(close);
    });
    async function follow() {
      if (document.hidden || source) return;
      if (!navigator.locks) { open(); return; } // a page without TLS
      for (let number = 0; number < STREAMS; number += 1) if (await hold(number, { ifAvailable: true })) return;
      await hold(Math.floor(Math.random() * STREAMS), { steal: true });
    }
    const seen = () => { if (document.hidden) close(); else if (!source) { soon(); follow(); } };
    document.addEventListener("visibilitychange", seen);
    addEventListener("focus", seen);
    addEventListener("pagehide", close);
    addEventListener("pageshow", (event) => { if (event.persisted) seen(); });
    setInterval(() => { if (!source && !document.hidden) refresh(); }, 15_000);
    follow();
  }
  if (main.dataset.refresh) {
    setInterval(() => { if (!document.hidden) refresh(); }, main.dataset.refresh * 1000);
  }

  // -- the graph of a run --------------------------------------------------------------------------------
  let target = "";
  function shown() {
    if (target) {
      const item = document.getElementById(target);
      if (target === "node") item?.focus();
      item?.scrollIntoView({ block: "nearest" });
      target = "";
    }
    const box = document.getElementById("follow");
    if (!box) return;
    box.parentElement.hidden = false;
    box.checked = memory.get("runner-follow") === "on";
    const busy = all(document, ".graph [data-state=running]").at(-1) ?? all(document, ".graph [data-state=waiting]").at(-1);
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (box.checked && busy) centre(busy, calm ? "auto" : "smooth");
  }
  function centre(item, behavior) {
    const graph = item.closest(".graph"), frame = graph.getBoundingClientRect(), node = item.getBoundingClientRect();
    graph.scrollTo({
      left: graph.scrollLeft + node.left - frame.left - (frame.width - node.width) / 2,
      top: graph.scrollTop + node.top - frame.top - (frame.height - node.height) / 2,
      behavior,
    });
  }
  // A graph larger than its frame is scrolled to the chosen node, else to a waiting one.
  function begin(graph) {
    const first = ["marked", "node[data-state=waiting]", "node"].map((kind) => graph.querySelector(`.${kind}`)).find(Boolean);
    if (first) centre(first, "auto");
  }
  // The buttons of selected questions say how many they are, with the sums of their amounts by currency.
  function tally(form) {
    const picked = all(form, "[data-pick]:checked"), sums = new Map();
    for (const { dataset } of picked) if (dataset.amount) sums.set(dataset.currency, (sums.get(dataset.currency) ?? 0) + Number(dataset.amount));
    const others = picked.filter(({ dataset }) => !dataset.amount).length;
    for (const item of all(form, "[data-tally]")) item.textContent = picked.length || "the selected";
    for (const item of all(form, "[data-sum]")) item.textContent = [...sums].map(([currency, sum]) => ` · ${money(Math.round(sum * 1e6) / 1e6)} ${currency}`.trimEnd()).join("") + (sums.size && others ? ` · ${others} without an amount` : "");
  }
  const tallyAll = () => all(document, "form:has([data-pick])").forEach(tally);
  addEventListener("pageshow", tallyAll);
  const pickAll = document.getElementById("pick-all");
  if (pickAll) pickAll.hidden = false;
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of all(document, "[data-pick]:enabled")) box.checked = event.target.checked;
    if (event.target.form) tally(event.target.form);
    if (event.target.id === "follow") { memory.set("runner-follow", event.target.checked ? "on" : "off"); shown(); }
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-in-place], .graph a");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", link.getAttribute("href"));
    target = location.hash.slice(1);
    refresh();
  });
  addEventListener("popstate", () => refresh());
  // A frame does not scroll to the focus in a drawing by itself.
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(".graph a:focus-visible")) centre(event.target, "auto");
  });
  localize(document);
  offerNotices();
  // A tap on a time shows it in full, with the reader's zone, and the next one as it was.
  document.addEventListener("click", (event) => {
    const item = event.target.closest("time[title]");
    if (item && !item.closest("a, summary")) [item.textContent, item.title] = [item.title, item.textContent];
  });
  all(document, ".graph").forEach(begin);
  const here = document.querySelector(".bar nav [aria-current]");
  if (here) here.parentNode.scrollLeft = here.offsetLeft - here.parentNode.offsetLeft + here.offsetWidth + 24 - here.parentNode.clientWidth;
  shown();

  // -- a call with changed arguments is approved with the changes, by a button that replaces the other one -------
  // A number written in another way is the same: 100,50 is 100.5. The server refuses 1,234, which could be two.
  const number = (text) => (text.length < 16 && /^\s*[-\u2212]?\d+(\.\d+|,(?!\d{3}\s*$)\d+)?\s*$/.test(text) ? Number(text.replace(",", ".").replace("\u2212", "-")) : text);
  const value = (item, text) => (item.dataset.number === undefined ? text : number(text));
  const differs = (item) => (item.type === "radio"
    ? item.checked !== (item.dataset.was === undefined ? item.defaultChecked : item.value === item.dataset.was)
    : value(item, item.value) !== value(item, item.dataset.was ?? item.defaultValue));
  // A reader whose language groups digits with dots means 1234 by 1.234, and it may be 1.2340.
  const isTwo = (item) => group === "." && /^\s*[-\u2212]?[1-9]\d{0,2}\.\d{3}\s*$/.test(item.value)
    && item.value.trim() !== (item.dataset.was ?? item.defaultValue);
  document.addEventListener("input", ({ target: item }) => {
    if (item.dataset.number === undefined) return;
    const text = item.value.trim();
    item.setCustomValidity(isTwo(item) ? `${text} could be two numbers: type ${text.replace(".", "")}, or ${text}0` : "");
  });
  function offer(form) {
    const [edit, approve] = ["edit", "approve"].map((word) => form?.querySelector(`.buttons [name=decision][value=${word}]`));
    if (!edit) return;
    const isChanged = all(form, ".changes [name]").some(differs);
    form.toggleAttribute("data-changed", isChanged);
    // After "Back", a browser has what was typed.
    if (isChanged) form.querySelector(".changes").open = true;
    if (!approve) return;
    edit.className = approve.className;
    edit.dataset.key = approve.dataset.key;
    for (const [button, isOffered] of [[edit, isChanged], [approve, !isChanged]]) button.hidden = button.disabled = !isOffered;
  }
  document.addEventListener("input", (event) => offer(event.target.form));
  // A typed amount stands beside its field with groups of digits and its currency, as a reader would write it.
  function spell(output) {
    const { elements } = output.closest("form"), name = output.dataset.amountOf, { value } = elements[name];
    const currency = elements[name.replace(/[^./]*$/, "currency")]?.value ?? "";
    output.textContent = value && !isTwo(elements[name]) && Number.isFinite(Number(number(value))) ? `${money(value.replace(",", ".").replace("\u2212", "-"))} ${currency}`.trimEnd() : "";
  }
  const spellAll = (root) => all(root, "[data-amount-of]").forEach(spell);
  document.addEventListener("input", (event) => event.target.form && spellAll(event.target.form));
  addEventListener("pageshow", () => spellAll(document));
  // The focus goes into an item that was added.
  document.querySelector("fieldset.added :is(input, textarea)")?.focus();
  addEventListener("pageshow", () => offer(document.getElementById("decide")));

  // -- JSON that is typed ------------------------------------------------------------------------------
  document.addEventListener("input", (event) => {
    if (!event.target.matches("textarea[data-json]")) return;
    let problem = "";
    if (event.target.value.trim() || event.target.required) try { JSON.parse(event.target.value); } catch (error) { problem = error.message; }
    event.target.setCustomValidity(problem && `This is not JSON: ${problem}`);
    event.target.setAttribute("aria-invalid", problem ? "true" : "false");
  });

  // -- passkeys: a button asks the authenticator, and sends its form with the result ------------------------
  const bytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  const base64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const credentials = (ids) => ids.map((id) => ({ type: "public-key", id: bytes(id) }));
  async function sign({ challenge, rp_id, credential, proof }) {
    const publicKey = { challenge: bytes(challenge), rpId: rp_id, allowCredentials: credentials([credential]), userVerification: "required" };
    const { response } = await navigator.credentials.get({ publicKey });
    return { ...proof, authenticator_data: base64(response.authenticatorData), client_data: base64(response.clientDataJSON), sig: base64(response.signature) };
  }
  async function register({ challenge, user, rp, exclude }) {
    const publicKey = {
      challenge: bytes(challenge), rp, user: { ...user, id: bytes(user.id) }, excludeCredentials: credentials(exclude), attestation: "none",
      pubKeyCredParams: [-8, -7].map((alg) => ({ type: "public-key", alg })), authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
    };
    const { response } = await navigator.credentials.create({ publicKey });
    return { authenticator_data: base64(response.getAuthenticatorData()), client_data: base64(response.clientDataJSON), public_key: base64(response.getPublicKey()) };
  }
  for (const button of window.PublicKeyCredential ? all(document, "button[data-passkey]") : []) {
    button.hidden = false;
    const form = button.form, options = JSON.parse(button.dataset.passkey);
    form.querySelector("[data-no-passkeys]").hidden = true;
    button.addEventListener("click", async () => {
      if (!form.reportValidity()) return;
      const problem = form.querySelector("[data-passkey-problem]");
      problem.textContent = "";
      button.disabled = true;
      try {
        form.elements.proof.value = JSON.stringify(await (options.proof ? sign : register)(options));
        form.requestSubmit();
      } catch (error) {
        const reasons = {
          NotAllowedError: "it was cancelled, took too long, or the device does not have it or did not recognize you",
          InvalidStateError: "this device has a key of yours already",
        };
        problem.textContent = `Nothing was sent, no passkey was used: ${reasons[error.name] ?? error.message}. Try again, or use another device.`;
      }
      button.disabled = false;
    });
  }

  // -- keys ----------------------------------------------------------------------------------------------
  const root = document.body.dataset.root;
  const toggle = document.getElementById("keys-on");
  toggle.checked = memory.get("runner-keys") !== "off";
  toggle.addEventListener("change", () => memory.set("runner-keys", toggle.checked ? "on" : "off"));
  let before = "";
  function move(step) {
    const rows = all(document, "tr[data-row]");
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.min(rows.length - 1, Math.max(0, now + step))];
    next.querySelector("th a, a, summary, button")?.focus();
  }
  // A key moves the focus to its control, and Enter presses that: one stroke decides nothing.
  function go(key) {
    const target = [...document.querySelectorAll(`[data-key="${key}"]`)].find((item) => !item.disabled);
    if (!target) return;
    for (let item = target.closest("details"); item; item = item.parentElement.closest("details")) item.open = true;
    target.focus();
    if (target.matches("button")) say(`Enter: ${target.textContent.trim()}`);
  }
  const follow = (rel) => document.querySelector(`#way [rel=${rel}]`)?.click();
  const pick = () => document.activeElement.closest("tr[data-row]")?.querySelector("input[type=checkbox]")?.click();
  document.addEventListener("keydown", (event) => {
    const inField = event.target.closest("input, textarea, select, [contenteditable]");
    if (!toggle.checked || inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = before === "g" ? `g${event.key}` : event.key;
    before = event.key === "g" && before !== "g" ? "g" : "";
    const acts = {
      j: () => move(1), k: () => move(-1), x: pick,
      a: () => go("a"), e: () => go("e"), r: () => go("r"), c: () => go("c"),
      n: () => follow("next"), p: () => follow("previous"),
      gi: () => location.assign(document.querySelector(".crumbs a[href*='/inbox?']")?.href ?? `${root}/inbox`), gr: () => location.assign(`${root}/runs`), gh: () => location.assign(`${root}/`),
      "/": () => {
        const search = document.getElementById("search");
        if (search?.closest("details")) search.closest("details").open = true;
        search?.focus();
      },
      "?": () => { const keys = document.querySelector(".keys"); keys.open = true; keys.querySelector("summary").focus(); },
    };
    if (acts[key]) { event.preventDefault(); acts[key](); }
  });
})();
