// The page itself: the current view, the state of the connection, the theme.

import { ask, hasHeaders } from "./api.js";
import { announce, fill, h, setShown, setText } from "./dom.js";
import { errorPage } from "./errorpage.js";
import { span } from "./format.js";
import { modelPage } from "./modelpage.js";
import { overview } from "./overview.js";
import { lockNotice } from "./parts.js";
import { Store } from "./store.js";

const store = new Store();
const main = document.getElementById("main");
const banner = document.getElementById("banner");
let view = null;

/** The view for a URL: "#/models/NAME/TAB?version=3". */
export function route(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [first, name = "", tab = ""] = path.split("/");
  if (first === "models" && name) {
    return {
      page: "model",
      name: decoded(name),
      tab,
      version: new URLSearchParams(query).get("version") ?? "",
    };
  }
  return { page: first === "errors" ? "errors" : "overview" };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const target = route(location.hash);
  view?.close?.();
  if (target.page === "model") view = modelPage(store, target);
  else view = target.page === "errors" ? errorPage(store) : overview(store);
  fill(main, view.element);
  document.title = `${view.title} · Shoal`;
  for (const [id, page] of [
    ["nav-overview", "overview"],
    ["nav-errors", "errors"],
  ]) {
    const link = document.getElementById(id);
    if (page === target.page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.update();
}

/** Show another page, from its top. */
function travel() {
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  announce(view.title);
}

// ---- the connection

let linkSeen = "";

function showLink() {
  const { link, problem, state } = store;
  const words = {
    connecting: "Connecting",
    live: state?.server.ready ? "Live" : "Live, not ready",
    lost: "Connection lost",
    refused: problem?.status === 401 ? "Key required" : "Restricted",
  };
  const mark = `${link} ${words[link]} ${problem?.message}`;
  if (mark === linkSeen) return;
  const before = linkSeen.split(" ")[0];
  linkSeen = mark;
  document.documentElement.dataset.link = link === "live" && !state.server.ready ? "unready" : link;
  setText(document.getElementById("link-text"), words[link]);
  if (link === "lost") {
    fill(
      banner,
      h(
        "p",
        {},
        h("b", {}, "The server does not respond. "),
        "This page shows the last known state. Retrying every few seconds …",
      ),
      h("button", { type: "button", class: "quiet", onclick: () => store.hurry() }, "Retry now"),
    );
  } else if (link === "refused") {
    const { status } = problem;
    const retry = () => {
      linkSeen = ""; // so that the same refusal is shown again
      store.hurry();
    };
    if (status === 401 || status === 403) fill(banner, lockNotice(problem, retry));
    else fill(banner, h("p", {}, h("b", {}, `The server returned ${status}. `), problem.message));
  } else {
    fill(banner);
  }
  setShown(banner, link === "lost" || link === "refused");
  if (link === "live" && before === "lost") announce("The server responds again");
}

function showServer() {
  const { state, errors } = store;
  if (!state) return;
  const { name, version, started_ms: started } = state.server;
  setText(
    document.getElementById("server-words"),
    `${name} · Shoal ${version} · up for ${span(state.time_ms - started)}`,
  );
  const counted = [...errors.values()].reduce((sum, entry) => sum + entry.count, 0);
  const badge = document.getElementById("error-count");
  setText(badge, counted > 999 ? "999+" : String(counted));
  setShown(badge, counted > 0);
}

store.addEventListener("look", () => {
  showLink();
  showServer();
  view?.update();
});

// ---- theme

const theme = document.getElementById("theme");
theme.value = document.documentElement.dataset.theme ?? "auto";
theme.addEventListener("change", () => {
  const chosen = theme.value;
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("shoal-theme", chosen);
  } catch {
    // Then the choice is lost when the page is closed.
  }
});

// ---- documents of the server

/** Open a document in another tab. The browser cannot send a key, so the page requests it. */
for (const link of document.querySelectorAll(".foot-links a")) {
  link.addEventListener("click", async (event) => {
    if (!hasHeaders()) return;
    event.preventDefault();
    try {
      const answer = await ask(link.getAttribute("href"));
      const shown = new Blob([await answer.text()], { type: "text/plain;charset=utf-8" });
      const copy = h("a", { href: URL.createObjectURL(shown), target: "_blank", rel: "noopener" });
      copy.click();
      setTimeout(() => URL.revokeObjectURL(copy.href), 60_000);
    } catch (error) {
      announce(error.message);
      fill(banner, lockNotice(error, null));
      setShown(banner, true);
    }
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the current page
  main.focus();
});
addEventListener("hashchange", travel);
show();
store.run();
