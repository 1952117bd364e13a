// Loading, unloading and rolling back: on the admin listener, with a token of scope admin, after a question.
import {Failure, modelPath, post} from "./api.js";
import {alertBox, confirmed, field, h, say} from "./dom.js";

// Why this page changes nothing.
export function whyNot(session) {
  const value = (key) => session.options?.find((option) => option.key === key)?.value;
  if (session.why) return session.why;
  if (!session.controls) return "Models do not change while this server runs (model_control is none).";
  if (!session.has_admin) return "Models are changed on the admin listener, which this server lacks (admin_port, admin_socket).";
  if (session.listener !== "admin" && value("admin_socket")) {
    return `Models are changed on the admin listener, the socket ${value("admin_socket")}. A browser cannot open it: ` +
      "send the requests with curl --unix-socket.";
  }
  if (session.listener !== "admin") {
    return "Models are changed on the admin listener: open the console " +
      (value("admin_port") ? `on port ${value("admin_port")} (admin_port).` : "there.");
  }
  return "Models are changed with a token of the scope admin; this one has another.";
}

function repositoryPath(name, what) {
  return modelPath(name, what).replace("v2/models", "v2/repository/models");
}

// Asks, then makes the change and waits for its end, which may take long. `done` is called in any case.
async function change(question, action, name, what, parameters, error, done) {
  if (!await confirmed(question, action)) return;
  error.clear();
  say(`${action}: asked.`);
  try {
    const waiting = post(repositoryPath(name, what), {parameters}, {timeoutMs: 0});
    setTimeout(done, 100); // shows the models that are loading by then
    await waiting;
    say(`${action}: done.`);
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    error.show(failure.message);
  }
  await done();
}

function versionsBelow(entry) {
  const served = Number(entry.main.version);
  return entry.versions.map((version) => version.version).filter((version) => Number(version) < served);
}

// The buttons of one model. `entryOf` gives it as it is now.
export function buttons(name, entryOf, error, done) {
  const version = h("input", {name: "version", inputmode: "numeric", pattern: "[0-9]*", placeholder: "newest",
    "aria-label": "Version to load", size: "8"});
  const run = (...what) => change(...what, error, done);

  function load(event) {
    event.preventDefault();
    const wanted = version.value.trim();
    run(wanted ? `Load version ${wanted} of ${name}? It becomes the one that answers.`
      : `Load ${name} as it is in its folder now? Its newest good version answers from then on.`,
    wanted ? `Load version ${wanted}` : `Load ${name}`, name, "load", wanted ? {version: wanted} : {});
  }

  function unload() {
    run(`Unload ${name}? Requests for it are answered 404 from then on, until it is loaded again.`, `Unload ${name}`,
      name, "unload", {});
  }

  function rollBack() {
    const below = versionsBelow(entryOf());
    const before = below.length ? below[below.length - 1] : String(Number(entryOf().main.version) - 1);
    run(`Roll ${name} back from version ${entryOf().main.version} to version ${before}? It answers from then on.`,
      `Roll back to version ${before}`, name, "load", {version: before});
  }

  const back = h("button", {type: "button", onclick: rollBack}, "Roll back");
  const element = h("form", {class: "bar card", "aria-label": `Change ${name}`, onsubmit: load},
    version, h("button", {class: "main"}, "Load"), back, h("button", {type: "button", class: "danger", onclick: unload}, "Unload"));
  return {
    element,
    show(entry) {
      back.disabled = !(Number(entry.main.version) > 1) || entry.main.state !== "READY";
    },
  };
}

// Loads a model that may not be listed yet.
export function loadForm(done) {
  const error = alertBox();
  const name = h("input", {name: "model", required: true, maxlength: "128", autocomplete: "off"});
  return h("form", {class: "card", onsubmit: (event) => {
    event.preventDefault();
    const wanted = name.value.trim();
    change(`Load ${wanted} from its folder?`, `Load ${wanted}`, wanted, "load", {}, error, done);
  }},
  h("h2", {}, "Load a model"), field("Name of its folder", name), h("button", {class: "main"}, "Load"), error.element);
}
