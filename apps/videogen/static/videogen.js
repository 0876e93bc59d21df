// A client of the API. The key follows # in the address.
const $ = id => document.getElementById(id);
if (location.hash.length > 1) {
  sessionStorage.setItem("key", location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}

async function ask(method, path, body) {
  const headers = {Authorization: `Bearer ${sessionStorage.getItem("key") || ""}`};
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {method, headers, body: body && JSON.stringify(body)});
  $("sign-in").hidden = answer.status !== 401;
  if (answer.ok) return answer;
  throw new Error((await answer.json()).error.message);
}

function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const place = line.insertCell();
    place.append(...[cell].flat());
    if (typeof cell === "string") place.className = cell;
  }
  return line;
}

function small(text) {
  const element = document.createElement("small");
  element.textContent = text;
  return element;
}

function button(text, act) {
  const element = document.createElement("button");
  element.textContent = text;
  element.onclick = () => act().then(show).catch(error => { $("message").textContent = error.message; });
  return element;
}

async function watch(task) {
  const video = $("video");
  URL.revokeObjectURL(video.src);
  video.src = URL.createObjectURL(await (await ask("GET", task.video)).blob());
  video.hidden = false;
  video.scrollIntoView({block: "nearest"});
  await video.play().catch(() => {});
}

function happened(task) {
  if (task.error) {
    const more = task.nextRetryAt ? `next attempt at ${task.nextRetryAt.slice(11, 19)} UTC`
      : task.estimatedChance ? `similar tasks that succeeded at the next attempt: ${shareText(task.estimatedChance)}` : "";
    return [task.errorCode && task.status === "failed" ? `${task.errorCode}: ${task.error}` : task.error,
            document.createElement("br"), small(more)];
  }
  return task.status === "running" && task.progress ? [`${Math.round(task.progress * 100)} %`] : [""];
}

function next(task) {
  const path = `/v1/videos/generations/tasks/${task.taskId}`;
  if (task.status === "failed") return [button("Retry", () => ask("POST", `${path}/retry`)), " ", button("Archive", () => ask("DELETE", path))];
  if (task.status === "succeeded") return [button("Watch", () => watch(task))];
  return [button("Archive", () => ask("DELETE", path))];
}

function shareText({share, low, high, succeeded, of, enough}) {
  if (!of) return "–";
  const counted = `${succeeded} of ${of}`;
  return enough ? `${percent(share)} (${counted}; 95 % interval ${percent(low)} to ${percent(high)})` : `${counted}, too few to say`;
}

const percent = share => share === null ? "–" : `${Math.round(share * 100)} %`;

let mayReport = true;

async function show() {
  const {data} = await (await ask("GET", "/v1/videos/generations/tasks?limit=30")).json();
  $("tasks").hidden = !data.length;
  $("none").hidden = data.length > 0;
  $("tasks").tBodies[0].replaceChildren(...data.map(task => row([
    [task.prompt, document.createElement("br"), small(`${task.model} · ${task.createdAt.slice(11, 19)}`)],
    task.status, [`${task.retryCount} of ${task.maxRetries}`], happened(task), [task.cost.toFixed(2)], next(task)])));
  const report = mayReport ? await ask("GET", "/v1/videos/report").catch(() => null) : null;
  mayReport = Boolean(report);  // the key of one owner may not: ask once
  $("report").hidden = !report;
  if (report) $("report").tBodies[0].replaceChildren(...(await report.json()).data.map(one => row([
    [one.provider], one.state, [`${one.tasks}`], [percent(one.failureRate)], [shareText(one.retrySuccess)],
    [one.attemptsPerTask === null ? "–" : one.attemptsPerTask.toFixed(2)], [one.retryCost.toFixed(2)]])));
}

$("new").onsubmit = async event => {
  event.preventDefault();
  const form = new FormData($("new"));
  try {
    await ask("POST", "/v1/videos/generations", {model: form.get("model"), prompt: form.get("prompt")});
    $("message").textContent = "";
  } catch (error) { $("message").textContent = error.message; }
  await show().catch(() => {});
};
$("sign-in").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("key", new FormData($("sign-in")).get("key").trim());
  mayReport = true;
  show().catch(() => {});
};
show().catch(error => { $("message").textContent = error.message; });
setInterval(() => { if (!document.hidden && $("sign-in").hidden) show().catch(() => {}); }, 2000);
