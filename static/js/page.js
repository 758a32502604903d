// Small things of every page: ages that keep counting, copy buttons, selects that submit their form.
function inWords(seconds, moment) {
  if (seconds < 2) return "now";
  if (seconds < 90) return `${Math.floor(seconds)} s ago`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return moment.toISOString().slice(0, 10);
}

// The server's words are kept in other languages: only the English ones are counted on here.
if (document.documentElement.lang.startsWith("en")) {
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-age]")) {
      const moment = new Date(time.dateTime);
      time.textContent = inWords((Date.now() - moment) / 1000, moment);
    }
  }, 5000);
}

function showCopyButtons() {
  for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = !navigator.clipboard;
}
showCopyButtons();
document.addEventListener("part-refreshed", showCopyButtons);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  const before = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => (button.textContent = before), 1500);
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
});

for (const button of document.querySelectorAll("[data-without-script]")) button.hidden = true;
