// The OpenAPI description of /spec as a page: operations by tag, what they take, a curl line, a form to try each.

import { getJson, keyHeaders, keys, setKey } from "./api.js";
import { at, make } from "./elements.js";

let schemas = {};
const METHODS = ["get", "post", "put", "delete"];

const resolve = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema) ?? {};
const anchor = (method, path) => `${method}${path.replace(/[^\w]+/g, "-")}`;

/** Text in which `code` is set apart. */
const prose = (text) => text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));

// Schemas

/** In a word or two: `text`, `list of text`, `number or null`. */
function typeOf(schema) {
  if (schema.$ref) return "object";
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(typeOf).filter((name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return { string: "text", integer: "whole number", boolean: "true or false" }[schema.type] ?? schema.type ?? "anything";
}

/** The schema of objects behind references, lists and choices, if there is one. */
function objectIn(schema) {
  const own = resolve(schema);
  if (own.properties) return own;
  const inner = own.type === "array" ? [own.items] : (own.anyOf ?? own.oneOf ?? own.allOf ?? []);
  return inner.map((each) => each && objectIn(each)).find(Boolean) ?? null;
}

const LIMITS = { minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", exclusiveMaximum: "less than", maxLength: "length at most", maxItems: "items at most" };

function remarks(schema) {
  const own = [schema, ...(schema.anyOf ?? [])];
  const limits = own.flatMap((each) => Object.entries(LIMITS).flatMap(([name, words]) => (name in each ? [`${words} ${each[name]}`] : [])));
  const standard = schema.default ?? null;
  const isWorthSaying = standard !== null && typeof standard !== "object";
  return [schema.description, limits.join(", "), isWorthSaying ? `default ${JSON.stringify(standard)}` : ""].filter(Boolean).join("; ");
}

function rows(schema, depth = 0) {
  return Object.entries(schema.properties ?? {}).flatMap(([name, field]) => {
    const inner = depth < 1 ? objectIn(field) : null;
    const isNeeded = schema.required?.includes(name);
    return [row(name, field, isNeeded, depth), ...(inner ? rows(inner, depth + 1) : [])];
  });
}

function row(name, field, isNeeded, depth) {
  const type = make("td", {}, typeOf(field));
  if (isNeeded) type.append(" ", make("span", { className: "needed" }, "required"));
  return make("tr", { className: depth ? "nested" : "" }, make("th", { scope: "row" }, name), type, make("td", {}, ...prose(remarks(field))));
}

function table(name, body) {
  const head = ["Name", "Type", "Meaning"].map((text) => make("th", { scope: "col" }, text));
  return make("div", { className: "wide", tabIndex: 0, role: "group", "aria-label": name },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

/** What a request could look like: examples, and of the rest what is required. */
function example(schema) {
  const own = resolve(schema);
  if (own.example !== undefined) return own.example;
  if (own.examples?.length) return own.examples[0];
  if (own.properties) {
    const wanted = Object.entries(own.properties).filter(([name, field]) => own.required?.includes(name) || field.examples);
    return Object.fromEntries(wanted.map(([name, field]) => [name, example(field)]));
  }
  if (own.type === "array") return [example(own.items ?? {})];
  if (own.anyOf) return example(own.anyOf[0]);
  return { string: "The house is old.", integer: 1, number: 1, boolean: true }[own.type] ?? null;
}

// Operations

function bodyOf(operation) {
  const [type, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  return type ? { type, schema: content.schema, example: content.example ?? example(content.schema) } : null;
}

function curl(method, path, body) {
  const address = `${location.origin}${path}`;
  if (!body) return method === "get" ? `curl ${address}` : `curl -X ${method.toUpperCase()} ${address}`;
  if (body.type !== "application/json") {
    const parts = Object.entries(body.example).map(([name, value]) => `  -F ${name}=${value}`);
    return [`curl ${address}`, ...parts].join(" \\\n");
  }
  return `curl ${address} \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body.example).replaceAll("'", "'\\''")}'`;
}

function operationOf(path, method, operation) {
  const body = bodyOf(operation), own = body && objectIn(body.schema);
  const name = make("h3", { id: anchor(method, path) }, make("span", { className: `method ${method}` }, method.toUpperCase()), path);
  const parts = [name, make("p", {}, ...prose(operation.description ?? operation.summary ?? ""))];
  const parameters = operation.parameters ?? [];
  if (parameters.length) {
    const fields = parameters.map((each) => row(each.name, { description: each.description, ...each.schema }, each.required, 0));
    parts.push(make("h4", {}, "Parameters"), table(`Parameters of ${path}`, fields));
  }
  if (own) parts.push(make("h4", {}, "Request"), table(`Request of ${path}`, rows(own)));
  parts.push(...answers(path, operation), make("h4", {}, "Example"), code(curl(method, path, body), `Example of ${path}`));
  if (!path.includes("{") && (!body || body.type === "application/json")) parts.push(tryIt(method, path, body));
  return make("section", { className: "operation", "aria-labelledby": anchor(method, path) }, ...parts);
}

const code = (text, name) => make("pre", { tabIndex: 0, role: "group", "aria-label": name }, text);

function answers(path, operation) {
  const entries = Object.entries(operation.responses ?? {});
  const good = entries.find(([status]) => status.startsWith("2"))?.[1];
  const schema = good && objectIn(good.content?.["application/json"]?.schema ?? {});
  const bad = entries.filter(([status, { description }]) => !status.startsWith("2") && description && status !== "422");
  const found = [];
  if (schema) found.push(make("h4", {}, "Answer"), table(`Answer of ${path}`, rows(schema)));
  if (bad.length) found.push(make("h4", {}, "Errors"), make("p", {}, bad.map(([status, { description }]) => `${status}: ${description}`).join(". "), "."));
  return found;
}

function tryIt(method, path, body) {
  const input = make("textarea", { value: body ? JSON.stringify(body.example, null, 2) : "", "aria-label": `Body for ${path}`, spellcheck: false });
  const output = make("pre", { tabIndex: 0, hidden: true, role: "status", "aria-label": `Answer of ${path}` });
  const form = make("form", {}, ...(body ? [input] : []), make("button", { className: "strong", type: "submit" }, "Send"), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    output.hidden = false;
    output.textContent = "…";
    output.textContent = await answer(method, path, body && input.value).catch((error) => error.message);
  });
  return make("details", { className: "try" }, make("summary", {}, "Try it"), form);
}

async function answer(method, path, body) {
  const headers = { ...keyHeaders(), ...(body ? { "Content-Type": "application/json" } : {}) };
  const response = await fetch(path.slice(1), { method: method.toUpperCase(), headers, ...(body ? { body } : {}) });
  const text = await response.text();
  const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
  return `${response.status}\n${isJson ? JSON.stringify(JSON.parse(text), null, 2) : text.slice(0, 20_000)}`;
}

// The page

function show(spec) {
  schemas = spec.components?.schemas ?? {};
  at("title").textContent = `${spec.info.title} API`;
  at("about").textContent = `${spec.info.description ?? ""} Version ${spec.info.version}.`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((each) => each in methods)) {
      const tag = methods[method].tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), [path, method, methods[method]]]);
    }
  }
  at("groups").replaceChildren(...[...groups].map(([tag, all]) =>
    make("section", { className: "group", "aria-label": tag }, make("h2", {}, tag), ...all.map((each) => operationOf(...each)))));
  at("contents").replaceChildren(...[...groups].map(([tag, all]) =>
    make("div", {}, make("h2", {}, tag), ...all.map(([path, method]) => make("a", { href: `#${anchor(method, path)}` }, path)))));
  document.documentElement.dataset.ready = "true";
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

async function load() {
  at("problem").hidden = true;
  try {
    show(await getJson("spec"));
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
  }
}

keys.ask = async () => false; // the field above is enough
at("key-form").addEventListener("submit", (event) => event.preventDefault());
at("key-value").addEventListener("change", () => {
  setKey(at("key-value").value.trim());
  if (!document.documentElement.dataset.ready) load();
});
load();
