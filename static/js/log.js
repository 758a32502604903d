// The live log: lines by number from one socket, a ring of the newest, follow until the reader scrolls up.
// The page names the file: static files carry a hash in their names, which an import here would not know.
const { openSocket } = await import(document.getElementById("socket-module").href);

const MOST_LINES = 5000;
const BEFORE_TARGET = 200;
const NEAR_END_PX = 40;

function startLog(root) {
  const list = root.querySelector(".log-lines");
  const told = root.querySelector(".log-told");
  const newest = root.querySelector(".log-newest");
  const filter = root.querySelector("[data-log-filter]");
  let next = Number(list.dataset.first);
  let total = Number(list.dataset.total);
  let follow = true;
  let word = "";
  let pending = [];
  let frame = null;

  const wanted = /^#L(\d+)$/.exec(location.hash);
  if (wanted) {
    follow = false;
    next = Math.max(1, Number(wanted[1]) - BEFORE_TARGET);
  }

  function makeLine([number, text, level, noise]) {
    const line = document.createElement("li");
    line.id = `L${number}`;
    if (level) line.classList.add(`level-${level}`);
    if (noise) {
      line.classList.add("noise");
      line.title = noise;
    }
    if (word && !text.toLowerCase().includes(word)) line.classList.add("filtered");
    const anchor = document.createElement("a");
    anchor.href = `#L${number}`;
    anchor.textContent = number;
    const content = document.createElement("span");
    content.textContent = text;
    line.append(anchor, content);
    return line;
  }

  function draw() {
    frame = null;
    const fresh = pending.slice(-MOST_LINES);
    pending = [];
    const piece = document.createDocumentFragment();
    for (const line of fresh) piece.append(makeLine(line));
    list.append(piece);
    // While someone reads further up, lines above them stay; the ring closes when they follow again.
    const most = follow ? MOST_LINES : MOST_LINES * 2;
    while (list.childElementCount > most) list.firstElementChild.remove();
    if (follow) list.scrollTop = list.scrollHeight;
    tell();
  }

  function tell() {
    told.textContent = told.dataset.text.replace("{shown}", list.childElementCount.toLocaleString("en"))
      .replace("{total}", total.toLocaleString("en"));
    newest.hidden = follow;
  }

  function take(message) {
    for (const line of message.lines) {
      if (line[0] < next) continue; // already here: nothing twice
      next = line[0] + 1;
      pending.push(line);
    }
    total = Math.max(total, message.total);
    frame ??= requestAnimationFrame(draw);
  }

  let cleared = false;
  openSocket(root.dataset.socket, {
    onOpen({ send }) {
      if (!cleared) {
        // The lines the server rendered come again from the socket, from the same number.
        list.replaceChildren();
        cleared = true;
      }
      send({ from: next });
    },
    onMessage(message) {
      take(message);
      if (wanted && !root.dataset.shown) showTarget();
    },
    onState(state) {
      root.classList.toggle("log-away", state !== "live");
    },
  });

  function showTarget() {
    requestAnimationFrame(() => {
      const line = document.getElementById(`L${wanted[1]}`);
      if (!line) return;
      root.dataset.shown = "yes";
      line.classList.add("marked");
      line.scrollIntoView({ block: "center" });
    });
  }

  list.addEventListener("scroll", () => {
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
    if (atEnd !== follow) {
      follow = atEnd;
      tell();
    }
  });
  newest.addEventListener("click", () => {
    follow = true;
    list.scrollTop = list.scrollHeight;
    tell();
  });
  filter.addEventListener("input", () => {
    word = filter.value.trim().toLowerCase();
    for (const line of list.children) {
      line.classList.toggle("filtered", Boolean(word) && !line.lastElementChild.textContent.toLowerCase().includes(word));
    }
    if (follow) list.scrollTop = list.scrollHeight;
  });
  for (const [name, value] of [["fold", true], ["wrap", false]]) {
    const box = root.querySelector(`[data-log-${name}]`);
    box.checked = value;
    list.classList.toggle(name, value);
    box.addEventListener("change", () => {
      list.classList.toggle(name, box.checked);
      if (follow) list.scrollTop = list.scrollHeight;
    });
  }
  root.querySelector(".log-controls").hidden = false;
  if (follow) list.scrollTop = list.scrollHeight;
  tell();
}

for (const root of document.querySelectorAll("[data-log]")) startLog(root);
