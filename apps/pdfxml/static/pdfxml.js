// Reload the queue every two seconds while the page is visible. The page also works without it.
const EVERY = 2000;

async function renew() {
  const old = document.querySelector("[data-live]");
  if (!old || document.hidden || old.contains(document.activeElement)) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
  if (fresh && fresh.innerHTML !== old.innerHTML) old.replaceChildren(...fresh.childNodes);
}

if (document.querySelector("[data-live]")) setInterval(renew, EVERY);
