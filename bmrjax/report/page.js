"use strict";
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const slider = document.getElementById("at");
  const views = [];
  const tip = document.getElementById("tip");

  function show(handler, event, item, value) {
    if (value == null || value === "") {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren();
    for (const [name, text] of Object.entries(value)) {
      const row = document.createElement("div");
      const label = document.createElement("span");
      const shown = document.createElement("b");
      label.textContent = name;
      shown.textContent = text;
      row.append(label, shown);
      tip.append(row);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const above = event.clientY + 14 + box.height > window.innerHeight;
    tip.style.left = Math.max(left, 8) + "px";
    tip.style.top = (above ? event.clientY - box.height - 10 : event.clientY + 14) + "px";
  }

  function go(number) {
    if (slider && number !== Number(slider.value)) {
      slider.value = number;
      slider.dispatchEvent(new Event("input"));
    }
  }

  const specs = read("charts");
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = specs[Number(place.dataset.chart)];
    const view = new vega.View(vega.parse(spec), { renderer: "svg", container: place, hover: true });
    view.tooltip(show);
    if ((spec.signals || []).some((signal) => signal.name === "at")) {
      views.push(view);
      view.addEventListener("click", (event, item) => {
        if (item && item.datum && Number.isInteger(item.datum.i)) go(item.datum.i);
      });
    }
    view.runAsync();
  }

  if (slider) {
    const points = read("points");
    const where = document.getElementById("where");
    const home = document.getElementById("home");
    const update = () => {
      const number = Number(slider.value);
      const point = points[number];
      where.textContent = point.mark ? point.title + " (" + point.mark + ")" : point.title;
      slider.setAttribute("aria-valuetext", where.textContent);
      for (const place of document.querySelectorAll("[data-measure]")) {
        place.textContent = point.shown[place.dataset.measure];
      }
      for (const view of views) view.signal("at", number).runAsync();
      home.hidden = number === Number(home.dataset.home);
    };
    slider.addEventListener("input", update);
    home.addEventListener("click", () => go(Number(home.dataset.home)));
    update();
  }
})();
