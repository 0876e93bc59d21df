"use strict";
// Enhancements of the pages. Everything also works without JavaScript, with links and forms.
//  live    reload the page's content when events arrive, without disturbing the reader
//  keys    / ? j k x r . t and g followed by a letter
//  theme   system, light or dark, stored in a cookie
const root = document.body.dataset.root;
const pulse = document.getElementById("pulse");
const main = () => document.getElementById("live");
const POLL = 2000;     // ms between reloads without an event stream
const BURST = 700;     // ms: a burst of events causes one reload
const REFRESH = 15000; // ms between reloads with an event stream, to update relative times

// --- Live ---
let paused = false, reloading = false, reloadWanted = false, streaming = false, pending = false;
let timer = 0;

function show(state) {
  if (pulse.textContent !== pulse.dataset[state]) pulse.textContent = pulse.dataset[state];
  pulse.className = state;
}

function isBusy() {
  const at = document.activeElement;
  const typing = at && main().contains(at) && at.matches("input:not([type=checkbox]), select, textarea");
  return paused || "still" in document.body.dataset || document.hidden || typing || String(getSelection()) !== "" || document.querySelector("dialog[open]");
}

async function reload() {
  if (isBusy() || reloading) { reloadWanted = true; return; }
  reloading = true; reloadWanted = false;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html", "x-mulligan-live": "1" } });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh || isBusy()) { reloadWanted = true; return; }
    copyState(fresh);
    const old = main(), at = old.querySelector("tr[data-at] a")?.href;
    if (window.htmx) window.htmx.swap({ target: "#live", swap: "outerMorph", text: fresh.outerHTML });
    else old.replaceWith(document.adoptNode(fresh));
    if (at) mark(rows().find((row) => row.querySelector("a")?.href === at));
    show(paused ? "paused" : response.status < 500 ? "live" : "away");
  } catch { show("away"); } finally { reloading = false; }
}

function copyState(fresh) {  // keep opened details and ticked boxes
  for (const box of main().querySelectorAll("input[type=checkbox]:checked")) {
    fresh.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  }
  for (const open of main().querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
}

function schedule(wait) { clearTimeout(timer); timer = setTimeout(reloadAndSchedule, wait); }
async function reloadAndSchedule() { pending = false; await reload(); schedule(pending ? BURST : streaming ? REFRESH : POLL); }

function followEvents() {
  const { stream: address, events } = document.body.dataset;
  if (!address || !window.EventSource) return;
  const stream = new EventSource(address);
  stream.onopen = () => { streaming = true; };
  for (const type of events.split(" ")) stream.addEventListener(type, () => { if (!pending) schedule(BURST); pending = true; });
  stream.onerror = () => { streaming = false; schedule(POLL); };
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && reloadWanted) schedule(50); });
document.addEventListener("selectionchange", () => { if (reloadWanted && String(getSelection()) === "") schedule(BURST); });

// --- Rows ---
const rows = () => [...main().querySelectorAll("table[data-rows] > tbody > tr")];
const markedIndex = () => rows().findIndex((row) => row.hasAttribute("data-at"));

function mark(row) {
  for (const one of rows()) one.removeAttribute("data-at");
  if (!row) return;
  row.setAttribute("data-at", "");
  row.scrollIntoView({ block: "nearest" });
}

function moveMark(by) {
  const all = rows();
  if (all.length) mark(all[Math.min(all.length - 1, Math.max(0, markedIndex() + by))]);
}

const marked = () => rows()[markedIndex()];
const GO = { o: "/", f: "/failures", j: "/jobs", b: "/batches", q: "/queues", d: "/dependencies" };
let goPressed = false;

const KEYS = {
  "/": () => { document.getElementById("search")?.focus(); document.getElementById("search")?.select(); },
  "?": () => document.getElementById("keys").showModal(),
  j: () => moveMark(1),
  k: () => moveMark(markedIndex() < 0 ? 1 : -1),
  Enter: () => marked()?.querySelector("a")?.click(),
  x: () => marked()?.querySelector("input[type=checkbox]")?.click(),
  r: () => (marked()?.querySelector("[data-key=r]") ?? main().querySelector("[data-key=r]"))?.click(),
  g: () => { goPressed = true; setTimeout(() => { goPressed = false; }, 1200); },
  ".": () => { paused = !paused; show(paused ? "paused" : "live"); if (!paused) schedule(50); },
  t: () => nextTheme(),
};

document.addEventListener("keydown", (event) => {
  // A dialog that has just closed keeps the focus until the next frame.
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, dialog[open]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (goPressed && GO[event.key]) { location.href = root + GO[event.key]; return; }
  const act = KEYS[event.key];
  if (!act || (event.key === "Enter" && event.target !== document.body)) return;
  event.preventDefault();
  act();
});

// --- Theme, help, menu ---
const THEMES = ["system", "light", "dark"];
const theme = document.getElementById("theme");

function applyTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.textContent = `◐ ${name}`;
  theme.setAttribute("aria-label", `Theme: ${name}`);
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  document.cookie = `mulligan_theme=${next}; path=${root || "/"}; max-age=31536000; samesite=lax`;
  applyTheme(next);
}

theme.hidden = false;
theme.addEventListener("click", nextTheme);
applyTheme(document.documentElement.dataset.theme ?? "system");
const help = document.getElementById("help");
help.hidden = false;
help.addEventListener("click", KEYS["?"]);
if (matchMedia("(max-width: 56rem)").matches) document.querySelector(".rail details")?.removeAttribute("open");

show("live");
followEvents();
schedule(POLL);
