// One socket per page: follows the topics of all [data-live] elements and refreshes those that changed, by htmx.
// The page names the file: static files carry a hash in their names, which an import here would not know.
const { openSocket } = await import(document.getElementById("socket-module").href);

const REFRESH_MS = 250; // at most four refreshes a second
const POLL_MS = 30000; // while there is no socket

const mark = document.getElementById("live-mark");
const due = new Set();
let timer = null;
let connected = false;
let followed = new Set();

const parts = () => [...document.querySelectorAll("[data-live]")];
const topicsOf = (part) => part.dataset.live.split(" ").filter(Boolean);
const allTopics = () => [...new Set(parts().flatMap(topicsOf))];

function refreshSoon(topics) {
  for (const topic of topics) due.add(topic);
  timer ??= setTimeout(refresh, REFRESH_MS);
}

function refresh() {
  timer = null;
  // A question that is open is about what the page shows now: the answer comes first.
  if (document.querySelector("dialog[open]")) {
    timer = setTimeout(refresh, REFRESH_MS);
    return;
  }
  const topics = new Set(due);
  due.clear();
  for (const part of parts()) {
    if (topicsOf(part).some((topic) => topics.has(topic))) window.htmx.trigger(part, "refresh");
  }
}

function followNew() {
  const fresh = allTopics().filter((topic) => !followed.has(topic));
  if (fresh.length === 0) return;
  for (const topic of fresh) followed.add(topic);
  socket.send({ follow: fresh });
}

function showState(state) {
  connected = state === "live";
  if (!mark) return;
  mark.hidden = false;
  mark.textContent = connected ? mark.dataset.liveText : mark.dataset.againText;
  mark.classList.toggle("again", !connected);
}

let socket = null;
if (parts().length > 0) {
  socket = openSocket("/ws/topics/", {
    onOpen({ send }) {
      followed = new Set(allTopics());
      send({ follow: [...followed] });
    },
    onMessage(message) {
      if (message.changed) refreshSoon([message.changed]);
      // What changed while nobody listened, between the page or the drop and this moment, is read again.
      if (message.following) refreshSoon(message.following);
    },
    onState: showState,
  });
  setInterval(() => connected || refreshSoon(allTopics()), POLL_MS);
}

// What the reader opened or closed stays so when its part is replaced, and the keyboard stays where it was.
const opened = new Map();
let focused = null;

function placeOf(element) {
  const part = element?.closest("[data-live]");
  if (!part) return null;
  const all = [...part.querySelectorAll("a, button, summary, input")];
  const same = (other) => other.tagName === element.tagName && other.textContent.trim() === element.textContent.trim()
    && other.getAttribute("href") === element.getAttribute("href");
  return { id: part.id, same, nth: all.filter(same).indexOf(element) };
}

function focusAgain({ id, same, nth }) {
  const part = document.getElementById(id);
  if (!part || document.activeElement !== document.body) return;
  [...part.querySelectorAll("a, button, summary, input")].filter(same)[nth]?.focus({ preventScroll: true });
}

document.addEventListener("htmx:beforeSwap", (event) => {
  // A signed-out session answers with the sign-in page: show that, not inside a part.
  if (event.detail.xhr.responseURL.includes("/accounts/sign-in/")) {
    event.detail.shouldSwap = false;
    location.reload();
    return;
  }
  opened.clear();
  focused = placeOf(document.activeElement);
  for (const details of document.querySelectorAll("details[id]")) opened.set(details.id, details.open);
});
document.addEventListener("htmx:afterSettle", () => {
  for (const [id, isOpen] of opened) document.getElementById(id)?.toggleAttribute("open", isOpen);
  if (focused) focusAgain(focused);
  if (socket && connected) followNew();
  document.dispatchEvent(new CustomEvent("part-refreshed"));
});
