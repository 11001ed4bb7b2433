"use strict";
(function () {
  const store = document.getElementById("facts");
  const sliders = document.querySelectorAll("[data-dial]");
  if (!store || !sliders.length) return;
  const facts = JSON.parse(store.textContent);
  const lists = document.querySelectorAll("[data-user]");
  const steps = document.querySelectorAll("[data-step]");
  const readings = document.querySelectorAll("[data-reading]");
  const owns = document.querySelectorAll("[data-own]");

  function span(kind, text) {
    const made = document.createElement("span");
    made.className = kind;
    made.textContent = text;
    return made;
  }

  function tag(kind, symbol, word) {
    const made = span("tag " + kind, " " + word);
    const sign = span("", symbol);
    sign.setAttribute("aria-hidden", "true");
    made.prepend(sign);
    return made;
  }

  // A row is [title, tail, found, reasons...]; titles and reasons are places in facts.titles.
  function row(cells) {
    const made = document.createElement("li");
    const [title, tail, found, ...why] = cells;
    made.append(span("title", facts.titles[title]), " ");
    made.append(tail ? tag("tail", "\u25C7", "tail") : tag("head", "\u25B2", "head"));
    if (found) made.append(" ", tag("found", "\u2713", "found"));
    if (why.length) {
      const names = why.map((place) => facts.titles[place]).join(" and ");
      made.append(" ", span("why", "because of " + names));
    }
    return made;
  }

  function turn(step) {
    sliders.forEach((slider) => {
      slider.value = step;
      slider.setAttribute("aria-valuetext", facts.words[step]);
    });
    readings.forEach((reading) => { reading.textContent = facts.words[step]; });
    owns.forEach((own) => { own.hidden = step !== facts.own; });
    steps.forEach((each) => { each.classList.toggle("now", Number(each.dataset.step) === step); });
    lists.forEach((list) => {
      const rows = facts.lists[Number(list.dataset.user)][step];
      if (rows.length) list.replaceChildren(...rows.map(row));
    });
  }

  document.querySelectorAll(".dial").forEach((dial) => { dial.hidden = false; });
  sliders.forEach((slider) => {
    slider.addEventListener("input", () => turn(Number(slider.value)));
  });
  turn(facts.own);
})();
