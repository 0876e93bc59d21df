// Update the rows from the event stream. Parts shown only after a failure exist from the start, hidden.
const table = document.querySelector("[data-events]");
const rows = new Map([...table.querySelectorAll("[data-token-id]")].map((row) => [row.dataset.tokenId, row]));

function show(row, status, percent) {
  const badge = row.querySelector(".status-badge");
  badge.textContent = status === "PROCESSING" ? `PROCESSING (${percent}%)` : status;
  badge.className = `status-badge status-${status.toLowerCase()}`;
  for (const part of row.querySelectorAll(".error, .retry-form")) part.hidden = status !== "FAILED";
}

const source = new EventSource(table.dataset.events);

source.addEventListener("token_failed", (event) => {
  const data = JSON.parse(event.data);
  const row = rows.get(data.token_id);
  if (!row) return;
  show(row, "FAILED");
  row.querySelector(".error-details").textContent = data.error;
});

source.addEventListener("token", (event) => {
  const data = JSON.parse(event.data);
  const row = rows.get(data.token_id);
  if (!row) return;
  show(row, data.status, data.percent);
  row.querySelector(".error-details").textContent = data.status === "FAILED" ? data.error : "";
  const count = row.querySelector(".retry-count");
  count.hidden = !data.retry_count;
  count.textContent = data.retry_count ? `${data.retry_count}/${data.max_retries}` : "";
});

source.addEventListener("token_progress", (event) => {
  const data = JSON.parse(event.data);
  const row = rows.get(data.token_id);
  if (row?.querySelector(".status-processing")) show(row, "PROCESSING", data.percent);
});

source.addEventListener("campaign", (event) => {
  const data = JSON.parse(event.data);
  const badge = document.querySelector(".campaign-state");
  badge.textContent = data.state;
  badge.className = `badge campaign-state state-${data.state.toLowerCase()}`;
  document.querySelector(".banner").hidden = !["PARTIAL", "FAILED"].includes(data.state);
  document.querySelector(".failed-count").textContent = data.counts.failed;
  document.querySelector(".completed-count").textContent = data.counts.completed;
});
