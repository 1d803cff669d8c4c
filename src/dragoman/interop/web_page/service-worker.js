// Keeps every file, so that the page works offline after the first visit.
//
// Other exports may be on the same host, so that a cache is named after the page's address. A new export waits until
// all pages of the old one are closed: files of two exports are never mixed.

const PAGE = `dragoman ${self.registration.scope} `;
const CACHE = PAGE + "%VERSION%";
const FILES = %FILES%;

self.addEventListener("install", (event) => {
  // the browser's own cache may hold files of an older export: ask the host whether they changed
  const fresh = FILES.map((name) => new Request(name, { cache: "no-cache" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(fresh)));
});

self.addEventListener("activate", (event) => {
  const removeOld = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith(PAGE) && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(removeOld());
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    const wanted = event.request.mode === "navigate" ? "index.html" : event.request;
    return (await cache.match(wanted, { ignoreSearch: true })) ?? fetch(event.request);
  };
  event.respondWith(answer());
});
