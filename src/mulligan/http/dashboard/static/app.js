"use strict";
// Enhancements of the pages. Everything also works without JavaScript, with links and forms.
//  live    reload the page's content when events arrive, without disturbing the reader
//  times   shown in the browser's time zone or in UTC, stored in a cookie
//  keys    / Ctrl-K ? j k x r . t u and g followed by a letter
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
  if (!pulse) return;
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
    updateCounts(page);
    showTimes();
    if (at) mark(rows().find((row) => row.querySelector("a")?.href === at));
    show(paused ? "paused" : response.status < 500 ? "live" : "away");
  } catch { show("away"); } finally { reloading = false; }
}

function copyState(fresh) {  // keep the message of the last action, opened details and ticked boxes
  const flash = main().querySelector(".flash");
  if (flash && !fresh.querySelector(".flash")) fresh.prepend(flash.cloneNode(true));
  for (const box of main().querySelectorAll("input[type=checkbox]:checked")) {
    fresh.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  }
  const freshDetails = fresh.querySelectorAll("details");
  for (const [place, one] of main().querySelectorAll("details").entries()) {
    if (one.open) (one.id ? fresh.querySelector(`#${CSS.escape(one.id)}`) : freshDetails[place])?.setAttribute("open", "");
  }
}

function updateCounts(page) {  // the numbers in the menu
  for (const count of document.querySelectorAll(".rail [data-count]")) {
    const fresh = page.querySelector(`.rail [data-count="${count.dataset.count}"]`);
    if (fresh && fresh.innerHTML !== count.innerHTML) count.innerHTML = fresh.innerHTML;
  }
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

// --- Times ---
// The server writes UTC. `data-form` says how the text of a time is written; other times are relative.
const clock = document.getElementById("clock");
const DAY = { year: "numeric", month: "2-digit", day: "2-digit" };
const MINUTE = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const FORMS = { full: { ...DAY, ...MINUTE, second: "2-digit" }, minute: MINUTE, day: { weekday: "short", day: "numeric", month: "short" }, date: { weekday: "short", day: "numeric", month: "short", ...MINUTE } };
const LOCALE = { full: "sv-SE", minute: "en-GB", day: "en-GB", date: "en-GB" };

function isUtc() { return document.documentElement.dataset.clock === "utc"; }

function formatTime(at, form) {
  const options = { ...FORMS[form], timeZone: isUtc() ? "UTC" : undefined };
  return new Intl.DateTimeFormat(LOCALE[form], options).format(at);
}

function zoneName(at) {
  if (isUtc()) return "UTC";
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(at);
  return parts.find((part) => part.type === "timeZoneName").value;
}

function showTimes() {
  for (const text of document.querySelectorAll("text[data-at]")) text.textContent = formatTime(new Date(text.dataset.at), text.dataset.form);
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime), form = time.dataset.form;
    if (Number.isNaN(at.getTime())) continue;
    const title = `${formatTime(at, "full")} ${zoneName(at)}`;
    if (time.title !== title) time.title = title;
    if (!form) continue;
    const text = form === "full" ? title : formatTime(at, form);
    if (time.textContent !== text) time.textContent = text;
  }
  if (clock) clock.textContent = isUtc() ? "UTC" : "Local time";
}

function switchClock() {
  const next = isUtc() ? "local" : "utc";
  document.documentElement.dataset.clock = next;
  remember("mulligan_clock", next);
  showTimes();
}

function remember(name, value) {
  document.cookie = `${name}=${value}; path=${root || "/"}; max-age=31536000; samesite=lax`;
}

// --- Charts: a card with the numbers of the column under the pointer ---
const card = document.createElement("div");
card.className = "pointer-card";
card.hidden = true;
document.body.append(card);

function fillCard(column) {
  const { card: label, at, values } = column.dataset;
  const head = document.createElement("p");
  head.textContent = at ? formatTime(new Date(at), "date") : label;
  const lines = values.split(";").map((value) => {
    const line = document.createElement("p"), key = document.createElement("span"), number = document.createElement("span");
    const [tone, n] = value.split(" ");
    key.className = `key ${tone}`;
    key.textContent = tone;
    number.textContent = Number(n).toLocaleString("en");
    line.append(key, number);
    return line;
  });
  card.replaceChildren(head, ...lines);
}

document.addEventListener("pointermove", (event) => {
  const column = event.target.closest?.("[data-card]");
  card.hidden = !column;
  if (!column) return;
  column.querySelector("title")?.remove();  // or the browser shows the same numbers again
  fillCard(column);
  const beyond = event.clientX + card.offsetWidth + 24 > innerWidth;
  card.style.left = `${event.clientX + (beyond ? -card.offsetWidth - 14 : 14)}px`;
  card.style.top = `${event.clientY + 14}px`;
});

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

function retryMarked() {  // the selected rows, else the marked row, else the job of this page
  const box = marked()?.querySelector("input[type=checkbox]");
  if (box && !main().querySelector("input[type=checkbox]:checked")) box.checked = true;
  const own = marked()?.querySelector("[data-key=r]");
  if (own || box || !rows().some((row) => row.querySelector("input[type=checkbox]"))) (own ?? main().querySelector("[data-key=r]"))?.click();
}

const KEYS = {
  "/": () => { document.getElementById("search")?.focus(); document.getElementById("search")?.select(); },
  "?": () => document.getElementById("keys").showModal(),
  j: () => moveMark(1),
  k: () => moveMark(markedIndex() < 0 ? 1 : -1),
  Enter: () => marked()?.querySelector("a")?.click(),
  x: () => marked()?.querySelector("input[type=checkbox]")?.click(),
  r: retryMarked,
  g: () => { goPressed = true; setTimeout(() => { goPressed = false; }, 1200); },
  ".": () => { paused = !paused; show(paused ? "paused" : "live"); if (!paused) schedule(50); },
  t: () => nextTheme(),
  u: () => switchClock(),
};

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && document.getElementById("search")) {
    event.preventDefault();
    KEYS["/"]();
    return;
  }
  if (event.key === "Escape") closeMenus(null);
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
  if (theme) theme.textContent = `Theme: ${name}`;
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  remember("mulligan_theme", next);
  applyTheme(next);
}

// An open menu closes with Escape (the focus returns to its button) and with a click elsewhere.
function closeMenus(target) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (target && menu.contains(target)) continue;
    if (!target && menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}

document.addEventListener("click", (event) => closeMenus(event.target));
const BUTTONS = { theme: nextTheme, help: KEYS["?"], clock: switchClock };
for (const [id, act] of Object.entries(BUTTONS)) {
  const button = document.getElementById(id);
  if (!button) continue;
  button.hidden = false;
  button.addEventListener("click", act);
}
applyTheme(document.documentElement.dataset.theme ?? "system");
showTimes();
if (matchMedia("(max-width: 56rem)").matches) document.querySelector(".rail > details")?.removeAttribute("open");

show("live");
followEvents();
schedule(POLL);
