// A socket that comes back: jittered, growing pauses; refused for good on 4401, 4403 and 4404.
const REFUSED = new Set([4401, 4403, 4404]);
const LONGEST_PAUSE_MS = 15000;

export function openSocket(path, { onOpen, onMessage, onState }) {
  let socket = null;
  let tries = 0;
  let timer = null;
  let ended = false;

  function connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}${path}`);
    socket.addEventListener("open", () => {
      const again = tries > 0;
      tries = 0;
      onState?.("live");
      onOpen?.({ again, send: (value) => socket.send(JSON.stringify(value)) });
    });
    socket.addEventListener("message", (event) => onMessage?.(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      if (ended) return;
      onState?.(REFUSED.has(event.code) ? "refused" : "again");
      if (REFUSED.has(event.code)) return;
      tries += 1;
      const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** Math.min(tries, 5));
      timer = setTimeout(connect, pause / 2 + Math.random() * (pause / 2));
    });
  }

  connect();
  addEventListener("pagehide", () => {
    ended = true;
    clearTimeout(timer);
    socket?.close();
  });
  // A page brought back from the browser's memory starts over, with everything fresh.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  return {
    send(value) {
      if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(value));
    },
  };
}
