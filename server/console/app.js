// Which page is shown, asking for a token, and asking the server again and again while a page is looked at.
import {Failure, askJson, hasToken, onLink, setToken} from "./api.js";
import {alertBox, field, h, say, setText} from "./dom.js";
import {clock} from "./format.js";
import * as model from "./model.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as settings from "./settings.js";
import * as tryPage from "./try.js";

const pages = {overview, models, try: tryPage, settings};
const root = document.getElementById("page");

// The server's answer to what this page may do; null: not asked yet.
let session = null;
let shown = null; // the page: {element, refresh, everyMs, stop}
let timer = 0;
let turn = 0; // counts pages: what an earlier one asked for comes too late

// ---- the link -------------------------------------------------------------------------------------------------

let lastAnswer = Date.now();

onLink((answers) => {
  const box = document.getElementById("link");
  if (answers) lastAnswer = Date.now();
  const text = answers ? "" : `The server does not answer since ${clock(lastAnswer, true)}. ` +
    "What is shown is older; the page goes on asking.";
  if (box.textContent && !text) say("The server answers again.");
  setText(box, text);
  document.body.classList.toggle("stale", !answers);
});

// Every tab and page names the server that it shows, by the address under which it was opened.
function setTitle(title) {
  document.title = `${title} – ${location.host} – bagserve`;
}
setText(document.getElementById("server"), location.host);

// ---- the token ------------------------------------------------------------------------------------------------

function showTokenForm(failure) {
  stop();
  const error = alertBox();
  const input = h("input", {name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false"});
  const form = h("form", {class: "card narrow", onsubmit: (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    open();
  }},
  h("h1", {tabindex: "-1"}, "Access token"),
  h("p", {}, "This server answers those who bring a token. It needs the scope ", h("code", {}, "read"), " to show what " +
    "the server does, and ", h("code", {}, "infer"), " to try a bag; ", h("code", {}, "admin"), " covers both."),
  field("Token", input, "It is kept in this page's memory alone, and forgotten when the page is closed or loaded again."),
  error.element,
  h("button", {class: "main"}, "Use this token"));
  root.replaceChildren(form);
  setTitle("Access token");
  if (hasToken()) error.show(failure.message);
  input.focus();
}

// ---- pages ----------------------------------------------------------------------------------------------------

function stop() {
  clearTimeout(timer);
  turn++;
  if (shown && shown.stop) shown.stop();
  shown = null;
}

// "#/models/items" -> ["models", "items"]
function place() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return [parts[0] || "overview", decodeURIComponent(parts.slice(1).join("/"))];
  } catch {
    return [parts[0], ""];
  }
}

function pageOf(name, argument) {
  if (name === "models" && argument) return model;
  return pages[name];
}

function mark(name) {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function refresh(mine) {
  clearTimeout(timer);
  if (!shown || !shown.refresh || document.hidden) return;
  try {
    await shown.refresh();
    if (mine === turn) shown.failed?.("");
  } catch (error) {
    if (mine !== turn) return;
    if (!(error instanceof Failure)) throw error;
    if (error.wantsToken) return showTokenForm(error);
    if (error.status) shown.failed?.(error.message);
  }
  if (mine === turn) timer = setTimeout(() => refresh(mine), shown.everyMs);
}

async function begin() {
  const failed = {listener: "main", infers: true, controls: false, changes_models: false, has_admin: false,
    derived: {}, options: null};
  try {
    session = await askJson("v2/server/options");
  } catch (error) {
    if (!(error instanceof Failure) || error.status === 0 || error.wantsToken) throw error;
    session = {...failed, why: error.message}; // not for this port: what else there is can be shown
  }
  setText(document.getElementById("listener"), session.listener === "admin" ? "admin listener" : "");
}

async function open() {
  stop();
  const mine = turn;
  const [name, argument] = place();
  const page = pageOf(name, argument);
  if (!page) {
    location.hash = "#/overview";
    return;
  }
  mark(name);
  try {
    if (!session || session.why) await begin();
    if (mine !== turn) return;
    shown = page.show(session, argument);
  } catch (error) {
    if (mine !== turn) return;
    if (!(error instanceof Failure)) throw error;
    if (error.wantsToken) return showTokenForm(error);
    root.replaceChildren(h("p", {class: "card"}, "Waiting for the server."));
    timer = setTimeout(open, 2000);
    return;
  }
  root.replaceChildren(shown.element);
  root.setAttribute("aria-busy", "true");
  setTitle(shown.title);
  await refresh(mine);
  if (mine === turn) root.removeAttribute("aria-busy");
}

window.addEventListener("hashchange", async () => {
  await open();
  root.querySelector("h1")?.focus({preventScroll: true});
  window.scrollTo(0, 0);
});
document.addEventListener("visibilitychange", () => refresh(turn));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  root.focus();
});
open();
