"use strict";
// Every two seconds the same page is read again and its <main> put in place of the old one.
// Not while the tab is hidden, and not under somebody's selection.
const EVERY = 2000;
const pulse = document.getElementById("pulse");

async function look() {
  const selecting = String(getSelection()) !== "";
  if (document.hidden || selecting) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) throw new Error("not our page");
    const old = document.getElementById("live");
    const at = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceWith(document.adoptNode(fresh));
    if (at) fresh.querySelector(`a[href="${CSS.escape(at)}"]`)?.focus({ preventScroll: true });
    show(answer.status < 500 ? "live" : "away");
  } catch {
    show("away");
  }
}

function show(state) {
  if (pulse.textContent !== pulse.dataset[state]) pulse.textContent = pulse.dataset[state];
  pulse.className = state;
}

async function again() {
  await look();
  setTimeout(again, EVERY);
}

show("live");
setTimeout(again, EVERY);
