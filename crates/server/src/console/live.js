(() => {
  "use strict";
  const page = document.body.dataset, light = document.getElementById("live");
  const say = (state, text) => { if (light) { light.dataset.state = state; light.textContent = text; } };
  // What a person has opened, typed or is about to type survives the change around it.
  const swap = (id, html) => {
    const part = document.getElementById(id);
    if (!part) return;
    const open = [...part.querySelectorAll("details[id]")].map(d => [d.id, d.open]);
    const fields = [...part.querySelectorAll("input[id],textarea[id]")];
    const typed = fields.filter(f => f.value !== f.defaultValue || f.checked !== f.defaultChecked).map(f => [f.id, f.value, f.checked]);
    const focus = part.contains(document.activeElement) ? document.activeElement : null;
    const at = focus && typeof focus.selectionStart === "number" ? [focus.selectionStart, focus.selectionEnd] : null;
    part.innerHTML = html;
    for (const [id, was] of open) { const d = document.getElementById(id); if (d) d.open = was; }
    for (const [id, value, checked] of typed) { const f = document.getElementById(id); if (f) { f.value = value; f.checked = checked; } }
    const again = focus && focus.id && document.getElementById(focus.id);
    if (again) { again.focus({ preventScroll: true }); if (at && again.setSelectionRange) again.setSelectionRange(...at); }
  };
  let source = null;
  const stop = () => { if (source) { source.close(); source = null; } };
  const start = () => {
    if (source || document.hidden || !page.live || !window.EventSource) return;
    source = new EventSource(page.live);
    source.onopen = () => say("live", "live");
    source.onmessage = event => { say("live", "live"); for (const [id, html] of JSON.parse(event.data)) swap(id, html); };
    source.onerror = () => say("away", source && source.readyState === 2 ? "not live" : "reconnecting");
  };
  // A hidden tab holds no connection: browsers have few of them per server.
  document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); say("", "paused"); } else start(); });
  addEventListener("pagehide", stop);
  start();
  const ahead = Date.now() - Number(page.now);
  const words = s => s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
  setInterval(() => {
    for (const t of document.querySelectorAll("time[data-at]"))
      t.textContent = words(Math.max(0, Math.floor((Date.now() - ahead - Number(t.dataset.at)) / 1000)));
    for (const t of document.querySelectorAll("time[data-until]")) {
      const left = Math.floor((Number(t.dataset.until) - Date.now() + ahead) / 1000);
      t.textContent = left > 0 ? words(left) : "now";
    }
  }, 1000);
})();
