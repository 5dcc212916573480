// Another server's page at this address may have left its worker in the browser (llama-server's does), which goes on showing that page
// without asking. The browser takes this file for a newer worker: it erases the other's files, ends, and the page is loaded from here.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (e) => e.waitUntil(leave()));

async function leave() {
  for (const name of await caches.keys()) await caches.delete(name);
  const pages = await self.clients.matchAll({ type: "window" });
  await self.registration.unregister();
  for (const page of pages) page.navigate(page.url);
}
