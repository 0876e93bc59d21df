"use strict";
// Enhancements of lists. Lists also work without them.
//  copy      buttons with data-copy
//  select    a box that ticks all rows, and the number of ticked ones
//  complete  fields and values below the search box
//  views     addresses of lists that this browser remembers by a name
const root = document.body.dataset.root;

function showCopyButtons() {
  if (navigator.clipboard) for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}

async function copy(button) {
  await navigator.clipboard.writeText(button.dataset.copy);
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
}

const boxes = (form) => [...form.querySelectorAll("input[name=id]")];

function countSelected(form) {
  const label = form.querySelector("[data-selected]");
  if (!label) return;
  const all = boxes(form), n = all.filter((box) => box.checked).length;
  const text = n ? `${n} selected:` : "With selected:";
  if (label.textContent !== text) label.textContent = text;  // a change would call the observer again
  for (const master of form.querySelectorAll("[data-all]")) {
    master.hidden = false;
    master.checked = n === all.length;
    master.indeterminate = n > 0 && n < all.length;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button);
});

document.addEventListener("change", (event) => {
  const form = event.target.form;
  if (!form || event.target.type !== "checkbox") return;
  if ("all" in event.target.dataset) for (const box of boxes(form)) box.checked = event.target.checked;
  countSelected(form);
});

// --- Complete ---
const box = document.getElementById("search");
let options = [], chosen = -1, asked = 0;
const list = document.createElement("ul");
list.id = "completions";
list.setAttribute("role", "listbox");
list.setAttribute("aria-label", "Completions");
list.hidden = true;

function showOptions(found) {
  options = found;
  chosen = -1;
  list.hidden = !found.length;
  box.setAttribute("aria-expanded", String(!list.hidden));
  box.removeAttribute("aria-activedescendant");
  list.replaceChildren(...found.map((one, place) => {
    const item = document.createElement("li"), what = document.createElement("span");
    item.id = `completion-${place}`;
    item.setAttribute("role", "option");
    item.textContent = one.label;
    what.className = "minor";
    what.textContent = ` ${one.what}`;
    item.append(what);
    item.addEventListener("mousedown", (event) => { event.preventDefault(); take(place); });
    return item;
  }));
}

function choose(place) {
  chosen = (place + options.length) % options.length;
  for (const [at, item] of [...list.children].entries()) item.setAttribute("aria-selected", String(at === chosen));
  box.setAttribute("aria-activedescendant", `completion-${chosen}`);
}

function take(place) {
  box.value = options[place].text;
  showOptions([]);
  complete();
}

async function complete() {
  const turn = ++asked;
  if (!box.value.trim()) return showOptions([]);
  try {
    const answer = await fetch(`${root}/search?text=${encodeURIComponent(box.value.trimStart())}`, { headers: { accept: "application/json" } });
    if (turn === asked && document.activeElement === box) showOptions(answer.ok ? await answer.json() : []);
  } catch { showOptions([]); }
}

if (box) {
  box.after(list);
  for (const [name, value] of [["role", "combobox"], ["aria-controls", list.id], ["aria-expanded", "false"], ["aria-autocomplete", "list"]]) box.setAttribute(name, value);
  let timer = 0;
  box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(complete, 120); });
  box.addEventListener("blur", () => showOptions([]));
  box.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) take(chosen);
    else if (event.key === "Escape") showOptions([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

// --- Views ---
const VIEWS = "mulligan-views";
const readViews = () => JSON.parse(localStorage.getItem(VIEWS) ?? "{}");

function showViews() {
  for (const place of document.querySelectorAll("[data-views][hidden]")) {
    place.hidden = false;
    const links = Object.entries(readViews()).map(([name, address]) => {
      const item = document.createElement("span"), link = document.createElement("a"), remove = document.createElement("button");
      item.className = "chip";
      link.href = address;
      link.textContent = name;
      remove.type = "button";
      remove.className = "bare";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove the view ${name}`);
      remove.dataset.removeView = name;
      item.append(link, remove);
      return item;
    });
    place.prepend(...links);
  }
}

function changeViews(change) {
  const views = readViews();
  change(views);
  localStorage.setItem(VIEWS, JSON.stringify(views));
  for (const place of document.querySelectorAll("[data-views]")) {
    for (const item of place.querySelectorAll(".chip")) item.remove();
    place.hidden = true;
  }
  showViews();
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-save-view]")) changeViews((views) => { views[box?.value.trim() || "all jobs"] = location.pathname + location.search; });
  const name = event.target.dataset?.removeView;
  if (name) changeViews((views) => { delete views[name]; });
});

function enhance() {  // a live refresh brings hidden buttons and an old count
  showCopyButtons();
  showViews();
  for (const form of document.querySelectorAll("form:has([data-all])")) countSelected(form);
}

enhance();
new MutationObserver(enhance)
  .observe(document.body, { childList: true, subtree: true });
