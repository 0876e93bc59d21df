"use strict";
// What the pages do better with JavaScript than without it: they all work as plain links and forms.
//  live    the same page is read again when something happened, and put in place without disturbing the reader
//  keys    / ? j k x r . t and g followed by a letter
//  theme   system, light or dark, remembered
const root = document.body.dataset.root;
const pulse = document.getElementById("pulse");
const main = () => document.getElementById("live");
const EVERY = 2000;    // ms between looks while no stream tells of changes
const QUIETLY = 700;   // ms: a burst of events is one look
const SLOWLY = 15000;  // ms between looks while a stream is there: relative times grow old

// -- live ------------------------------------------------------------------------------------------
let paused = false, looking = false, wanted = false, streaming = false, pending = false, timer = 0;

function show(state) {
  if (pulse.textContent !== pulse.dataset[state]) pulse.textContent = pulse.dataset[state];
  pulse.className = state;
}

function disturbs() {
  const at = document.activeElement;
  const typing = at && main().contains(at) && at.matches("input:not([type=checkbox]), select, textarea");
  return paused || "still" in document.body.dataset || document.hidden || typing || String(getSelection()) !== "" || document.querySelector("dialog[open]");
}

async function look() {
  if (disturbs() || looking) { wanted = true; return; }
  looking = true; wanted = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "x-mulligan-live": "1" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh || disturbs()) { wanted = true; return; }
    keep(fresh);
    const old = main(), at = old.querySelector("tr[data-at] a")?.href;
    if (window.htmx) window.htmx.swap({ target: "#live", swap: "outerMorph", text: fresh.outerHTML });
    else old.replaceWith(document.adoptNode(fresh));
    if (at) mark(rows().find((row) => row.querySelector("a")?.href === at));
    show(paused ? "paused" : answer.status < 500 ? "live" : "away");
  } catch { show("away"); } finally { looking = false; }
}

function keep(fresh) {  // what the reader has opened and chosen stays so
  for (const box of main().querySelectorAll("input[type=checkbox]:checked")) {
    fresh.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  }
  for (const open of main().querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
}

function soon(wait) { clearTimeout(timer); timer = setTimeout(again, wait); }
async function again() { pending = false; await look(); soon(pending ? QUIETLY : streaming ? SLOWLY : EVERY); }

function listen() {
  const { stream: address, events } = document.body.dataset;
  if (!address || !window.EventSource) return;
  const stream = new EventSource(address);
  stream.onopen = () => { streaming = true; };
  for (const type of events.split(" ")) stream.addEventListener(type, () => { if (!pending) soon(QUIETLY); pending = true; });
  stream.onerror = () => { streaming = false; soon(EVERY); };
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted) soon(50); });
document.addEventListener("selectionchange", () => { if (wanted && String(getSelection()) === "") soon(QUIETLY); });

// -- rows ------------------------------------------------------------------------------------------
const rows = () => [...main().querySelectorAll("table[data-rows] > tbody > tr")];
const here = () => rows().findIndex((row) => row.hasAttribute("data-at"));

function mark(row) {
  for (const one of rows()) one.removeAttribute("data-at");
  if (!row) return;
  row.setAttribute("data-at", "");
  row.scrollIntoView({ block: "nearest" });
}

function step(by) {
  const all = rows();
  if (all.length) mark(all[Math.min(all.length - 1, Math.max(0, here() + by))]);
}

const marked = () => rows()[here()];
const GO = { o: "/", f: "/failures", j: "/jobs", b: "/batches", q: "/queues", d: "/dependencies" };
let going = false;

const KEYS = {
  "/": () => { document.getElementById("search")?.focus(); document.getElementById("search")?.select(); },
  "?": () => document.getElementById("keys").showModal(),
  j: () => step(1),
  k: () => step(here() < 0 ? 1 : -1),
  Enter: () => marked()?.querySelector("a")?.click(),
  x: () => marked()?.querySelector("input[type=checkbox]")?.click(),
  r: () => (marked()?.querySelector("[data-key=r]") ?? main().querySelector("[data-key=r]"))?.click(),
  g: () => { going = true; setTimeout(() => { going = false; }, 1200); },
  ".": () => { paused = !paused; show(paused ? "paused" : "live"); if (!paused) soon(50); },
  t: () => turn(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (going && GO[event.key]) { location.href = root + GO[event.key]; return; }
  const act = KEYS[event.key];
  if (!act || (event.key === "Enter" && event.target !== document.body)) return;
  event.preventDefault();
  act();
});

// -- theme, help, menu -----------------------------------------------------------------------------
const THEMES = ["system", "light", "dark"];
const theme = document.getElementById("theme");

function dress(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.textContent = `◐ ${name}`;
  theme.setAttribute("aria-label", `Theme: ${name}`);
}

function turn() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  document.cookie = `mulligan_theme=${next}; path=${root || "/"}; max-age=31536000; samesite=lax`;
  dress(next);
}

theme.hidden = false;
theme.addEventListener("click", turn);
dress(document.documentElement.dataset.theme ?? "system");
const help = document.getElementById("help");
help.hidden = false;
help.addEventListener("click", KEYS["?"]);
if (matchMedia("(max-width: 56rem)").matches) document.querySelector(".rail details")?.removeAttribute("open");

show("live");
listen();
soon(EVERY);
