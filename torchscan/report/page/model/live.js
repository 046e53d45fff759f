// A page that is open while a run goes on: it hears that there is something new, and asks for it.

/** @typedef {import("./histories.js").Found} Found */

/** seconds between two questions, at least */
const PAUSE = 0.5;
/** and until a page that was refused asks again */
const AGAIN = 10;

/** Distributions from the server. @param {string} key of a call @returns {Promise<Found>} */
export function fromServer(key) { return question(`heat?call=${encodeURIComponent(key)}`); }

/** @param {string} path @returns {Promise<any>} */
async function question(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Ask for something again whenever there are new data. @param {string} path @param {number} pause seconds between two answers, at least @param {(answer: any) => void} heard */
export function follow(path, pause, heard) {
  let isAsking = false;
  let isNew = false;
  const ask = async () => {
    isNew = true;
    if (isAsking || document.hidden) return;
    isAsking = true;
    isNew = false;
    try { heard(await question(path)); } catch { /* the page says that the server is gone */ }
    setTimeout(() => { isAsking = false; if (isNew) ask(); }, 1000 * pause);
  };
  addEventListener("torchscan-news", ask);
  document.addEventListener("visibilitychange", () => { if (isNew) ask(); });
}

/** @param {(figures: any) => void} heard what the last step has measured @param {(isThere: boolean) => void} tell whether somebody answers */
export function listen(heard, tell) {
  let isAsking = false, isNew = false;
  /** @type {EventSource | null} a browser has few connections for all pages, so that one nobody sees takes none */
  let events = null;
  const ask = async () => {
    if (isAsking) { isNew = true; return; }
    isAsking = true; isNew = false;
    try {
      const found = await question("figures");
      tell(true);
      heard(found);
    } catch { tell(false); }
    setTimeout(() => { isAsking = false; if (isNew) ask(); }, 1000 * PAUSE);
  };
  const follow = () => {
    events?.close();
    events = document.hidden ? null : new EventSource("events");
    if (!events) return;
    events.onopen = () => tell(true);
    events.onerror = () => { tell(false); if (events?.readyState === EventSource.CLOSED) setTimeout(follow, 1000 * AGAIN); }; // refused, for now
    events.onmessage = () => { dispatchEvent(new Event("torchscan-news")); ask(); };
  };
  follow();
  document.addEventListener("visibilitychange", follow);
}
