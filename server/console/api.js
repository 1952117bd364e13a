// Asking the server. The token stays in this variable: it is gone when the page is closed or loaded again.

let token = "";

export class Failure extends Error {
  constructor(status, text, challenge = null) {
    super(text);
    this.status = status; // 0: there was no answer
    this.challenge = challenge; // value of the header WWW-Authenticate
  }

  get wantsToken() {
    return this.status === 401 || (this.status === 403 && this.challenge !== null);
  }
}

export function setToken(value) {
  token = value;
}

export function hasToken() {
  return token !== "";
}

// Called with whether the server answers.
let listener = () => {};
export function onLink(f) {
  listener = f;
}

async function failureOf(reply) {
  const text = await reply.text();
  let said = text.slice(0, 500) || reply.statusText;
  try {
    said = JSON.parse(text).error ?? said;
  } catch {
    // Not the server's own words: a proxy's.
  }
  return new Failure(reply.status, said, reply.headers.get("WWW-Authenticate"));
}

// Asks for a path without its first slash: the page may lie behind a proxy's prefix. Returns the text.
// timeoutMs 0: as long as it takes.
export async function ask(path, {method = "GET", body, timeoutMs = 5000} = {}) {
  const abort = new AbortController();
  const timer = timeoutMs ? setTimeout(() => abort.abort(), timeoutMs) : 0;
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  try {
    const reply = await fetch(path, {method, body, headers, signal: abort.signal, cache: "no-store",
      credentials: "omit", redirect: "error"});
    listener(true);
    if (!reply.ok) throw await failureOf(reply);
    return await reply.text();
  } catch (error) {
    if (error instanceof Failure) throw error;
    listener(false);
    throw new Failure(0, abort.signal.aborted ? `no answer within ${timeoutMs / 1000} s` : "the server cannot be reached");
  } finally {
    clearTimeout(timer);
  }
}

export async function askJson(path, options) {
  return JSON.parse(await ask(path, options));
}

export function post(path, value, options = {}) {
  return ask(path, {method: "POST", body: JSON.stringify(value), ...options});
}

// The path of a model's document, whatever its name.
export function modelPath(name, ...rest) {
  return ["v2/models", encodeURIComponent(name), ...rest].join("/");
}
