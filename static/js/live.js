// One socket per page: follows the topics of all [data-live] elements and refreshes those that changed, by htmx.
import { openSocket } from "./socket.js";

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

// What the reader opened stays open when its part is replaced, and the keyboard stays where it was.
const open = new Set();
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
  open.clear();
  focused = placeOf(document.activeElement);
  for (const details of document.querySelectorAll("details[id][open]")) open.add(details.id);
});
document.addEventListener("htmx:afterSettle", () => {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) focusAgain(focused);
  if (socket && connected) followNew();
  document.dispatchEvent(new CustomEvent("part-refreshed"));
});
