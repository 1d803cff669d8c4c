// Requests to the service: keys, retries, streams. Knows nothing of translations.

const KEY = "dragoman.key";
const MOST_TRIES = 8;

export class Refused extends Error {
  constructor(message, status, retrySeconds = null) {
    super(message);
    Object.assign(this, { status, retrySeconds });
  }
}

/** Asks for a key; the page replaces it. Resolves to whether one was given. */
export const keys = { ask: async () => false };

export const isAbort = (error) => error?.name === "AbortError";
export const setKey = (key) => sessionStorage.setItem(KEY, key);

export function keyHeaders() {
  const key = sessionStorage.getItem(KEY);
  return key ? { "X-API-Key": key } : {};
}

/** Do it again while the service is busy (`waiting` hears how long) or until it has a valid key. */
export async function retrying(act, { signal, waiting = () => {} } = {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await act();
    } catch (error) {
      if (signal?.aborted) throw new DOMException("given up", "AbortError");
      if (error.status === 401 && (await keys.ask(error.message))) continue;
      if (!error.retrySeconds || tries === MOST_TRIES) throw error;
      await wait(error, signal, waiting);
    }
  }
}

async function wait(error, signal, waiting) {
  for (let left = error.retrySeconds; left > 0; left -= 1) {
    waiting(left, error);
    await sleep(Math.min(left, 1) * 1000, signal);
  }
  waiting(0, error);
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("given up", "AbortError"));
    });
  });
}

/** The answer to one request, if it is a good one. */
async function send(path, body, signal) {
  const how = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const headers = { ...keyHeaders(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  let response;
  try {
    response = await fetch(path, { ...how, headers, signal });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Refused("The service cannot be reached. Check the connection.", 0);
  }
  if (response.ok) return response;
  throw refusal(response.status, await response.text(), response.headers.get("Retry-After"));
}

/** An error of a status, a body that should be {"error": message}, and the header Retry-After. */
export function refusal(status, body, retryAfter) {
  let message = `The service answers with status ${status}.`;
  try {
    message = String(JSON.parse(body).error ?? message);
  } catch {
    // not JSON: of a proxy
  }
  const seconds = Number.parseInt(retryAfter, 10);
  return new Refused(message, status, Number.isNaN(seconds) ? null : Math.max(1, seconds));
}

export const getJson = (path) => retrying(async () => (await send(path)).json());

export const postJson = (path, body, options = {}) =>
  retrying(async () => (await send(path, body, options.signal)).json(), options);

export const postForText = (path, body, options = {}) =>
  retrying(async () => (await send(path, body, options.signal)).text(), options);

/** The result of a stream; `part(text)` hears all that has come so far. */
export const postForStream = (path, body, part, options = {}) =>
  retrying(async () => {
    const response = await send(path, { ...body, stream: true }, options.signal);
    let text = "", result = null;
    for await (const { name, data } of events(response.body)) {
      if (name === "part") part((text += data));
      else if (name === "result") result = data; // and read on, to its end: else the browser keeps the request open
      else if (name === "error") throw new Refused(data.error, data.status, data.retry_seconds);
    }
    if (result) return result;
    throw new Refused("The connection ended before the translation was complete.", 0);
  }, options);

/** Server-sent events, whose data is JSON. */
export async function* events(stream) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => /^(\w+): ?(.*)$/.exec(line)?.slice(1) ?? []));
      if (fields.data !== undefined) yield { name: fields.event ?? "message", data: JSON.parse(fields.data) };
    }
  }
}
